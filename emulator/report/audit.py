"""An audit of the privacy claim: the verdict, what the adversary saw in two worlds, and its errors beside the claim."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import msgspec

from emulator.report.bars import Bar, bars
from emulator.report.collusion import members, said
from emulator.report.figures import claimed, count, number, percent, proved, seconds
from emulator.report.markup import Child, table
from emulator.report.page import Page, Section, Verdict, note
from emulator.report.plot import Axis, Point, Series, plot
from emulator.report.types import Amount, Count, Real

_RATES = [*(10 ** (-5 + 3 * place / 30) for place in range(30)), *(place / 200 for place in range(2, 200))]
_NORMAL = NormalDist()
_VERDICTS: dict[str, tuple[str, Verdict]] = {
    "stands": ("The claim of epsilon {} stands", "good"),
    "refuted": ("The claim of epsilon {} is refuted", "bad"),
    "not covered": ("The claim of epsilon {} says nothing of this coalition", "neutral"),
}


class Distributions(msgspec.Struct, frozen=True):
    """How many runs of each world lie between which `edges`."""

    edges: list[Real]
    counts: tuple[list[Count], list[Count]]

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or any(high <= low for low, high in pairwise(self.edges)):
            raise ValueError("distributions.edges do not ascend")
        if {len(one) for one in self.counts} != {len(self.edges) - 1}:
            raise ValueError("distributions.counts are not one for each two edges")


class TradeOff(msgspec.Struct, frozen=True):
    """Error rates of the adversary's guess, for many thresholds."""

    false_positives: list[Amount]
    false_negatives: list[Amount]


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What the page reads of `dca audit --json`."""

    verdict: str
    sentence: str
    epsilon_claimed: Amount
    delta: Amount
    mu_claimed: Amount
    confidence: Amount
    epsilon_lower_gdp: Amount
    epsilon_lower_cp: Amount
    residual_variance: Amount
    residual_variance_interval: tuple[Amount, Amount]
    variance_floor: Amount
    threshold_gdp: Real
    runs: Count
    audited: str
    operating_point: dict[str, Any]
    coalition: dict[str, Any]
    fault: str | None = None
    fault_meaning: str | None = None
    uniformity_p: Real | None = None
    same_law_p: Real | None = None
    seed: int | None = None
    seconds: Amount | None = None
    distributions: Distributions | None = None
    trade_off: TradeOff | None = None


def page(run: Audit) -> Page:
    """The page of an audit."""
    title, verdict = _VERDICTS.get(run.verdict, ("The claim of epsilon {}: " + run.verdict, "neutral"))
    sections = [
        Section("What the adversary sees", [*_distributions(run)]),
        Section("Trade-off of its errors", [*_trade_off(run)]),
        Section("What is proved", [*_proved(run)]),
        Section("Noise that is left", [*_noise(run)]),
        Section("Setting", [*_setting(run)]),
    ]
    return Page(
        kind="Audit of the privacy claim",
        title=title.replace("{}", claimed(run.epsilon_claimed)),
        badge=run.verdict,
        verdict=verdict,
        answer=run.sentence,
        facts=[
            ("claimed", f"epsilon {claimed(run.epsilon_claimed)}, delta {claimed(run.delta)}"),
            ("proved, as Gaussian DP", f"epsilon ≥ {proved(run.epsilon_lower_gdp)}"),
            ("noise left, of what is needed", f"{number(_ratio(run), 4)} times"),
            ("rounds of each world", count(run.runs)),
            ("audited", run.audited),
            ("took", seconds(run.seconds)),
        ],
        sections=[section for section in sections if section.content],
    )


def _ratio(run: Audit) -> float:
    return run.residual_variance / run.variance_floor if run.variance_floor else math.inf


def _distributions(run: Audit) -> Iterator[Child]:
    found = run.distributions
    if found is None:
        yield note("This audit's JSON holds no distributions: make a new one with dca audit --json FILE.")
        return
    tallest = max(map(max, found.counts))
    x = Axis("what is left of the sum (statistic's units)", found.edges[0], found.edges[-1])
    y = Axis("runs", 0.0, 1.08 * max(tallest, 1), say=lambda tick: count(round(tick)))
    series = [
        Series("the victim holds x", _steps(found.edges, found.counts[0]), 0, filled=True),
        Series("the victim holds x'", _steps(found.edges, found.counts[1]), 1, "dashed", filled=True),
    ]
    if x.holds(run.threshold_gdp):
        cut = [(run.threshold_gdp, y.low), (run.threshold_gdp, y.high)]
        series.append(Series("threshold of the guess", cut, -1, "dotted"))
    caption = "The more the two overlap, the less can be learned about the victim."
    yield plot(series, x, y, caption=caption)


def _steps(edges: list[float], counts: list[int]) -> list[Point]:
    """A histogram's outline."""
    corners = [(edge, float(found)) for place, found in enumerate(counts) for edge in edges[place : place + 2]]
    return [(edges[0], 0.0), *corners, (edges[-1], 0.0)]


def _trade_off(run: Audit) -> Iterator[Child]:
    """Dong, Roth and Su (2022): no test of a mu-private mechanism errs below the claim's curve."""
    x = Axis("x' taken for x (false positives)", 0.0, 1.0)
    y = Axis("x taken for x' (false negatives)", 0.0, 1.0)
    allowed = [(0.0, 1.0), *((rate, _gaussian(rate, run.mu_claimed)) for rate in _RATES), (1.0, 0.0)]
    pair = [(rate, _approximate(rate, run.epsilon_claimed, run.delta)) for rate in (0.0, *_RATES, 1.0)]
    claim = f"claim, mu {claimed(run.mu_claimed)}; below it is more than it allows"
    series = [Series(claim, allowed, -1, "dashed", filled=True)]
    series.append(
        Series(f"epsilon {claimed(run.epsilon_claimed)}, delta {claimed(run.delta)} alone", pair, 2, "dotted")
    )
    if run.trade_off is not None:
        found = list(zip(run.trade_off.false_positives, run.trade_off.false_negatives, strict=False))
        series.append(Series("the coalition's guesses", found, 1))
    caption = "Each point of the coalition's curve is one threshold. Clearly below the claim's, it speaks against it."
    yield plot(series, x, y, caption=caption, square=True)


def _gaussian(positives: float, mu: float) -> float:
    """The least FNR that mu leaves at an FPR: Φ(Φ⁻¹(1 - FPR) - mu)."""
    return _NORMAL.cdf(_NORMAL.inv_cdf(1 - positives) - mu)


def _approximate(positives: float, epsilon: float, delta: float) -> float:
    """The least FNR that (epsilon, delta) leaves: max(0, 1 - δ - e^ε FPR, e^-ε (1 - δ - FPR))."""
    steep = 1 - delta - math.exp(min(epsilon, 700.0)) * positives
    return max(0.0, steep, math.exp(-epsilon) * (1 - delta - positives))


def _proved(run: Audit) -> Iterator[Child]:
    rows = [
        Bar("claimed", run.epsilon_claimed, f"epsilon ≤ {claimed(run.epsilon_claimed)}", 1),
        Bar("proved, as Gaussian DP", run.epsilon_lower_gdp, f"epsilon ≥ {proved(run.epsilon_lower_gdp)}", 0),
        Bar("proved, of any mechanism", run.epsilon_lower_cp, f"epsilon ≥ {proved(run.epsilon_lower_cp)}", 2),
    ]
    yield bars(
        rows, caption=f"Lower bounds at {percent(run.confidence)} confidence; beyond the claim they speak against it."
    )
    tested = {
        "masked values that it sees are uniform": run.uniformity_p,
        "real rounds have the law of the ideal functionality": run.same_law_p,
    }
    lines = [(name, number(p, 2)) for name, p in tested.items() if p is not None]
    if lines:
        yield table(("test", "p-value"), lines)


def _noise(run: Audit) -> Iterator[Child]:
    low, high = run.residual_variance_interval
    rows = [
        Bar("found", run.residual_variance, f"{number(run.residual_variance, 4)}", 0),
        Bar("floor: what the claim needs", run.variance_floor, f"{number(run.variance_floor, 4)}", 1),
    ]
    interval = f"{number(low, 4)} to {number(high, 4)} with {percent(run.confidence)} confidence"
    yield bars(rows, caption=f"Variance of the noise that the coalition cannot remove, in squared units: {interval}.")


def _setting(run: Audit) -> Iterator[Child]:
    if run.fault is not None:
        yield note(f"A fault was planted: {run.fault}: {run.fault_meaning or 'no meaning is given'}.")
    yield note(f"Coalition: {members(run.coalition)}.")
    yield table(("operating point", "value"), [(key, said(value)) for key, value in run.operating_point.items()])
