"""The page of an audit: the verdict, what the adversary saw in two worlds, and its errors against the claim."""

from __future__ import annotations

import math

import numpy as np

from emulator.audit.bounds import approximate_trade_off, gaussian_trade_off
from emulator.audit.finding import FALSE_ALARM, KINDS, Finding, Result
from emulator.report.blocks import Block, Note, Page, Table, Verdict, fields
from emulator.report.charts import Axis, Point, Series, lines
from emulator.report.collusion import members
from emulator.report.figures import claimed, count, number, percent, proved, seconds

Row = tuple[str, str, str, str]
_EXPLAINED = (
    "Noise left is the noise that the coalition cannot remove, on the line that it attacks, in squared units. Bounds "
    "on epsilon are lower bounds; one above the claim is evidence against it."
)
_RATES = np.concatenate([np.logspace(-5, -2, 30), np.linspace(0.01, 0.995, 198)])
_VERDICTS: dict[str, tuple[str, Verdict]] = {
    "stands": ("The claim of epsilon {} stands", "good"),
    "refuted": ("The claim of epsilon {} is refuted", "bad"),
    "not covered": ("The claim of epsilon {} does not cover this coalition", "neutral"),
}


def page(run: Result) -> Page:
    """Return the page of an audit."""
    title, verdict = _VERDICTS.get(run.verdict, ("The claim of epsilon {}: " + run.verdict, "neutral"))
    ratio = run.residual_variance / run.variance_floor if run.variance_floor else math.inf
    return Page(
        kind="Audit of the privacy claim",
        title=title.replace("{}", claimed(run.epsilon_claimed)),
        badge=run.verdict,
        verdict=verdict,
        answer=run.sentence,
        facts=[
            ("claimed", f"epsilon {claimed(run.epsilon_claimed)}, delta {claimed(run.delta)}"),
            ("proved, as Gaussian DP", f"epsilon ≥ {proved(run.epsilon_lower_gdp)}"),
            ("noise variance left, relative to the floor", f"{number(ratio, 4)} times"),
            ("rounds of each world", count(run.runs)),
            ("audited", run.audited),
        ],
        sections=[
            ("What the adversary sees", _distributions(run)),
            ("Trade-off of its errors", _trade_off(run)),
            ("Figures", [*figures(run), Note(_EXPLAINED)]),
            ("Setting", _setting(run)),
        ],
    )


def _distributions(run: Result) -> list[Block]:
    edges, (zero, one) = run.distributions.edges, run.distributions.counts
    tallest = float(max(1, *zero, *one))
    series = [
        Series("the victim holds x", _steps(edges, zero), 0, filled=True),
        Series("the victim holds x'", _steps(edges, one), 1, "--", filled=True),
        Series("threshold of the guess", [(run.threshold_gdp, at) for at in (0.0, tallest)], -1, ":"),
    ]
    x = Axis("the rest of the sum (statistic's units)", low=edges[0], high=edges[-1])
    y = Axis("runs", low=0.0, say=lambda tick: count(round(tick)))
    return [lines(series, x, y, caption="The more the two overlap, the less the coalition learns about the victim.")]


def _steps(edges: list[float], counts: list[int]) -> list[Point]:
    corners = [(edge, float(runs)) for place, runs in enumerate(counts) for edge in edges[place : place + 2]]
    return [(edges[0], 0.0), *corners, (edges[-1], 0.0)]


def _trade_off(run: Result) -> list[Block]:
    """Return the chart of error rates. No test of a mu-private mechanism lies below the claim's curve.

    Dong, Roth and Su (2022).
    """
    allowed = [(0.0, 1.0), *_points(gaussian_trade_off(_RATES, run.mu_claimed)), (1.0, 0.0)]
    with np.errstate(over="ignore"):
        pair = _points(approximate_trade_off(_RATES, run.epsilon_claimed, run.delta))
    found = list(zip(run.trade_off.false_positives, run.trade_off.false_negatives, strict=False))
    series = [
        Series(f"claim, mu {claimed(run.mu_claimed)}; it allows none below", allowed, -1, "--", filled=True),
        Series(f"epsilon {claimed(run.epsilon_claimed)}, delta {claimed(run.delta)} alone", pair, 2, ":"),
        Series("the coalition's guesses", found, 1),
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
    floor, claim = f"≥ {number(run.variance_floor, 4)}", f"epsilon ≤ {claimed(run.epsilon_claimed, 4)}"
    likely = f"≥ {number(FALSE_ALARM / KINDS, 2)}"

    def variance(label: str, value: float, interval: tuple[float, float]) -> Row:
        low, high = (number(end, 4) for end in interval)
        return label, number(value, 4), f"[{low}, {high}]", floor

    rows = [variance("variance of the noise left", run.residual_variance, run.residual_variance_interval)]
    if run.lines > 1:
        least = f"least on any of {run.lines} lines"
        rows.append(variance(least, run.least_variance, run.least_variance_interval))
    rows.append(("proved, as Gaussian DP", "", f"epsilon ≥ {proved(run.epsilon_lower_gdp, 4)}", claim))
    rows.append(("proved, of any mechanism", "", f"epsilon ≥ {proved(run.epsilon_lower_cp, 4)}", claim))
    if run.uniformity_p is not None:
        rows.append(("masked values are uniform, p", number(run.uniformity_p, 2), "", likely))
    if run.same_law_p is not None:
        rows.append(("same as the ideal functionality, p", number(run.same_law_p, 2), "", likely))
    return [Table(("", "found", f"{percent(run.confidence)} bound or interval", "claim"), rows)]


def _setting(run: Result) -> list[Block]:
    planted = f"A fault was planted: {run.fault}: {run.fault_meaning or 'no meaning is given'}."
    return [
        *([Note(planted)] if run.fault is not None else []),
        Note(f"Coalition: {members(run.coalition)}."),
        *fields(run.operating_point),
        Note(f"The audit took {seconds(run.seconds)}."),
    ]
