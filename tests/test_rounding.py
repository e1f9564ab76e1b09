"""Printed privacy figures: no output shows a smaller ε, δ or μ than the true one, or more left than there is."""

from __future__ import annotations

import ast
import html
import io
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import report_samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from pages import text_of as page_text
from rich.console import Console
from sources import source

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import account, job_run, ledger, trainer
from dca_proto.cli.account_options import Columns, named_statistic
from dca_proto.jobs.plan import JobPlan, forecast_job
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.ledger import Charge, Ledger
from dca_proto.protocol.policy import BudgetLimit
from dca_proto.report.charts import picture
from dca_proto.report.run import closing_lines
from dca_proto.results.round import round_of
from dca_proto.runtime.spending import LedgerView, spending
from dca_proto.testing import TestFederation, seeded
from emulator.coalition.finding import Result as AuditResult
from emulator.ideal import noisy_sum
from emulator.report.audit import page as audit_page
from inference.jobs.estimates import separated
from inference.jobs.picture import plot_estimates

ROOT = Path(__file__).parents[1]
EPSILONS = st.floats(1e-3, 40)
DELTAS = st.floats(1e-12, 0.09)
CLOSE = 0.011  # the last of three digits; terminals have four
SUPERSCRIPT = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
NUMBER = r"(\d[\d.,]*(?:e[-+]\d+|·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?)"
BETWEEN = r"(?: spent per client| of all rounds| claimed| proved| left| in a round)?[ =:≤≥\n]*(?:at most |proved: )?"
quickly = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def parsed(text: str) -> float:
    mantissa, _, exponent = text.rstrip(".,").replace(",", "").partition("·10")
    return float(f"{mantissa}e{exponent.translate(SUPERSCRIPT)}") if exponent else float(mantissa)


def printed(text: str, *names: str) -> list[float]:
    """The numbers that stand after one of these names."""
    found = re.findall(rf"(?<!covered by )(?:{'|'.join(names)})\b{BETWEEN}{NUMBER}(?: of {NUMBER})?", text)
    return [parsed(one) for pair in found for one in pair if one]


def check(text: str, *, epsilon: tuple[float, ...], delta: float, least: int = 1) -> None:
    """Every ε and δ of a text is one of these or above it, by less than the last digit."""
    for names, trues in ((("epsilon", "ε"), epsilon), (("delta", "δ"), (delta,))):
        found = printed(text, *names)
        assert len(found) >= least, text
        for one in found:
            assert any(true <= one <= true * (1 + CLOSE) for true in trues), (names, one, trues, text)


def text_of(page: str) -> str:
    return html.unescape(" ".join(re.sub(r"<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL).split()))


@cache
def a_sum() -> NoisyAggregate:
    actors = TestFederation(20, 3, name="rounding")
    return noisy_sum(actors.request(), actors.rows, actors.columns, frozenset(), seeded("rounding"))


# The formatter.


@given(st.floats(1e-300, 1e300), st.integers(1, 6))
def test_a_figure_is_rounded_to_its_side_by_less_than_its_last_digit(value: float, digits: int) -> None:
    true, above, below = Decimal(value), Decimal(at_least(value, digits)), Decimal(at_most(value, digits))
    unit = Decimal(10) ** (Decimal(repr(value)).adjusted() + 1 - digits)
    assert float(below) <= value <= float(above)
    assert above - true < unit
    assert true - below < unit
    assert len(above.normalize().as_tuple().digits) <= digits


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [(1.49e-5, "1.49e-05", "1.49e-05"), (1.00001, "1.001", "1"), (0.1, "0.1", "0.1"), (0.0, "0", "0"),
     (12345.0, "12350", "12340"), (math.inf, "inf", "inf"), (2, "2", "2")],
)  # fmt: skip
def test_figures_as_they_print(value: float, above: str, below: str) -> None:
    assert (at_least(value), at_most(value)) == (above, below)


@given(EPSILONS, DELTAS)
def test_given_values_are_printed_unchanged(epsilon: float, delta: float) -> None:
    """A budget of three digits stays so when it is spent to the last: μ goes there and back."""
    given_epsilon = float(f"{epsilon:.3g}")
    assert at_least(accounting.epsilon_of(accounting.mu_of(given_epsilon, delta), delta)) == at_least(given_epsilon)


def test_sums_of_decimals_are_printed_as_decimals() -> None:
    cost = PrivacyCost.of_pure(0.1) + PrivacyCost.of_pure(0.2)
    assert (cost.pure, cost.epsilon(0), cost.epsilon(1e-12)) == (0.30000000000000004, 0.3, 0.3)


# Outputs.


def swarm_summary(epsilon: float, delta: float, part: float) -> dict[str, Any]:
    return {**report_samples.whole_swarm(), "epsilon": epsilon, "delta": delta, "epsilon_spent": part * epsilon}


@quickly
@given(EPSILONS, DELTAS, st.floats(0.1, 1))
def test_hardening_11_the_terminal_of_a_swarm(epsilon: float, delta: float, part: float) -> None:
    summary = swarm_summary(epsilon, delta, part)
    for kind in ({}, {"round_kind": "node-release", "nodes": [{"rows": 1, "noise_sd": 1.0}]}, {"reports": "laplace"}):
        run = report_samples.run_of({**summary, "unknown_noises": 307, **kind})
        text = "\n".join(line for _, line in closing_lines(run, summary))
        check(text, epsilon=(epsilon, part * epsilon), delta=delta)


@quickly
@given(EPSILONS, DELTAS, st.floats(0.1, 1))
def test_hardening_11_pages(epsilon: float, delta: float, part: float) -> None:
    run = swarm_summary(epsilon, delta, part)
    check(page_text(separated(run)), epsilon=(epsilon, part * epsilon), delta=delta)
    check(page_text({**report_samples.learned(), "epsilon": epsilon, "delta": delta}), epsilon=(epsilon,), delta=delta)


@quickly
@given(EPSILONS, DELTAS, st.floats(0.1, 1))
def test_the_page_of_an_audit_has_its_claim_rounded_up_and_its_proof_down(
    epsilon: float, delta: float, part: float
) -> None:
    lower = part * epsilon
    run = report_samples.audit(epsilon_lower_gdp=lower, epsilon_lower_cp=lower)
    setting = {**run["setting"], "epsilon": epsilon, "delta": delta}
    page = page_text({**run, "setting": setting, "noise": {**run["noise"], "epsilon": epsilon}, "sentence": ""})
    for sign, true, low, high in (("≤", epsilon, 1.0, 1 + CLOSE), ("≥", lower, 1 - CLOSE, 1.0)):
        found = [parsed(one) for one in re.findall(rf"epsilon {sign} {NUMBER}", page)]
        assert found, page
        assert all(low * true <= one <= high * true for one in found), (true, found)


@settings(quickly, max_examples=5)
@given(EPSILONS, DELTAS)
def test_pictures(epsilon: float, delta: float) -> None:
    """Every text of a figure, as matplotlib holds it."""
    summary = {**swarm_summary(epsilon, delta, 1.0), "reports": None}
    figures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
        caption = job_run.caption(report_samples.run_of(summary))
        plot_estimates(summary, Path("x.png"), title="effects", private=True, caption=caption)
    text = "\n".join(
        one.get_text() for figure in figures for one in figure.findobj(lambda one: hasattr(one, "get_text"))
    )
    check(text, epsilon=(epsilon,), delta=delta)


@settings(quickly, max_examples=5)
@given(EPSILONS, DELTAS)
def test_the_picture_of_an_audit(epsilon: float, delta: float) -> None:
    mu = accounting.mu_of(epsilon, delta)
    found = report_samples.audit()
    run = {**found, "setting": {**found["setting"], "epsilon": epsilon, "delta": delta}, "mu_claimed": mu}
    figures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
        picture(audit_page(msgspec.convert(run, AuditResult)).charts, Path("x.png"), "")
    (figure,) = figures
    text = "\n".join(one.get_text() for one in figure.findobj(lambda one: hasattr(one, "get_text")))
    check(text, epsilon=(epsilon,), delta=delta)
    (printed_mu,) = set(printed(text, "mu"))
    assert mu <= printed_mu <= mu * (1 + CLOSE)


@quickly
@given(EPSILONS, DELTAS)
def test_a_trainers_result_on_the_terminal_and_as_json(epsilon: float, delta: float) -> None:
    result = replace(a_sum(), epsilon=epsilon, delta=delta, mu=accounting.mu_of(epsilon, delta))
    check("\n".join(trainer.result_lines(result)), epsilon=(epsilon,), delta=delta)
    plain = json.loads(msgspec.json.encode(round_of(result, alone=True)))
    assert (plain["epsilon"], plain["delta"]) == (epsilon, delta), "JSON has all digits"


@quickly
@given(EPSILONS, DELTAS)
def test_the_terminal_of_learn(epsilon: float, delta: float) -> None:
    shown, learned = io.StringIO(), {**report_samples.whole_learned(), "intercept": None}
    summary = {**learned, "epsilon": epsilon, "delta": delta}
    job_run.show_run(Console(file=shown, width=300), report_samples.run_of(summary), summary)
    check(shown.getvalue(), epsilon=(epsilon,), delta=delta)


@quickly
@given(st.floats(1e-2, 20), DELTAS)
def test_the_account_before_anything_runs(epsilon: float, delta: float) -> None:
    statistics = (named_statistic("sum", Columns(dimension=1, bound=1.0), {}),)
    job = JobPlan(
        epsilon=epsilon, delta=delta, clients=100, tolerate=10, colluders=0, computes=3, statistics=statistics,
        shares=None, rows_max=1, fraction_bits=32, also=(),
    )  # fmt: skip
    divided = job.round_shares()
    found, shown = forecast_job(job, divided, job.rounds(divided)), io.StringIO()
    account.show(Console(file=shown, width=300), found)
    check(re.sub(r"at delta .*\n|epsilon  .*\n", "", shown.getvalue()), epsilon=(epsilon,), delta=delta)
    for point in found.curve:
        assert accounting.delta_of(point.epsilon, found.mu) <= point.delta * (1 + 1e-12)
    columns = [parsed(one) for one in re.search(r"\nepsilon +(.+)\n", shown.getvalue())[1].split()]
    for shown_epsilon, point in zip(columns, found.curve[1::2], strict=True):
        assert point.epsilon <= shown_epsilon <= point.epsilon * (1 + CLOSE)


@quickly
@given(st.lists(st.floats(1e-2, 3), min_size=1, max_size=5), DELTAS, st.floats(16, 60))
def test_a_ledger_rounds_spending_up_and_the_rest_down(epsilons: list[float], delta: float, limit: float) -> None:
    charges = [
        Charge(bytes([n]) * 16, "sum", bytes(16), accounting.mu_of(one, delta), one, delta, 0, n)
        for n, one in enumerate(epsilons, 1)
    ]
    budget_limit = BudgetLimit(epsilon=limit, delta=delta, period_days=36500)
    kept = LedgerView(store=Path("x"), role="client", ledger=Ledger(charges), declined=(), budget_limit=budget_limit)
    plain = spending(kept, delta, 1)
    (_, spent), (_, left) = ledger.totals(plain)
    (spent_epsilon,) = printed(spent, "epsilon")
    assert plain.epsilon_spent <= spent_epsilon <= plain.epsilon_spent * (1 + CLOSE)
    assert accounting.delta_of(plain.epsilon_spent, plain.mu_spent) <= delta * (1 + 1e-12)
    (left_epsilon,) = printed(left, "epsilon")
    assert plain.epsilon_left * (1 - CLOSE) <= left_epsilon <= plain.epsilon_left
    assert kept.ledger.spent(0) + PrivacyCost.of(left_epsilon, delta) != PrivacyCost()
    assert (kept.ledger.spent(0) + PrivacyCost.of(left_epsilon, delta)).within(limit, delta), (
        "who asks for it is let in"
    )
    console = Console(file=io.StringIO(), width=300)
    console.print(ledger.charges_table(plain))
    rows = [line.split() for line in console.file.getvalue().splitlines() if line.strip()[:1].isdigit()]  # type: ignore[attr-defined]
    for row, charge in zip(rows, charges, strict=True):
        for figure, true in zip(row[5:8], (charge.epsilon, charge.delta, charge.mu), strict=True):
            assert true <= float(figure) <= true * (1 + CLOSE)


@quickly
@given(st.floats(0.5, 3), DELTAS)
def test_a_refusal_for_the_budget(epsilon: float, delta: float) -> None:
    """The requested cost is rounded up; the largest admissible cost is rounded down."""
    budget_limit = BudgetLimit(epsilon=epsilon, delta=delta, period_days=1)
    half = epsilon / 2
    spent = Ledger([Charge(bytes(16), "sum", bytes(16), accounting.mu_of(half, delta), half, delta, 0, 1)])
    refusal = budget_limit.check(PrivacyCost.of(epsilon, delta), spent, 1)
    assert refusal is not None
    (found,) = printed(refusal.found, "epsilon")
    together = spent.spent(0) + PrivacyCost.of(epsilon, delta)
    assert together.epsilon(delta) <= found <= together.epsilon(delta) * (1 + CLOSE)
    limit, left = re.search(rf"<= {NUMBER}", refusal.expected), re.search(rf"at most {NUMBER} is", refusal.expected)
    assert limit
    assert left
    assert parsed(limit[1]) <= epsilon
    assert (spent.spent(0) + PrivacyCost.of(parsed(left[1]), delta)).within(epsilon, delta)


# None beside the formatter.

PRIVATE = re.compile(
    r"(?:^|[^a-z])(?:epsilon|delta|mu|eps|pure|per_round)(?:$|[^a-z])|claimed|meant|[εδμ]", re.IGNORECASE
)
LIKELY = re.compile("epsilon|delta|[εδμ]|claimed|meant", re.IGNORECASE)
NO_FIGURE = ("scale * reports.epsilon", "minutes(", "'epsilon, ")
"""A width, a time, heads of columns."""


def formatted(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Values that an f-string formats by a specification of its own, names of random streams and of cells apart."""
    named = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "__str__"]
    within = set(itertools.chain.from_iterable(range(one.lineno, (one.end_lineno or 0) + 1) for one in named))
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr) or text.lineno in within:
            continue
        if any(isinstance(part, ast.Constant) and re.search(r"^/|\w/$", str(part.value)) for part in text.values):
            continue
        for before, part in itertools.pairwise([None, *text.values]):
            if isinstance(part, ast.FormattedValue) and part.format_spec is not None:
                named = re.search(r"\w+(?=[ =≤≥<>]*$)", str(before.value)) if isinstance(before, ast.Constant) else None
                yield text.lineno, f"{named[0] if named else ''} {ast.unparse(part.value)}"


def test_hardening_11_no_privacy_figure_is_printed_but_by_the_formatter() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {value}"
        for package in ("dca_proto", "emulator", "inference", "scripts")
        for path in sorted((ROOT / package).rglob("*.py"))
        if LIKELY.search(path.read_text())
        for line, value in formatted(source(path).nodes[0])
        if PRIVATE.search(value) and not any(part in value for part in NO_FIGURE)
    ]
    assert found == []
