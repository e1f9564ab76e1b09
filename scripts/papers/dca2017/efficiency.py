"""Efficiency of Theorems 3 and 4 (DCA paper, supplement, section 3): how fast private estimates improve with n.

    ‖θ_DP - θ_NP‖₁ = O(1/n)        the cost of privacy: a sum has the same noise, however many values it adds
    ‖θ_NP - θ‖₁    = O(1/√n)       the sampling error, which any estimate has; the figure shows it for comparison

Theorem 3 is about the posterior mean of a Gaussian mean, for values with ‖x‖₁ <= B. Theorem 4 is about the posterior
mean of linear regression coefficients, supplement eqs. (6) and (7): plugged in, as in the theorem, and with the
noise-aware repair. Both theorems hold "for all n >= N". For Theorem 3 that is any n. For Theorem 4, slopes are fitted
from the n at which the noise is small beside the sum, for each ε. That rule uses no estimate (`fit_from`); the figure
shows all n. Starting at a tenth or three times of that n changes no slope by more than 0.02. Over all n, slopes are
-1.2 to -1.8, and -0.8 to -0.9 with the noise-aware repair.

The sums come from the ideal functionality: the protocol's statistics on its grid, and N_Z(0, n S) for all n clients'
exact shares at once (`emulator.ideal`). The sum of a data set is computed once, in chunks, and reused for many draws of
the noise at every ε.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from dca_proto.aggregate import RoundRequest
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import FRACTION_BITS, JobTerms
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.params import Limits
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.statistics.contribution import joint_contribution
from inference.models.linear.closed_form import SufficientStatistics, posterior, summarise, unpack
from inference.problem import Array, stream
from papers.experiment import Experiment, Result
from papers.picture import COLOURS, GREY, MARKERS, drawing
from papers.runner import Check, table

EPSILONS, DELTA = (0.3, 1.0, 3.0), 1e-5
COMPUTES = tuple(bytes([index]) * ID_BYTES for index in range(2))
SMALL = 0.1  # the fit begins where the noise is this part of the sum
CHUNK = 100_000  # rows at once
BOOTSTRAPS = 1000

MEAN = np.array([0.1, -0.05, 0.02, 0.0, -0.1])
MEAN_SD, L1_BOUND = 0.1, 1.0
COEFFICIENTS = np.array([0.8, -0.4, 0.2])
FEATURE_SD, RESIDUAL_SD = 0.25, 0.1
PRIOR = 1.0  # precision of every coefficient; for Theorem 3, the number of values that the prior mean counts for
MEAN_NAME, REGRESSION_NAME, AWARE_NAME = "mean", "regression", "noise-aware regression"
MODELS = {MEAN_NAME: "Theorem 3: mean of a bounded Gaussian", REGRESSION_NAME: "Theorem 4: linear regression"}
MODEL_OF = {MEAN_NAME: MEAN_NAME, REGRESSION_NAME: REGRESSION_NAME, AWARE_NAME: REGRESSION_NAME}
"""The model of each estimator."""
TRUTHS = {MEAN_NAME: MEAN, REGRESSION_NAME: COEFFICIENTS}
SLOPE, TOLERANCE = -1.0, 0.1
SIZES = tuple(round(10 ** (2 + quarter / 4)) for quarter in range(17))  # 1e2 to 1e6
ERROR_MAX = 10.0  # top of the plot; plugged-in coefficients of an indefinite matrix lie far above it


class Cell(NamedTuple):
    """One data set."""

    model: str  # a key of `MODELS`
    n: int  # rows
    dataset: int  # number of the data set
    noises: int  # draws of the noise
    seed: int


def work(cell: Cell) -> dict[str, Any]:
    """Return the errors ‖θ_DP - θ_NP‖₁ of one data set by estimator and ε, and its sampling error."""
    rng = stream(cell.seed, f"efficiency/{cell.model}/{cell.n}/{cell.dataset}")
    errors = defaultdict[str, list[Any]](list)
    plans = [plan_of(request_of(cell.model), cell.n, epsilon) for epsilon in EPSILONS]
    total, exact = _sums(cell, plans[0], rng)
    reference = estimate(exact, cell.n)
    for plan in plans:
        noise = EXACT.sample(cell.n * plan.noise_variance, cell.noises * plan.dimension, rng.bytes(KEY_BYTES))
        values = np.ldexp(total + noise.reshape(cell.noises, plan.dimension), -FRACTION_BITS)
        for name, estimates in private(cell, values, cell.n * plan.noise_variance * plan.unit**2).items():
            errors[name].append(np.abs(estimates - reference).sum(axis=-1).tolist())
    sampling = float(np.abs(reference - TRUTHS[cell.model]).sum())
    return {"model": cell.model, "n": cell.n, "errors": errors, "sampling": sampling}


def request_of(model: str) -> RoundRequest:
    d = len(MEAN) if model == MEAN_NAME else len(COEFFICIENTS) + 1
    columns = {"columns": [f"x{j}" for j in range(d)], "centre": [0.0] * d, "scale": [1.0] * d, "bound": [1.0] * d}
    if model == MEAN_NAME:
        return RoundRequest("sum", {**columns, "radius": L1_BOUND})
    return RoundRequest("regression", columns)


def plan_of(request: RoundRequest, n: int, epsilon: float) -> ValidatedRound:
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=n, tolerate=0, computes=COMPUTES)
    return terms.open(request, bytes(ID_BYTES)).draft(EXACT, Limits())[1]


def draw(model: str, rng: np.random.Generator, rows: int) -> Array:
    """Draw rows of Theorem 3, scaled down to ‖x‖₁ <= B if they are outside, which is rare.

    For Theorem 4, draw features and the target, whose bounds of 1 are at least four standard deviations away.
    """
    if model == MEAN_NAME:
        x = MEAN + MEAN_SD * rng.standard_normal((rows, len(MEAN)))
        return np.asarray(x / np.maximum(np.abs(x).sum(axis=1, keepdims=True) / L1_BOUND, 1.0))
    x = FEATURE_SD * rng.standard_normal((rows, len(COEFFICIENTS)))
    y = x @ COEFFICIENTS + RESIDUAL_SD * rng.standard_normal(rows)
    return np.asarray(np.clip(np.column_stack([x, y]), -1, 1))


def estimate(sums: list[Array], n: int) -> Array:
    """Return the posterior mean given exact sums of n rows: Σ x for Theorem 3, xx and xy for Theorem 4."""
    if len(sums) == 1:
        return np.asarray(sums[0] / (PRIOR + n))
    xx, xy = sums
    return posterior(SufficientStatistics(n, xx, xy), PRIOR, RESIDUAL_SD**2).mean


def private(cell: Cell, values: Array, noise_variance: float) -> dict[str, Array]:
    """Return posterior means by estimator, given noisy sums ``(noises, dimension)``."""
    if cell.model == MEAN_NAME:
        return {MEAN_NAME: values / (PRIOR + cell.n)}
    parts = [unpack(value, len(COEFFICIENTS), cell.n, noise_variance) for value in values]
    xx, xy = np.stack([part.xx for part in parts]), np.stack([part.xy for part in parts])
    noisy = SufficientStatistics(cell.n, xx, xy, None, noise_variance)
    repairs = {REGRESSION_NAME: "nearest-psd", AWARE_NAME: "noise-aware"}
    return {name: posterior(noisy, PRIOR, RESIDUAL_SD**2, repair=repair).mean for name, repair in repairs.items()}


def _sums(cell: Cell, plan: ValidatedRound, rng: np.random.Generator) -> tuple[NDArray[np.int64], list[Array]]:
    """Draw a data set; return the sum of the clients' contributions in grid units, and the exact sums."""
    total, exact = np.zeros(plan.dimension, dtype=np.int64), [np.zeros(())] * (1 if cell.model == MEAN_NAME else 2)
    for start in range(0, cell.n, CHUNK):
        rows = draw(cell.model, rng, min(CHUNK, cell.n - start))
        total += joint_contribution(plan.statistic, rows[:, None], 0, FRACTION_BITS)
        part = summarise(rows[:, :-1], rows[:, -1])
        own = [rows.sum(axis=0)] if cell.model == MEAN_NAME else [part.xx, part.xy]
        exact = [one + more for one, more in zip(exact, own, strict=True)]
    return total, exact


def fit_from(model: str, epsilon: float) -> float:
    """Return the n from which slopes are fitted: any n for Theorem 3, whose estimate is linear in the noise.

    For Theorem 4, it is where the largest eigenvalue of the noise in xx, about 2σ√d, is `SMALL` times the smallest
    eigenvalue of E[xx] = n FEATURE_SD².
    """
    if model == MEAN_NAME:
        return 1.0
    plan = plan_of(request_of(model), 10**6, epsilon)
    sigma = math.sqrt(10**6 * plan.noise_variance) * plan.unit
    return 2 * sigma * math.sqrt(len(COEFFICIENTS)) / (SMALL * FEATURE_SD**2)


class Line(NamedTuple):
    """One estimator's errors at one ε over n, and the slope of their medians in the log-log plot."""

    estimator: str
    epsilon: float
    n: list[int]
    median: list[float]  # over data sets and noise, by n
    low: list[float]  # low, high: the 10 and 90 % quantiles
    high: list[float]
    fitted_from: int  # the first n of the fit
    slope: float
    slope_low: float  # slope_low, slope_high: 95 % bootstrap interval over data sets
    slope_high: float
    constant: float  # n times the error at the largest n


class Results(NamedTuple):
    """All lines, and by model the sampling error: every n, the median at each, and the slope."""

    lines: list[Line]
    sampling: Mapping[str, tuple[list[int], list[float], float]]


def lines(results: Sequence[Result], seed: int) -> list[Line]:
    rng = stream(seed, "efficiency/bootstrap")
    found = []
    for estimator in MODEL_OF:
        errors = _by_n([(one["n"], one["errors"][estimator]) for one in results if estimator in one["errors"]])
        found += [_line(errors, estimator, index, rng) for index in range(len(EPSILONS)) if errors]
    return found


def _by_n(found: Sequence[tuple[int, Any]]) -> dict[int, Array]:
    """Return the values of each n, ascending, with the data sets on the first axis."""
    return {n: np.array([one for other, one in found if other == n]) for n in sorted({n for n, _ in found})}


def _line(errors: dict[int, Array], estimator: str, index: int, rng: np.random.Generator) -> Line:
    own, n = [of_n[:, index] for of_n in errors.values()], np.array(list(errors), float)
    low, median, high = np.array([np.quantile(one, (0.1, 0.5, 0.9)) for one in own]).T
    places = np.flatnonzero(n >= fit_from(MODEL_OF[estimator], EPSILONS[index])).tolist()
    slope, again = float(_slopes(n[places], median[places])), []
    for place in places:  # bootstrap: draw data sets with replacement, then draws of the noise of each
        datasets, noises = own[place].shape
        chosen = rng.integers(datasets, size=(BOOTSTRAPS, datasets, 1))
        drawn = own[place][chosen, rng.integers(noises, size=(BOOTSTRAPS, datasets, noises))]
        again.append(np.median(drawn, axis=(1, 2)))
    ends: tuple[float, float] = tuple(np.quantile(_slopes(n[places], np.stack(again)), (0.025, 0.975)).tolist())
    curves, constant = (median.tolist(), low.tolist(), high.tolist()), float(n[-1] * median[-1])
    return Line(estimator, EPSILONS[index], list(errors), *curves, int(n[places[0]]), slope, *ends, constant)


def _slopes(n: Array, errors: Array) -> Array:
    """Return the slopes of least-squares lines through the logarithms; errors have shape ``(sizes, ...)``."""
    return np.asarray(np.polyfit(np.log(n), np.log(errors), 1)[0])


def sampling(results: Sequence[Result], model: str) -> tuple[list[int], list[float], float]:
    """Return every n, the non-private estimate's median error over data sets at each, and the slope over all n."""
    by_n = _by_n([(one["n"], one["sampling"]) for one in results if one["model"] == model])
    n, medians = list(by_n), [float(np.median(errors)) for errors in by_n.values()]
    return n, medians, float(_slopes(np.array(n, float), np.array(medians)))


@dataclass(frozen=True, kw_only=True)
class Efficiency(Experiment[Cell, Results]):
    """Theorems 3 and 4 of the DCA paper: error of private against non-private estimates over n, log-log.

    Takes about a minute on two idle cores. If the theorems hold, the slope of the medians is -1; that of the sampling
    error is -1/2. Exit code 4 if a slope is off by more than 0.1.
    """

    KIND, LABEL, QUICK_CHECKS, DEPENDS = "efficiency", "efficiency", True, ()
    QUICK: ClassVar = {"sizes": SIZES[::2][:-1], "datasets": 6}  # to 3e5

    sizes: tuple[int, ...] = SIZES
    datasets: int = 20
    noises: int = 25

    def cells(self) -> list[Cell]:
        sets = range(self.datasets)
        return [Cell(m, n, k, self.noises, self.seed) for n in reversed(self.sizes) for m in MODELS for k in sets]

    def work(self, cell: Cell) -> Result:
        return work(cell)

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> Results:
        return Results(lines(results, self.seed), {model: sampling(results, model) for model in MODELS})

    def notes(self, found: Results) -> dict[str, Any]:
        return {"delta": DELTA, "lines": [line._asdict() for line in found.lines], "sampling": found.sampling}

    def tables(self, found: Results) -> Iterator[Table]:
        title = f"error of private against non-private estimates, δ = {at_least(DELTA)}"
        shown = table(title, "estimator", "ε", "from n", "slope", "95 % interval", "n·error")
        for line in found.lines:
            words = (f"{line.slope:.3f}", f"{line.slope_low:.3f} to {line.slope_high:.3f}", f"{line.constant:.3g}")
            shown.add_row(line.estimator, at_least(line.epsilon), str(line.fitted_from), *words)
        yield shown

    def checks(self, found: Results) -> Iterator[Check]:
        for line in found.lines:
            name, asked = f"{line.estimator}, ε = {at_least(line.epsilon)}", f"slope within {TOLERANCE} of {SLOPE:g}"
            yield Check(name, asked, f"{line.slope:.3f}", abs(line.slope - SLOPE) <= TOLERANCE)

    def draw(self, found: Results, path: Path) -> None:
        with drawing(path, columns=2, size=(5.5, 4.8)) as panels:
            for axes, (model, title) in zip(panels[0], MODELS.items(), strict=True):
                n, medians, slope = found.sampling[model]
                axes.plot(n, medians, color=GREY, linestyle=":", label=f"sampling error, slope {slope:.2f}")
                for line in found.lines:
                    if MODEL_OF[line.estimator] == model:
                        _curve(axes, line)
                axes.set(xscale="log", yscale="log", xlabel="n", title=title)
                axes.set_ylim(top=ERROR_MAX if model == REGRESSION_NAME else None)
                axes.legend(frameon=False, fontsize=8, loc="lower left")
            panels[0, 0].set_ylabel("‖private - non-private‖₁: median, 10 to 90 %")


def _curve(axes: Any, line: Line) -> None:
    """Draw a line: markers are filled in the range of the fit; the noise-aware repair is dashed and has no band."""
    place = EPSILONS.index(line.epsilon)
    colour, first = COLOURS[place], line.n.index(line.fitted_from)
    if line.estimator == AWARE_NAME:
        label = "dashed: noise-aware repair" if place == len(EPSILONS) - 1 else None
        axes.plot(line.n, line.median, color=colour, linestyle="--", linewidth=1, label=label)
        return
    style = {"color": colour, "marker": MARKERS[place], "markersize": 4}
    label = f"ε = {at_least(line.epsilon)}, slope {line.slope:.3f}"
    axes.fill_between(line.n, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    hollow = {**style, "markerfacecolor": "white", "linewidth": 1}
    axes.plot(line.n[: first + 1], line.median[: first + 1], **hollow)
    if place == len(EPSILONS) - 1:
        axes.plot([], [], label="open: too few rows for the slope", **hollow | {"color": GREY, "linestyle": ""})
    axes.plot(line.n[first:], line.median[first:], label=label, linewidth=1.5, **style)
