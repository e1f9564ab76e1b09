"""Figure 2 of the DCA paper: private linear regression on three UCI data sets, in four settings.

    data        the data sets, their random splits, and the constants that are taken as public
    published   the experiments as the authors ran them, with their faults: not private as claimed
    rounds      rounds of the ideal functionality: a trusted aggregator, distributed, perturbed inputs
    corrected   the published configuration with the faults corrected, and paired draws of it and ours

The first sweep searches thresholds for each data set and ε, the second runs each random split. The search uses no data.
The authors searched again for each split, with other random numbers, and the results vary. Here a few searches serve
the splits of a data set and an ε in turn, in every setting.

The paired comparison has steps from the corrected configuration to ours, to show which of them help (`PAIRED`). One
opponent is not valid: the corrected configuration with centres and ranges computed from the data.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table
from scipy.stats import binom

from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least
from inference.bounds import PUBLISHED_WITH_ROWS
from inference.models.linear.closed_form import ABSOLUTE, NOISE_AWARE
from inference.models.linear.job import regression_in_bounds, regression_with_projection
from inference.problem import Array, Problem, stream
from inference.rounds import run
from papers.dca2017 import corrected, data, published
from papers.dca2017.corrected import SEPARATE, Accounting, Run, corrected_errors, our_errors, paired_errors
from papers.dca2017.data import BY_NAME, DATA_SETS, DELTA, EPSILONS, FROM_DATA, FROM_PUBLICATIONS
from papers.dca2017.rounds import DISTRIBUTED, PERTURBED, TRUSTED, UNNOISED, round_by_round, swarm
from papers.experiment import Experiment, Result, Sweep, data_option, noted, option
from papers.runner import Check, table

SAID: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SETTINGS = AS_PUBLISHED, CORRECTED_ABSOLUTE, CORRECTED, OURS = tuple(SAID["settings"])
CENTRED = "corrected, centred by the data"
STEPS = {
    CORRECTED: SEPARATE,
    "+ joint accounting": Accounting(joint=True),
    "+ tight sensitivity": Accounting(joint=True, tight=True),
}
PAIRED = {CENTRED: "by data", **dict(zip(STEPS, ("corrected", "+ joint", "+ tight"), strict=True)), OURS: "ours"}
"""The configurations of the paired comparison, with their column headings."""
REPAIR_OF = {CORRECTED_ABSOLUTE: ABSOLUTE, CORRECTED: NOISE_AWARE}
NP, PROJ_NP, TA, DDP, PERTURB = "NP", "proj NP", "TA", "DDP", "input perturbed"
PROJ_TA, PROJ_DDP, ZERO = "proj TA", "proj DDP", "zero predictor"
_METHODS = {
    TA: (TRUSTED, False), DDP: (DISTRIBUTED, False), PERTURB: (PERTURBED, False),
    PROJ_NP: (UNNOISED, True), PROJ_TA: (TRUSTED, True), PROJ_DDP: (DISTRIBUTED, True),
}  # fmt: skip
"""The methods of the valid settings: the mode of `rounds`, and whether rows are projected."""
RESAMPLES = 2000
CLOSER = 0.1  # part of the distance to the non-private error
PUBLISHED_NP = {"wine-red": 0.644, "wine-white": 0.657, "abalone": 0.573}
RIGHT_NP = {"wine-red": 1.016, "wine-white": 0.978}
NP_REACH = 0.02
SAME = 0.03  # largest relative difference of a trusted aggregator's median and the distributed one
TIE = 0.01
Thresholds = Mapping[str, Mapping[str, list[float]]]
"""Multiples of the standard deviation for features and target, by the text of a `Searched` cell and by setting."""


class Searched(NamedTuple):
    """One of several searches for thresholds, for a data set and an ε."""

    name: str
    epsilon: float
    number: int = 0

    def __str__(self) -> str:
        return f"{self.name}, epsilon {self.epsilon:.4g}, search {self.number}"


class Split(NamedTuple):
    """A data set, an ε and a random split."""

    name: str
    epsilon: float
    repeat: int

    def __str__(self) -> str:
        return f"{self.name}, epsilon {self.epsilon:.4g}, split {self.repeat}"


class Paired(NamedTuple):
    """Ours against a corrected configuration with the same repair, for one data set and ε.

    Errors are medians over splits, averaged over draws of the noise. Intervals are 95 %, by bootstrap over draws.
    """

    name: str
    epsilon: float
    nonprivate: float  # nonprivate, corrected, ours: mean absolute errors
    corrected: float
    ours: float
    worse: tuple[float, float]  # interval of ours minus corrected
    closer: float  # the part of the corrected error's distance to non-private that ours saves
    margin: tuple[float, float]  # interval of the saving beyond a tenth of that distance

    @property
    def is_closer(self) -> bool:
        """True if the whole interval shows ours at least 10 % closer to non-private."""
        return self.margin[0] > 0


@dataclass(frozen=True)
class Results:
    """All errors."""

    epsilons: tuple[float, ...]
    errors: Mapping[str, Mapping[str, Mapping[str, Array]]]  # (ε, splits), by data set, setting and method
    paired: Mapping[str, Mapping[str, Array]]  # (ε, splits, draws), by data set and step

    def medians(self, name: str, setting: str, method: str) -> Array:
        """Return medians over splits, shape ``(ε,)``."""
        return np.asarray(np.median(self.errors[name][setting][method], axis=1))

    def steps(self, name: str) -> dict[str, Array]:
        """Return medians over splits, averaged over draws of the noise, for each of `PAIRED`, shape ``(ε,)``."""
        return {step: np.median(runs, axis=1).mean(axis=1) for step, runs in self.paired[name].items()}

    def compared(self, seed: int, opponent: str = CORRECTED) -> Iterator[Paired]:
        """Yield the paired comparison with one of `PAIRED`, for each data set and ε."""
        for name, runs in self.paired.items():
            for place, epsilon in enumerate(self.epsilons):
                nonprivate = float(self.medians(name, OURS, NP)[place])
                theirs, own = (np.median(runs[one][place], axis=0) for one in (opponent, OURS))  # (draws,)
                rng = stream(seed, f"bootstrap/{name}/{place}")
                resampled, worse = rng.integers(len(own), size=(RESAMPLES, len(own))), own - theirs
                margin = (1 - CLOSER) * (theirs - nonprivate) - (own - nonprivate)
                ends = [np.quantile(one[resampled].mean(axis=1), [0.025, 0.975]).tolist() for one in (worse, margin)]
                distance = float(theirs.mean()) - nonprivate
                closer = -float(worse.mean()) / distance if distance > 0 else 0.0
                means = nonprivate, float(theirs.mean()), float(own.mean())
                yield Paired(name, epsilon, *means, tuple(ends[0]), closer, tuple(ends[1]))


def median_interval(values: Array) -> tuple[float, float]:
    """Return an interval for a median with a coverage of at least 95 %, by order statistics."""
    below = max(int(binom.ppf(0.025, len(values), 0.5)), 1)
    ordered = np.sort(values)
    return float(ordered[below - 1]), float(ordered[len(values) - below])


@dataclass(frozen=True, kw_only=True)
class Figure2(Experiment[Split, Results]):
    """Figure 2 of the DCA paper: private linear regression on wine quality and abalone, as published and valid.

    Takes about 6 minutes on two idle cores. Three settings run on the same 25 random splits, ε = 1 to 31.6, δ = 1e-4:
    as the authors ran it (not private as claimed), the same with its faults corrected (with two repairs of an
    indefinite matrix), and this library's Algorithm 2. Errors are mean absolute errors of the scaled target. Methods
    above the zero predictor are useless. Exit code 4 if one of the checks printed at the end fails.

    --plot NAME.png draws the paper's curves on its axes there, as published and by this library. Beside it are the
    valid settings on their own axes, NAME-corrected.png ..., and all settings together, NAME-compared.png.
    """

    KIND, LABEL = "figure-2", "splits"
    QUICK: ClassVar = {"repeats": 5, "draws": 10, "searches": 1}
    DEPENDS = ("seed", "draws", "repeats", "searches", "constants")

    data_folder: Path | None = data_option()
    constants: str = option(
        FROM_PUBLICATIONS,
        "source of centres and ranges in the corrected setting: published with the data, or the data (not private)",
        choices=(FROM_PUBLICATIONS, FROM_DATA),
    )
    repeats: int = 25
    draws: int = 40
    searches: int = 3

    def prepare(self) -> None:
        for one in DATA_SETS:
            data.problem(one.name, self.data_folder)

    def results(self, sweep: Sweep) -> Results:
        both = [(one.name, epsilon) for one in DATA_SETS for epsilon in EPSILONS]
        searched = [Searched(*one, number) for one in both for number in range(self.searches)]
        found = sweep(searched, partial(thresholds, seed=self.seed), label="thresholds")
        chosen = {str(cell): one for cell, one in zip(searched, found, strict=True)}
        splits = [Split(*one, repeat) for one in both for repeat in range(self.repeats)]
        return self.gather(splits, sweep(splits, partial(self.errors, thresholds=chosen)))

    def gather(self, cells: Sequence[Split], results: Sequence[Result]) -> Results:
        names, epsilons, repeats = (tuple(dict.fromkeys(values)) for values in zip(*cells, strict=True))
        by_cell = dict(zip(cells, results, strict=True))

        def of(name: str, *path: str) -> Array:
            def at(value: Any) -> Any:
                for key in path:
                    value = value[key]
                return value

            return np.array([[at(by_cell[Split(name, e, repeat)]) for repeat in repeats] for e in epsilons])

        methods = {setting: list(results[0]["errors"][setting]) for setting in SETTINGS}
        errors = {
            name: {setting: {m: of(name, "errors", setting, m) for m in methods[setting]} for setting in SETTINGS}
            for name in names
        }
        return Results(epsilons, errors, {name: {step: of(name, "paired", step) for step in PAIRED} for name in names})

    def errors(self, cell: Split, thresholds: Thresholds) -> Result:
        """Return the mean absolute errors of all methods in all settings, and those of the paired draws."""
        whole, given = _whole(cell.name, self.data_folder, False), Searched(*cell[:2], cell.repeat % self.searches)
        chosen = {name: (one[0], one[1]) for name, one in thresholds[str(given)].items()}
        found = {AS_PUBLISHED: self._published(cell, chosen[AS_PUBLISHED], as_published=True)}
        both = self._published(cell, chosen[AS_PUBLISHED], as_published=False)
        unit = float(data.RANGE / np.ptp(whole.y))
        assumed, by_data = (data.assumed(cell.name, whole, one) for one in (self.constants, FROM_DATA))
        rows = data.rows_apart(cell.name, len(whole.y), cell.repeat, self.seed)
        schemas = (replace(whole, schema=schema) for schema in (assumed, whole.schema, by_data))
        known, bounded, centred = ((one.take(rows[0]), one.take(rows[1])) for one in schemas)
        for setting in (*REPAIR_OF, OURS):
            own = self._ours(cell, *bounded) if setting == OURS else self._corrected(cell, *known, setting, chosen)
            found[setting] = {NP: both[NP], ZERO: both[ZERO], **{m: unit * error for m, error in own.items()}}

        def corrected_run(parts: tuple[Problem, Problem], step: str) -> Run:
            return partial(corrected_errors, *parts, cell.epsilon, chosen[step], NOISE_AWARE, STEPS[step])

        runs: dict[str, Run] = {
            CENTRED: corrected_run(centred, CORRECTED),
            **{step: corrected_run(known, step) for step in STEPS},
            OURS: partial(our_errors, *bounded, cell.epsilon, NOISE_AWARE),
        }
        pairs = paired_errors(runs, len(whole.schema.columns), self.draws, stream(self.seed, f"paired/{cell}"))
        return {"errors": found, "paired": {name: np.round(unit * one, 6).tolist() for name, one in pairs.items()}}

    def _published(self, cell: Split, chosen: tuple[float, float], *, as_published: bool) -> dict[str, float]:
        rows = data.scaled(_whole(cell.name, self.data_folder, as_published).rows)
        first, second = data.rows_apart(cell.name, len(rows), cell.repeat, self.seed)
        rng = stream(self.seed, f"published/{cell}")
        return published.maes(rows[first], rows[second], cell.epsilon, chosen, rng)

    def _corrected(
        self, cell: Split, train: Problem, test: Problem, setting: str, chosen: Mapping[str, tuple[float, float]]
    ) -> dict[str, float]:
        schema, found = train.schema, {}
        for method, (mode, projected) in _METHODS.items():
            hold = round_by_round(train, mode, self.seed, f"corrected{', projected' if projected else ''}/{cell}")
            thresholds = chosen[setting] if projected else None
            beta = corrected.regression(schema, hold, cell.epsilon, REPAIR_OF[setting], thresholds)
            found[method] = float(np.abs(corrected.predictions(schema, beta, test.X) - test.y).mean())
        return found

    def _ours(self, cell: Split, train: Problem, test: Problem) -> dict[str, float]:
        budget, found = Budget(cell.epsilon, DELTA), {}
        for method, (mode, projected) in _METHODS.items():
            rounds = swarm(train, budget, mode, self.seed, f"ours/{not projected}/{cell}")
            fitted = run((regression_with_projection if projected else regression_in_bounds)(train.schema), rounds)
            found[method] = float(np.abs(fitted.predict(test.X)[0] - test.y).mean())
        return found

    def notes(self, found: Results) -> dict[str, Any]:
        return {
            "delta": DELTA,
            "labels": {name: one["words"] for name, one in SAID["settings"].items()},
            "known": SAID["known"],
            "not_private_because": [PUBLISHED_WITH_ROWS],
            "caveat": SAID["caveat"],
            "paired": [one._asdict() | {"is_closer": one.is_closer} for one in found.compared(self.seed)],
        }

    def tables(self, found: Results) -> Iterator[Table]:
        columns = [at_least(epsilon) for epsilon in found.epsilons]
        for name, settings in found.errors.items():
            title = f"{BY_NAME[name].title}: median MAE over splits; *: no better than the zero predictor"
            shown = table(title, "ε", *columns)
            for setting, methods in settings.items():
                shown.add_section()
                shown.add_row(f"[bold]{SAID['settings'][setting]['words']}[/]")
                zero = found.medians(name, setting, ZERO)
                for method in methods:
                    medians = found.medians(name, setting, method)
                    useless = (medians >= zero) & (method != ZERO)
                    cells = (f"[dim]{m:.3f}*[/]" if no else f"{m:.3f} " for m, no in zip(medians, useless, strict=True))
                    shown.add_row(f"  {method}", *cells)
            yield shown
        title = "ours against corrected, same repair, paired by draws of the noise; 95 % intervals, of the noise alone"
        shown = table(title, "data", "ε", "NP", "corrected", "ours", "difference", "closer", "by 10 %")
        for one in found.compared(self.seed):
            means = (f"{mean:.3f}" for mean in (one.nonprivate, one.corrected, one.ours))
            closer = f"{100 * one.closer:.0f} %" if one.corrected > one.nonprivate else ""
            difference, words = f"{one.worse[0]:+.3f} to {one.worse[1]:+.3f}", "yes" if one.is_closer else "no"
            shown.add_row(one.name, at_least(one.epsilon), *means, difference, closer, words)
        yield noted(shown, SAID["known"])
        title = "what pays: from the corrected configuration to ours, mean MAE over draws"
        shown = table(title, "data", "ε", "NP", *PAIRED.values())
        for name in found.errors:
            steps, nonprivate = found.steps(name), found.medians(name, OURS, NP)
            for place, epsilon in enumerate(columns):
                row = (nonprivate, *(steps[step] for step in PAIRED))
                shown.add_row(name, epsilon, *(f"{one[place]:.3f}" for one in row))
        yield noted(shown, SAID["steps"])
        shown = table("what differs between the two", "", "corrected", "ours", justify="left")
        for difference in SAID["differences"]:
            shown.add_row(*difference)
        yield noted(shown, SAID["caveat"])

    def checks(self, found: Results) -> Iterator[Check]:
        wanted_of = ((AS_PUBLISHED, PUBLISHED_NP, "as published"), (OURS, RIGHT_NP, "wines read right"))
        for setting, wanted, words in wanted_of:
            for name, value in wanted.items():
                median = float(found.medians(name, setting, NP)[0])
                asked = f"{value} ± {NP_REACH}"
                yield Check(f"non-private, {name}, {words}", asked, f"{median:.3f}", abs(median - value) <= NP_REACH)
        for setting in (*REPAIR_OF, OURS):
            yield from (_distributed(found, setting, *pair) for pair in ((TA, DDP), (PROJ_TA, PROJ_DDP)))
        opponents = {"corrected, same repair": CORRECTED, f"{CENTRED} (not private)": CENTRED}
        for words, opponent in opponents.items():
            worst = max(found.compared(self.seed, opponent), key=lambda one: one.worse[1])
            words_found = f"{worst.worse[1]:+.4f} at most ({worst.name}, ε = {at_least(worst.epsilon)})"
            asked = f"by at most {TIE} everywhere (end of the interval)"
            yield Check(f"ours no worse than {words}", asked, words_found, worst.worse[1] <= TIE)
        closer = [one.is_closer for one in found.compared(self.seed)]
        asked = f"in at least half of {len(closer)} (whole interval)"
        yield Check("ours 10 % closer to non-private", asked, f"in {sum(closer)}", 2 * sum(closer) >= len(closer))
        for name in found.errors:
            zero, own = (float(found.medians(name, OURS, method)[0]) for method in (ZERO, PROJ_DDP))
            words = f"ours beats the zero predictor at ε = {at_least(found.epsilons[0])}, {name}"
            yield Check(words, f"below {zero:.3f}", f"{own:.3f}", own < zero)

    def draw(self, found: Results, path: Path) -> None:
        from papers.dca2017.figure_2_drawing import draw_all  # it imports this module

        draw_all(found, path)


def thresholds(cell: Searched, seed: int) -> dict[str, list[float]]:
    """Return the thresholds of features and target, in standard deviations, for each setting that searches."""
    sizes = data.BY_NAME[cell.name]
    problem = sizes.train, sizes.features, cell.epsilon

    def rng(setting: str) -> np.random.Generator:
        return stream(seed, f"search/{cell}/{setting}")

    absolute = corrected.search(*problem, ABSOLUTE, rng(CORRECTED_ABSOLUTE))
    found = {AS_PUBLISHED: published.search(*problem, rng(AS_PUBLISHED)), CORRECTED_ABSOLUTE: absolute}
    for step, accounting in STEPS.items():
        found[step] = corrected.search(*problem, NOISE_AWARE, rng(CORRECTED), accounting)
    return {setting: list(pair) for setting, pair in found.items()}


@lru_cache(maxsize=8)
def _whole(name: str, folder: Path | None, as_published: bool) -> Problem:
    return data.problem(name, folder, as_published=as_published)


def _distributed(results: Results, setting: str, trusted: str, distributed: str) -> Check:
    """Check that a distributed method errs as its trusted counterpart, with which it shares the noise."""
    useful, apart = [], []
    for one in results.errors.values():
        for first, second, zero in zip(*(one[setting][m] for m in (trusted, distributed, ZERO)), strict=True):
            medians = float(np.median(first)), float(np.median(second))
            if min(medians) < np.median(zero):
                useful.append(abs(medians[1] / medians[0] - 1))
            else:
                (a, b), (c, d) = median_interval(first), median_interval(second)
                apart.append(a > d or c > b)
    largest = f"{100 * max(useful, default=0):.1f} % at most in {len(useful)} useful cells"
    return Check(
        f"{distributed} as {trusted}, {setting}",
        "medians within 3 %, elsewhere overlapping intervals",
        f"{largest}; {sum(apart)} of {len(apart)} others apart",
        not any(one > SAME for one in useful) and not any(apart),
    )
