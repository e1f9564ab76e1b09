"""When is each approach worth its cost? One regression at the same (ε, δ), by who adds the noise.

    local                  every client's report has the full noise; the sum has n times its variance
    DCA, T = 0             the protocol's sum without dropouts: N/(N - 1) times the trusted aggregator's variance
    DCA, T = 10 %          a tenth of the clients may drop out, and does: a tenth fewer rows, and about that variance
    trusted aggregator     one draw of the noise

All four share statistic, weights, rows and prior. Each release gets two fits:

    noise-aware            the noise is in the model (`inference.models.fit.regression`)
    noise-naive            the sums are taken as exact: the conjugate posterior, with the nearest sums that can be sums
                           of squares (`inference.models.linear.closed_form`, spread as published). The noise-aware
                           model without its noise lacks this repair, and chains cannot move in its density.

There are two kinds of data.

- *simulated*, at two numbers of clients: 2 features, normal with standard deviation 0.3 and correlation 0.3, a target
  with residuals of 0.2, coefficients drawn from the prior for each repeat. Bounds are ±1 and ±2; few values lie beyond
  (0.1 % of the features'). Coverage is that of the coefficients' central intervals. The error is the expected one on
  new rows of the same law, in closed form.
- *wine* in the valid setting of Figure 4 (`regression_data`), with fewer repeats, because its fits take longer. The
  truth is unknown: coverage is that of the predictive central intervals of the held-out wines.

A repeat has the same rows for all ε and all four approaches, so that they are compared in pairs. Each cell draws its
own noise.

**Intervals** are Student's over the repeats, which are independent, each at the level 1 - 0.01/K for K intervals of one
kind. So all of a kind hold together with a probability of about 99 % (Bonferroni). One repeat covers several dependent
numbers; its mean coverage counts as one observation. An approach **is near no privacy** if its mean error is at most
`NEAR` (relative) above the non-private one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, sqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace
from rich.table import Table

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.jobs.job import FRACTION_BITS, JobTerms
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.statistics import Regression
from dca_proto.statistics.weights import best_regression_weights
from emulator.ideal import IdealSwarm
from inference.bounds import PUBLISHED_WITH_ROWS
from inference.draws import R_HAT_REQUIRED
from inference.jobs.estimates import COEFFICIENTS, INTERCEPT
from inference.models import fit as fits
from inference.models.linear.aggregate_stats import statistics_of
from inference.models.linear.closed_form import NEAREST_PSD, posterior
from inference.models.predictive import RESIDUAL_SD as RESIDUAL
from inference.models.priors import RegressionPrior
from inference.problem import Array, stream
from inference.releases.terms import GAUSSIAN
from papers import picture
from papers.experiment import Result, data_option, joint_interval, option, over_epsilon
from papers.ldp2021.column_fits import RepeatedFits, joined, mixed, parts
from papers.ldp2021.regression_data import VALID, WINE, Choices, problem, split
from papers.ldp2021.regression_methods import TARGET, statistic_of
from papers.runner import Check, positive, table

LOCAL, DCA, DCA_DROPS, TRUSTED = TRUST = ("local", "DCA, T = 0", "DCA, T = 10 %", "trusted aggregator")
AWARE, NAIVE = FITS = ("noise-aware", "noise-naive")
SERIES = [(trust, name) for trust in TRUST for name in FITS]
WITHOUT = ("without privacy", "without a model")
SIMULATED = {"simulated, 1,000 clients": 1000, "simulated, 10,000 clients": 10_000}
WINES = "wine, 5,198 clients"
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
DELTA = 1e-5
LEVELS = (0.5, 0.9)
SHOWN = 1  # index of the level in the figure: 90 %
FEATURES, FEATURE_SD, CORRELATION, RESIDUAL_SD, REACH = 2, 0.3, 0.3, 0.2, 2.0
ROOT = FEATURE_SD * np.linalg.cholesky(
    np.full((FEATURES, FEATURES), CORRELATION) + (1 - CORRELATION) * np.eye(FEATURES)
)
PRIOR = RegressionPrior(coefficient_sd=0.5, intercept_sd=0.2, feature_sd=0.5, feature_mean_sd=0.2, residual_sd=0.5)
REPEATS, PART = 30, 5
WINE_PART = 4  # wine has one repeat for so many of simulated data
NAIVE_DRAWS = 2000
DROPPED = 0.1
LEVEL, NEAR, SAME = 0.99, 0.1, 0.05
STYLES = {who: {"color": picture.COLOURS[at], "marker": picture.MARKERS[at]} for at, who in enumerate(TRUST)}
LINES: Mapping[str, Mapping[str, Any]] = {
    AWARE: {"linestyle": "-"},
    NAIVE: {"linestyle": ":", "markerfacecolor": "white"},
}


class Cell(NamedTuple):
    """``number`` repeats, from the ``first`` on, for some data, one of `TRUST`, and an ε."""

    data: str
    trust: str
    epsilon: float
    first: int
    number: int

    def __str__(self) -> str:
        last = self.first + self.number - 1
        return f"{self.data}, {self.trust}, epsilon {self.epsilon:g}, repeats {self.first} to {last}"


class Rows(NamedTuple):
    """One repeat's rows, in the units of the model."""

    table: Array  # of all clients, the target last, shape (N, d + 1)
    statistic: Regression
    prior: RegressionPrior
    truth: Array | None = None  # intercept and coefficients, (d + 1,), if they are known
    tested: Array | None = None  # held-out rows, the target last, if the truth is unknown
    unit: float = 1.0  # of the target


class Series(NamedTuple):
    """All R repeats of one fit at an ε."""

    error: Array  # test error, (R,)
    covered: Array  # coverage, (R, levels)
    r_hat: Array  # (R,)


class Results(NamedTuple):
    """The results of all cells."""

    series: dict[tuple[str, str, float, str], Series]  # by data, who adds the noise, ε and fit
    without: dict[str, Array]  # errors of both of `WITHOUT` by data, (2, repeats)


@dataclass(frozen=True, kw_only=True)
class Trust(RepeatedFits[Cell, Results]):
    """Test error and coverage over ε of local reports, DCA sums and a trusted aggregator.

    Takes about three quarters of an hour on two idle cores; --quick omits wine. Exit code 4 if noise-aware coverage is
    not nominal, if noise-naive coverage at the smallest ε is, if DCA is nowhere ahead of local reports, if it differs
    from the trusted aggregator, or if chains have not mixed.
    """

    KIND, LABEL = "ldp-or-dca", "who adds the noise"
    QUICK: ClassVar = {"repeats": 4, "epsilons": (0.3, 3.0), "iterations": 400, "kinds": tuple(SIMULATED)}

    data_folder: Path | None = data_option()
    repeats: int = option(REPEATS, f"number of repeats (default {REPEATS})", type=positive, metavar="R")
    epsilons: tuple[float, ...] = EPSILONS
    iterations: int = 600
    kinds: tuple[str, ...] = (*SIMULATED, WINES)

    def prepare(self) -> None:
        if WINES in self.kinds:
            problem(WINE, self.data_folder)

    def cells(self) -> list[Cell]:
        repeats = {kind: -(-self.repeats // WINE_PART) if kind == WINES else self.repeats for kind in self.kinds}
        return [
            Cell(kind, trust, epsilon, *part)
            for kind in self.kinds
            for trust in TRUST
            for epsilon in self.epsilons
            for part in parts(repeats[kind], PART)
        ]

    def once(self, cell: Cell, repeat: int) -> Result:
        rows, rng = self.rows_of(cell.data, repeat), stream(self.seed, f"local/trust/{cell}/{repeat}")
        released, found = release(rows, cell.trust, cell.epsilon, rng), {}
        for name in FITS:
            theta, residual_sd, r_hat = (_aware if name == AWARE else _naive)(rows, released, self.iterations, rng)
            error, covered = _error(rows, theta.mean(axis=0)), _covered(rows, theta, residual_sd, rng)
            found[name] = {"error": error, "covered": covered, "r_hat": r_hat}
        design, y = np.insert(rows.table[:, :-1], 0, 1.0, axis=1), rows.table[:, -1]
        exact = np.asarray(np.linalg.lstsq(design, y, rcond=None)[0], float)
        no_model = np.r_[y.mean(), np.zeros(design.shape[1] - 1)]
        return found | {WITHOUT[0]: _error(rows, exact), WITHOUT[1]: _error(rows, no_model)}

    def rows_of(self, kind: str, repeat: int) -> Rows:
        """Return a repeat's rows; wine's test features are clipped to the ball of radius 1, as clients clip theirs."""
        if kind != WINES:
            return simulated(SIMULATED[kind], stream(self.seed, f"local/trust/rows/{kind}/{repeat}"))
        wines = split(WINE, self.data_folder, VALID, repeat, self.seed, Choices())
        statistic = statistic_of(wines, label=False, weighted=True)
        table, tested = (np.column_stack(one) for one in ((wines.X, wines.y), (wines.seen_test, wines.y_test)))
        return Rows(table, statistic, RegressionPrior(), None, tested, wines.unit)

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> Results:
        by_key = joined(cells, results)
        series = {
            (*key, fit): Series(*(np.array([one[name] for one in own[fit]]) for name in Series._fields))
            for key, own in by_key.items()
            for fit in FITS
        }
        first = {kind: by_key[kind, LOCAL, self.epsilons[0]] for kind in self.kinds}
        return Results(series, {kind: np.array([own[name] for name in WITHOUT]) for kind, own in first.items()})

    def pays_from(self, found: Results, kind: str, trust: str, fit: str) -> float | None:
        """Return the smallest ε from which on the error is near the non-private one; None if it never is."""
        limit = (1 + NEAR) * float(found.without[kind][0].mean())
        near = [float(found.series[kind, trust, epsilon, fit].error.mean()) <= limit for epsilon in self.epsilons]
        last = max((place for place, one in enumerate(near) if not one), default=-1)
        return self.epsilons[last + 1] if last + 1 < len(near) else None

    def notes(self, found: Results) -> dict[str, Any]:
        return {"levels": list(LEVELS), "not_private_because": {WINES: [PUBLISHED_WITH_ROWS]}}

    def tables(self, found: Results) -> Iterator[Table]:
        levels = " and ".join(f"{level:.0%}" for level in LEVELS)
        for kind in self.kinds:
            private, nothing = found.without[kind].mean(axis=1)
            words = f"({private:.3f} without privacy, {nothing:.3f} without a model)"
            title = f"{kind}: test RMSE, mean ± standard deviation {words}"
            yield self._table(found, kind, title, lambda one: f"{one.error.mean():.3f} ± {one.error.std():.3f}")
            what = "held-out targets" if kind == WINES else "coefficients"
            title = f"{kind}: coverage of {what} by central {levels} intervals"
            yield self._table(found, kind, title, lambda one: " / ".join(f"{c:.2f}" for c in one.covered.mean(axis=0)))
        title = f"smallest ε from which on the mean error is at most {NEAR:.0%} above that without privacy"
        shown = table(title, "noise by, model", *self.kinds)
        for trust, fit in SERIES:
            epsilons = [self.pays_from(found, kind, trust, fit) for kind in self.kinds]
            shown.add_row(f"{trust}, {fit}", *("never" if one is None else f"{one:g}" for one in epsilons))
        yield shown

    def _table(self, found: Results, kind: str, title: str, words: Callable[[Series], str]) -> Table:
        shown = over_epsilon(title, "noise by, model", self.epsilons)
        for trust, fit in SERIES:
            own = (found.series[kind, trust, epsilon, fit] for epsilon in self.epsilons)
            shown.add_row(f"{trust}, {fit}", *map(words, own))
        return shown

    def checks(self, found: Results) -> Iterator[Check]:
        looked_at = list(_coverages(found, AWARE))
        if looked_at:
            off = [f"{words}: {mean:.2f}" for words, level, (mean, low, high) in looked_at if not low <= level <= high]
            asked = f"all {len(looked_at)} nominal by simultaneous {LEVEL:.0%} intervals"
            yield Check(f"{AWARE} coverage", asked, "; ".join(off) or "all", not off)
        least = f"ε = {at_least(min(self.epsilons))},"
        looked_at = [one for one in _coverages(found, NAIVE) if least in one[0]]
        if looked_at:
            missed = [words for words, level, (_, _, high) in looked_at if high >= level]
            most = max(mean / level for _, level, (mean, _, _) in looked_at)
            asked = f"whole intervals below nominal, whoever adds the noise, at {least[:-1]}"
            words_found = "; ".join(missed) or f"at most {most:.0%} of nominal"
            yield Check(f"{NAIVE} is overconfident", asked, words_found, not missed)
        yield from self._check_errors(found)
        mixing = [(one.r_hat.max(), ", ".join(map(str, key))) for key, one in found.series.items() if key[3] == AWARE]
        r_hat, words = max(mixing)
        asked = f"below {R_HAT_REQUIRED:g}, {AWARE}"
        yield Check("R-hat", asked, f"{r_hat:.3f} at most ({words})", r_hat < R_HAT_REQUIRED)

    def _check_errors(self, found: Results) -> Iterator[Check]:
        """Compare DCA's errors with those of local reports and of the trusted aggregator."""
        count, apart = len(self.kinds) * len(self.epsilons), []
        for kind in self.kinds:
            words: dict[str, list[str]] = {"ahead": [], "behind": []}
            for epsilon in self.epsilons:
                dca, local, trusted = (found.series[kind, who, epsilon, AWARE].error for who in (DCA, LOCAL, TRUSTED))
                _, low, high = joint_interval(local - dca, LEVEL, count)
                words["ahead"] += [at_least(epsilon)] * (low > 0)
                words["behind"] += [at_least(epsilon)] * (high < 0)
                mean, low, high = joint_interval(np.log(dca / trusted), LEVEL, count)
                apart += [f"{kind}, ε = {at_least(epsilon)}: {math.exp(mean):.3f}"] * (low > SAME or high < -SAME)
            at = "; ".join(f"{name} at ε = {', '.join(own)}" for name, own in words.items() if own)
            holds = bool(words["ahead"]) and not words["behind"]
            yield Check(f"{DCA} and {LOCAL} reports, {kind}", "ahead at some ε, behind at none", at or "open", holds)
        asked = f"no ratio of errors surely more than {SAME:.0%} from 1"
        yield Check(f"{DCA} and the {TRUSTED}", asked, "; ".join(apart) or "none", not apart)

    def draw(self, found: Results, path: Path) -> None:
        title = "Linear regression at the same (ε, δ), by who adds the noise"
        with picture.drawing(path, rows=2, columns=len(self.kinds), size=(5.0, 3.9), title=title) as panels:
            for kind, (above, below) in zip(self.kinds, panels.T, strict=True):
                self._curves(above, found, kind, lambda one: one.error.mean())
                private, nothing = found.without[kind].mean(axis=1)
                above.axhline(private, color=picture.BLACK, linestyle="--", linewidth=1.2, label="no privacy", zorder=1)
                picture.zero_line(above, nothing, "no model")
                above.set(yscale="log", title=kind, ylim=(0.93 * private, 3 * nothing))
                above.yaxis.set_major_formatter("{x:g}")
                above.yaxis.set_minor_formatter("{x:g}")
                self._curves(below, found, kind, lambda one: 100 * one.covered[:, SHOWN].mean())
                below.axhline(100 * LEVELS[SHOWN], color=picture.BLACK, linestyle="--", linewidth=0.8, zorder=1)
                below.set(ylim=(0, 102), xlabel="ε")
                below.set_title("of held-out targets" if kind == WINES else "of coefficients", fontsize="medium")
            panels[0, 0].set_ylabel("test RMSE")
            panels[1, 0].set_ylabel(f"coverage of {LEVELS[SHOWN]:.0%} intervals, %")
            picture.legend(panels)

    def _curves(self, axes: Any, found: Results, kind: str, height: Callable[[Series], float]) -> None:
        for trust, fit in SERIES:
            aside = 0.03 * (TRUST.index(trust) - (len(TRUST) - 1) / 2)  # of a decade, between curves
            heights = [height(found.series[kind, trust, epsilon, fit]) for epsilon in self.epsilons]
            x = np.array(self.epsilons) * 10**aside
            axes.plot(x, heights, label=f"{trust}, {fit}", markersize=5, **STYLES[trust], **LINES[fit])
        picture.epsilon_axis(axes, self.epsilons)


def _coverages(found: Results, fit: str) -> Iterator[tuple[str, float, tuple[float, float, float]]]:
    """Yield, for simulated data, whose truth is known: a description, the level, and the coverage with its interval."""
    own = [(key, one) for key, one in found.series.items() if key[3] == fit and key[0] != WINES]
    for (kind, trust, epsilon, _), one in own:
        for place, level in enumerate(LEVELS):
            words = f"{kind}, {trust}, ε = {at_least(epsilon)}, {level:.0%}"
            yield words, level, joint_interval(one.covered[:, place], LEVEL, len(own) * len(LEVELS))


def simulated(clients: int, rng: np.random.Generator) -> Rows:
    truth = np.r_[PRIOR.intercept_sd, np.full(FEATURES, PRIOR.coefficient_sd)] * rng.standard_normal(FEATURES + 1)
    X = rng.standard_normal((clients, FEATURES)) @ ROOT.T
    y = truth[0] + X @ truth[1:] + RESIDUAL_SD * rng.standard_normal(clients)
    return Rows(np.column_stack([X, y]), _simulated_statistic(), PRIOR, truth)


@lru_cache(maxsize=1)
def _simulated_statistic() -> Regression:
    """Return sums of products with a constant, with the weights that minimise the total error."""
    plain = Regression(
        columns=(*(f"x{place + 1}" for place in range(FEATURES)), TARGET),
        centre=(0.0,) * (FEATURES + 1),
        scale=(1.0,) * (FEATURES + 1),
        bound=(1.0,) * FEATURES + (REACH,),
        intercept=True,
        target_square=True,
    )
    return replace(plain, weights=best_regression_weights(plain, FRACTION_BITS))


def release(rows: Rows, trust: str, epsilon: float, rng: np.random.Generator) -> NoisyAggregate:
    """Run the round by the ideal functionality, whose noise has the protocol's law."""
    clients, computes = len(rows.table), (bytes(ID_BYTES), b"\1" * ID_BYTES)
    dropped = ceil(DROPPED * clients) if trust == DCA_DROPS else 0
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=clients, tolerate=dropped, computes=computes)
    absent = frozenset(rng.permutation(clients)[:dropped].tolist())
    columns, trusted = rows.statistic.columns, trust == TRUSTED
    swarm = IdealSwarm(rows.table, columns, terms, absent=[absent], random=rng.bytes, trusted=trusted)
    asked = rows.statistic.name, to_builtins(rows.statistic)
    if trust == LOCAL:
        return swarm.run_round(RoundRequest(*asked, rows_max=1, kind=LdpReport(GAUSSIAN)))
    return swarm.run_round(RoundRequest(*asked, rows_max=1))


Drawn = tuple[Array, Array, float]
"""Draws of intercept and coefficients, ``(draws, d + 1)``, and of the residuals' standard deviation, ``(draws,)``, in
the units of the model; and R-hat."""


def _aware(rows: Rows, released: NoisyAggregate, iterations: int, rng: np.random.Generator) -> Drawn:
    """Fit with the noise in the model."""
    found, diagnosis = mixed(partial(fits.regression, released, rows.prior), iterations, int(rng.integers(2**31)))
    theta = np.concatenate([found.draws[INTERCEPT][..., None], found.draws[COEFFICIENTS]], axis=-1)
    return theta.reshape(-1, theta.shape[-1]), found.draws[RESIDUAL].ravel(), diagnosis.r_hat


def _naive(rows: Rows, released: NoisyAggregate, iterations: int, rng: np.random.Generator) -> Drawn:
    """Fit as if the sums were exact."""
    constant, d = rows.statistic.intercept_bound, len(rows.statistic.columns) - 1
    sds = np.r_[rows.prior.intercept_sd / constant, np.full(d, rows.prior.coefficient_sd)]
    found = posterior(statistics_of(released), sds**-2, repair=NEAREST_PSD, noise_in_spread=False)
    draws = rng.multivariate_normal(found.mean, found.cov, size=NAIVE_DRAWS, method="eigh")
    return draws * np.r_[constant, np.ones(d)], np.full(NAIVE_DRAWS, sqrt(found.residual_variance)), 1.0


def _error(rows: Rows, theta: Array) -> float:
    """Return the root mean squared error of predictions by ``theta``, ``(d + 1,)``, in units of the target."""
    if rows.truth is None:
        assert rows.tested is not None, "there are rows to test on"
        off = rows.tested[:, -1] - theta[0] - rows.tested[:, :-1] @ theta[1:]
        return rows.unit * float(np.sqrt(np.mean(off**2)))
    off = theta - rows.truth
    return sqrt(RESIDUAL_SD**2 + off[0] ** 2 + float(np.sum((ROOT.T @ off[1:]) ** 2)))


def _covered(rows: Rows, theta: Array, residual_sd: Array, rng: np.random.Generator) -> list[float]:
    """Return the part of the coefficients, or of held-out targets, that central intervals cover, by level."""
    below, truth = theta, rows.truth
    if truth is None:
        assert rows.tested is not None, "there are rows to test on"
        mean = theta[:, :1] + theta[:, 1:] @ rows.tested[:, :-1].T
        below = mean + residual_sd[:, None] * rng.standard_normal(mean.shape)
        truth = rows.tested[:, -1]
    place = np.mean(below < truth, axis=0)
    return [float(np.mean(np.abs(place - 0.5) <= level / 2)) for level in LEVELS]
