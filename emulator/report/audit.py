"""The page of an audit: the verdict, what the adversary saw in two worlds, and its errors against the claim."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from dca_proto.report.blocks import Block, Items, Note, Page, PageTable, Section, Verdict, fields, table
from dca_proto.report.charts import Axis, Curve, Point, lines
from dca_proto.report.formats import claimed, count, number, percent, proved, seconds
from dca_proto.wording import counted
from emulator.coalition.bounds import approximate_trade_off, gaussian_trade_off
from emulator.coalition.finding import FALSE_ALARM, KINDS, Attack, Finding, Messages, Result
from emulator.coalition.words import bound, members

Row = tuple[str, str, str, str]
_EXPLAINED = (
    "Noise left is the noise that the coalition cannot remove, on the line that it attacks, in squared units. Bounds "
    "on epsilon are lower bounds; one above the claim is evidence against it."
)
_RATES = np.concatenate([np.logspace(-5, -2, 30), np.linspace(0.01, 0.995, 198)])
_CONFIDENCE = 0.95
_VERDICTS: dict[str, tuple[str, Verdict]] = {
    "stands": ("The claim of epsilon {} stands", "good"),
    "refuted": ("The claim of epsilon {} is refuted", "bad"),
    "not covered": ("The claim of epsilon {} does not cover this coalition", "neutral"),
}


def page(run: Result) -> Page:
    """Return the page of an audit."""
    title, verdict = _VERDICTS.get(run.verdict, ("The claim of epsilon {}: " + run.verdict, "neutral"))
    attack, epsilon = run.attack, claimed(run.setting.epsilon)
    facts = [
        ("claimed", f"epsilon {epsilon}, delta {claimed(run.setting.delta)}"),
        ("epsilon with the noise left, by the plan", bound(run.noise.epsilon)),
        ("rounds of each world", count(run.runs)),
        ("audited", run.audited),
    ]
    sections: list[Section] = [("Figures", [*figures(run), Note(_EXPLAINED)])]
    if attack is not None:
        facts[1:1] = [("proved, as Gaussian DP", f"epsilon ≥ {proved(attack.epsilon_lower_gdp)}")]
        sections = [
            ("What the adversary sees", _distributions(attack)),
            ("Trade-off of its errors", _trade_off(run, attack)),
            *sections,
        ]
    if run.messages is not None:
        sections += [
            ("What it recovers", _recovered(run.messages)),
            ("What its members see", [Items(run.messages.sees) if run.messages.sees else Note("Nothing.")]),
        ]
    return Page(
        kind="Audit of the privacy claim",
        title=title.replace("{}", epsilon),
        badge=run.verdict,
        verdict=verdict,
        answer=run.sentence,
        facts=facts,
        sections=[*sections, ("Setting", _setting(run))],
    )


def _distributions(attack: Attack) -> list[Block]:
    edges, (zero, one) = attack.distributions.edges, attack.distributions.counts
    tallest = float(max(1, *zero, *one))
    series = [
        Curve("the victim holds x", _steps(edges, zero), 0, filled=True),
        Curve("the victim holds x'", _steps(edges, one), 1, "--", filled=True),
        Curve("threshold of the guess", [(attack.threshold_gdp, at) for at in (0.0, tallest)], -1, ":"),
    ]
    x = Axis("the rest of the sum (statistic's units)", low=edges[0], high=edges[-1])
    y = Axis("runs", low=0.0, say=lambda tick: count(round(tick)))
    return [lines(series, x, y, caption="The more the two overlap, the less the coalition learns about the victim.")]


def _steps(edges: list[float], counts: list[int]) -> list[Point]:
    corners = [(edge, float(runs)) for place, runs in enumerate(counts) for edge in edges[place : place + 2]]
    return [(edges[0], 0.0), *corners, (edges[-1], 0.0)]


def _trade_off(run: Result, attack: Attack) -> list[Block]:
    """Return the chart of error rates. No test of a mu-private mechanism lies below the claim's curve.

    Dong, Roth and Su (2022).
    """
    epsilon, delta = run.setting.epsilon, run.setting.delta
    allowed = [(0.0, 1.0), *_points(gaussian_trade_off(_RATES, run.mu_claimed)), (1.0, 0.0)]
    with np.errstate(over="ignore"):
        pair = _points(approximate_trade_off(_RATES, epsilon, delta))
    found = list(zip(attack.trade_off.false_positives, attack.trade_off.false_negatives, strict=False))
    series = [
        Curve(f"claim, mu {claimed(run.mu_claimed)}; it allows none below", allowed, -1, "--", filled=True),
        Curve(f"epsilon {claimed(epsilon)}, delta {claimed(delta)} alone", pair, 2, ":"),
        Curve("the coalition's guesses", found, 1),
    ]
    x = Axis("x' taken for x (false positives)", low=0.0, high=1.0)
    y = Axis("x taken for x' (false negatives)", low=0.0, high=1.0)
    caption = "Each point of the coalition's curve is one threshold. A point clearly below the claim's is evidence "
    caption += "against the claim."
    return [lines(series, x, y, caption=caption, square=True)]


def _points(negatives: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[Point]:
    return list(zip(_RATES.tolist(), negatives.tolist(), strict=True))


def figures(run: Finding) -> list[Block]:
    """Return a table of what was found, its bound or interval, and what the claim requires."""
    confidence = _CONFIDENCE if run.attack is None else run.attack.confidence
    rows = [*_noise_rows(run), *([] if run.attack is None else _attack_rows(run, run.attack)), *_test_rows(run)]
    return [PageTable(("", "found", f"{percent(confidence)} bound or interval", "claim"), rows)]


def _noise_rows(run: Finding) -> Iterator[Row]:
    noise, claim = run.noise, f"≤ {claimed(run.setting.epsilon, 4)}"
    if run.messages is not None and not run.setting.is_released:
        yield "contributions", count(run.messages.contributors), "aborted", f"≥ {count(run.messages.needed)}"
    yield "noises that hide the client", count(noise.unknown), "", f"≥ {count(noise.needed)}"
    yield "variance of these, by the plan", number(noise.planned, 4), "", f"≥ {number(noise.floor, 4)}"
    yield "epsilon with that noise", bound(noise.epsilon), "", claim


def _attack_rows(run: Finding, attack: Attack) -> Iterator[Row]:
    floor, claim = f"≥ {number(run.noise.floor, 4)}", f"epsilon ≤ {claimed(run.setting.epsilon, 4)}"

    def variance(label: str, value: float, interval: tuple[float, float]) -> Row:
        low, high = (number(end, 4) for end in interval)
        return label, number(value, 4), f"[{low}, {high}]", floor

    yield variance("variance of the noise left", attack.variance, attack.variance_interval)
    if attack.lines > 1:
        yield variance(f"least on any of {attack.lines} lines", attack.least_variance, attack.least_variance_interval)
        yield variance("average over all coordinates", attack.mean_variance, attack.mean_variance_interval)
    yield "proved, as Gaussian DP", "", f"epsilon ≥ {proved(attack.epsilon_lower_gdp, 4)}", claim
    yield "proved, of any mechanism", "", f"epsilon ≥ {proved(attack.epsilon_lower_cp, 4)}", claim


def _test_rows(run: Finding) -> Iterator[Row]:
    likely, messages, shape = f"≥ {number(FALSE_ALARM / KINDS, 2)}", run.messages, run.shape
    if run.masks_p is not None:
        several = len(run.uniformity) + (0 if messages is None else len(messages.tests))
        tests = "masked values are uniform, p" if messages is None else f"its view, {several} tests, p"
        yield tests, number(run.masks_p, 2), "", likely
    if shape.tests:
        name = f"shape of the noise, {counted(len(shape.draws), 'kind')}, {count(shape.tests)} tests, p"
        yield name, number(shape.p_value, 2), "", likely
    if messages is None:
        return
    if messages.same_law_p is not None:
        yield "same as the ideal functionality, p", number(messages.same_law_p, 2), "", likely
    yield "same traffic for both inputs", "yes" if messages.same_traffic else "no", "", "yes"
    if (value := messages.recovered) is not None:
        reach = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) * value.error
        mean = f"{number(value.mean)} [{number(value.mean - reach)}, {number(value.mean + reach)}]"
        yield "the client's value, all rounds' mean", number(value.truth[0]) if value.truth else "", mean, ""


def _recovered(messages: Messages) -> list[Block]:
    found = messages.recovered
    if found is None:
        return []
    pairs = zip(found.truth, found.once, strict=False)
    note = f"Only the client's own noise hides it, with a standard deviation of {number(found.deviation)}."
    columns = {"client's value": lambda pair: number(pair[0]), "recovered in one round": lambda pair: number(pair[1])}
    return table(pairs, columns, note=note)


def _setting(run: Result) -> list[Block]:
    planted = f"A fault was planted: {run.fault}: {run.fault_meaning or 'no meaning is given'}."
    return [
        *([Note(planted)] if run.fault is not None else []),
        Note(f"Coalition: {members(run.setting)}."),
        *fields(run.setting),
        Note(f"The audit took {seconds(run.seconds)}."),
    ]
