"""What a person reads of a coalition: who, what it sees, the noise left, whether it depends on data, a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import msgspec
from rich import box
from rich.table import Table

from dca_proto.privacy.rounding import at_least, at_most
from emulator.collusion.coalition import Case, Coalition
from emulator.collusion.dependence import ALARM
from emulator.collusion.finding import CONFIDENCE, HOLDS, REFUTED, Finding
from emulator.results import Amount

Line = tuple[str, str]
"""A label and a text."""


def case_lines(case: Case, runs: int, seed: int) -> Iterator[Line]:
    """Before the work: the claim, the coalition, the rounds."""
    setting = case.setting
    yield (
        "claim",
        (
            f"{setting.promise} for each client; {setting.swarm}; "
            f"a sum of {setting.dimension} column{'s' * (setting.dimension > 1)}"
        ),
    )
    covered = "the claim covers it" if case.is_covered else "the claim does not cover it"
    hides = f"{case.noises_left} unknown noise{'s' * (case.noises_left > 1)}, the claim needs {setting.honest}"
    yield "coalition", f"{case.coalition}; {hides}: {covered}"
    yield "rounds", f"{runs} of real actors in each of two worlds that differ in one client's data; --seed {seed}"


def seen_lines(finding: Finding) -> Iterator[Line]:
    """What it sees, item by item."""
    for place, item in enumerate(finding.sees or ("nothing",)):
        yield "" if place else "sees", item


def figures_table(finding: Finding) -> Table:
    """The figures from the plan, those measured, and what the claim needs."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("", "by the plan", f"measured ({100 * CONFIDENCE:g} %)", "claim"):
        table.add_column(name, justify="right" if name else "left")
    for row in _rows(finding):
        table.add_row(*row)
    return table


def _rows(finding: Finding) -> Iterator[tuple[str, str, str, str]]:
    noise, epsilon, view = finding.noise, finding.epsilon, finding.view
    if finding.released or finding.recovered:
        spread = "" if noise.measured_interval is None else _span(noise.measured_interval)
        epsilons = "" if epsilon.measured_interval is None else _epsilons(*epsilon.measured_interval)
        yield "noises that hide the client", f"{noise.noises_left}", "", f"≥ {noise.noises_needed}"
        yield "variance of the noise left", f"{noise.left:.4g}", spread, f"≥ {noise.floor:.4g}"
        yield "epsilon that it means", _bound(epsilon.meant), epsilons, f"≤ {at_least(epsilon.claimed)}"
    if not finding.released:
        yield "contributions", f"{finding.contributors.found}", "aborted", f"≥ {finding.contributors.needed}"
    if finding.recovered is not None:
        found = finding.recovered
        reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * found.error
        value = _span((found.mean - reach, found.mean + reach))
        yield "the client's value, all rounds' mean", f"{found.truth[0]:g}", value, ""
    if view.p_value is not None:
        yield f"masked vectors, {len(view.tests)} tests, p", "", f"{view.p_value:.2g}", f"≥ {ALARM:g}"
    yield "same traffic for both inputs", "", "yes" if view.same_traffic else "no", "yes"


def sentence(case: Case, finding: Finding) -> str:
    """The verdict in plain words."""
    if finding.verdict == REFUTED:
        return (
            f"What is documented does not hold: {'; '.join(finding.refuted)}. A correct program would be accused so "
            f"less than once in {1 / ALARM:,.0f} reports for each."
        )
    if case.has_all_nodes:
        return _all_nodes(case, finding)
    return f"{_noise_left(case, finding)} {_view(case, finding)}"


def _all_nodes(case: Case, finding: Finding) -> str:
    found, noise, epsilon = finding.recovered, finding.noise, finding.epsilon
    assert found is not None, "all M nodes recover what was sent"
    example = ", ".join(f"{value:.3g}" for value in found.once)
    truth = ", ".join(f"{value:.3g}" for value in found.truth)
    aborted = "" if finding.released else " (although the round was aborted)"
    return (
        f"The documented break: all M = {case.setting.computes} Compute nodes together take all masks off "
        f"a contribution{aborted} and have its value with its own noise alone: {example} for {truth}, with a standard "
        f"deviation of {found.deviation:.3g}. That noise alone, of {noise.noises_needed} needed, means epsilon "
        f"{_bound(epsilon.meant)} where {at_least(epsilon.claimed)} is claimed for as long as one node is honest."
    )


def _noise_left(case: Case, finding: Finding) -> str:
    noise, epsilon, setting = finding.noise, finding.epsilon, case.setting
    if not finding.released:
        return (
            f"The round is aborted, as it must be: {finding.contributors.found} contributions came and "
            f"n_min = N - T + c = {finding.contributors.needed} are needed, so nothing is released."
        )
    unknown = f"{noise.noises_left} unknown noise{'s' * (noise.noises_left != 1)}"
    ratio = f"{noise.left / noise.floor:.3f} times the floor"
    if finding.verdict == HOLDS:
        return (
            f"The claim holds: {unknown} hide the client where {noise.noises_needed} are needed, {ratio}, which means "
            f"epsilon {_bound(epsilon.meant)} of {at_least(epsilon.claimed)}.{_worse(case)}"
        )
    missing = case.coalition.clients + case.coalition.left_out
    return (
        f"A documented break: {missing} clients collude or drop, and the claim of epsilon {at_least(epsilon.claimed)} "
        f"is for at most T + 1 = {setting.tolerated + 1}, the curious one among them; {unknown} where "
        f"{noise.noises_needed} are needed, {ratio}, which means epsilon {_bound(epsilon.meant)}."
    )


def _worse(case: Case) -> str:
    """What the coalition could do about the noise, if its Compute nodes left out as many honest clients as they can."""
    spare = min(case.contributors - case.setting.needed, len(case.honest) - 1)
    fewer = case.noises_left - spare
    if not case.coalition.nodes or fewer >= case.setting.honest:
        return ""
    return (
        f" Its Compute nodes could leave out {spare} honest clients more (--left-out "
        f"{case.coalition.left_out + spare}), of whom the claim speaks as drops: {fewer} noises would be left."
    )


def _view(case: Case, finding: Finding) -> str:
    if finding.view.p_value is None:
        seen = "the private sum and" if case.coalition.trainer and finding.released else "only"
        return f"It sees {seen} traffic, which is the same for both inputs."
    through = "but through the private sum " if case.coalition.trainer and finding.released else ""
    return (
        f"What it sees depends on no client's data {through}(p = {finding.view.p_value:.2g} over "
        f"{len(finding.view.tests)} tests; traffic is the same to the byte)."
    )


class Result(Finding, frozen=True, kw_only=True):
    """What `--json` writes and the report reads: the finding, and how it was made.

    Attributes:
        setting: with ``runs`` and ``seed``. covered: whether the claim speaks of the coalition.
        why: the verdict as a sentence. seconds: that it took.
    """

    kind: str = "collusion"
    setting: dict[str, Any]
    coalition: Coalition
    covered: bool
    why: str
    seconds: Amount


def result(case: Case, finding: Finding, runs: int, seed: int, seconds: float) -> Result:
    """Everything, for programs."""
    return Result(
        **msgspec.structs.asdict(finding),
        setting={**msgspec.structs.asdict(case.setting), "runs": runs, "seed": seed},
        coalition=case.coalition,
        covered=case.is_covered,
        why=sentence(case, finding),
        seconds=seconds,
    )


def _bound(epsilon: float | None) -> str:
    """An ε, rounded up."""
    return at_least(math.inf if epsilon is None else epsilon)


def _epsilons(low: float | None, high: float | None) -> str:
    return f"{at_most(math.inf if low is None else low)} to {_bound(high)}"


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4g} to {interval[1]:.4g}"
