"""Figures 4 and 5 of the LDP paper: linear and logistic regression from local reports, over ε.

A cell is a setting, a method and an ε, with all repeats. A repeat is a split of the rows and a draw of the noise. All
methods and ε share the splits, so that methods are compared in pairs. Each cell has its own stream for the noise, the
chains and the order of reports.

**Spread** is the standard deviation over repeats, as in the paper's figures. **Intervals** are Student's, over the
differences between two methods on the same rows, each at the level 1 - 0.05/K for the K comparisons of a figure. So all
hold together with a probability of 95 % (Bonferroni). They cover splits and noise given this one data set; because its
splits overlap, they tell less about other data.

**Ahead** means that the whole interval of the advantage is above 0, **behind** that it is below 0; else the comparison
is **open**.

**At small ε**, the check uses each repeat's mean over these ε, with intervals that hold together for all settings. At a
single ε, the noise differs so much between repeats that intervals joint with all others show little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.table import Table

from dca_proto.privacy.rounding import at_least
from inference.bounds import PUBLISHED_WITH_ROWS
from inference.draws import R_HAT_REQUIRED
from inference.problem import Array, stream
from papers import picture
from papers.experiment import Experiment, MeanInterval, Result, data_option, joint_interval, option, over_epsilon
from papers.ldp2021 import regression_data as rows_of_data
from papers.ldp2021 import regression_methods as methods
from papers.ldp2021.regression_data import ADULT, PUBLISHED, SETTINGS, VALID, WINE, Choices, Split
from papers.ldp2021.regression_methods import (
    BAYES,
    CLASSICAL,
    COROLLARY,
    NO_MODEL,
    ORDERS,
    RIDGE,
    SAME_RELEASES,
    SGD,
    SGD_ALL,
    TIGHT,
    Terms,
)
from papers.runner import Check, positive

EPSILONS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
DELTA, REPEATS, ITERATIONS, SHARE = 1e-5, 30, 600, 0.5
RATES = (0.1, 0.3, 3.0)
"""Rates of LDP-SGD besides the default of 1, to find the best in hindsight."""
RECORDS = 10_000
INPUT_EPSILONS = (0.8, 3.2, 12.8)
"""The ε of perturbed inputs, whose likelihood is slow: each evaluation needs n rows instead of one sum."""
INPUTS_2, INPUTS_4, INPUTS = ORDERS
COSTS = {INPUTS: 800.0, INPUTS_4: 120.0, INPUTS_2: 80.0, TIGHT: 2.0, COROLLARY: 2.0, BAYES: 1.0, SGD: 0.2, SGD_ALL: 0.4}
"""Rough costs of a run."""
WITHOUT_NOISE = methods.WITHOUT_NOISE
HINDSIGHT = "LDP-SGD, best rate in hindsight"
OPPONENTS = (SGD, SGD_ALL, HINDSIGHT, TIGHT, RIDGE, *ORDERS, NO_MODEL)
"""The methods that sufficient statistics are compared with at each ε: as published those with the paper's noise."""
JOINT_LEVEL = 0.95
TITLES = {
    PUBLISHED: "as published, NOT private as claimed (centring and components are read from the rows)",
    VALID: "valid",
}
STYLES: Mapping[str, Mapping[str, Any]] = {
    TIGHT: {"color": picture.BLUE, "marker": "o", "linewidth": 2.0},
    COROLLARY: {"color": picture.SKY, "marker": "s"},
    RIDGE: {"color": picture.SKY, "marker": "s", "markerfacecolor": "white", "linestyle": "--"},
    INPUTS_2: {"color": picture.GREEN, "marker": "^"},
    INPUTS_4: {"color": picture.GREEN, "marker": "<", "linestyle": ":"},
    INPUTS: {"color": picture.GREEN, "marker": "v", "linestyle": "--"},
    SGD: {"color": picture.VERMILION, "marker": "D"},
    SGD_ALL: {"color": picture.PURPLE, "marker": "P"},
    HINDSIGHT: {"color": picture.ORANGE, "marker": "X", "linestyle": ":"},
}
LINES: Mapping[str, Mapping[str, Any]] = {
    BAYES: {"color": picture.BLACK, "linestyle": "--", "linewidth": 1.5, "zorder": 1},
    CLASSICAL: {"color": picture.BLACK, "linestyle": "-.", "linewidth": 1.0, "zorder": 1},
}
_ASIDE = 0.035  # distance between methods, as a part of a decade
_ROOM = 10.0  # how many times the range from no privacy to no model a panel shows beyond it


class Cell(NamedTuple):
    """All repeats of a method at one setting and ε."""

    setting: str
    method: str
    epsilon: float = 0.0  # 0 for methods without noise
    rate: float | None = None  # of LDP-SGD; None for the default
    repeats: int = 1

    def __str__(self) -> str:
        return f"{self.name}, {self.repeats} repeats"

    @property
    def name(self) -> str:
        """The cell in words, without the repeats."""
        epsilon = f", epsilon = {at_least(self.epsilon)}" if self.epsilon else ""
        return f"{self.setting}, {self.method}{epsilon}" + (f", rate {self.rate:g}" if self.rate else "")


class Advantage(MeanInterval):
    """The difference of two methods' scores, positive if the first is better, with its joint interval."""

    @property
    def verdict(self) -> str:
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "open"

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f}, {self.high:.3f})"


def advantage(first: Array, second: Array, sign: int, count: int) -> Advantage:
    """Return the advantage sign·(first - second) over the repeats that both have, with one of `count` intervals."""
    repeats = min(len(first), len(second))
    return Advantage(*joint_interval(sign * (first[:repeats] - second[:repeats]), JOINT_LEVEL, count))


def spread(scores: Array) -> float:
    """Return the standard deviation over repeats; 0 for one repeat."""
    return float(scores.std(ddof=1)) if len(scores) > 1 else 0.0


@dataclass(frozen=True)
class Results:
    """All scores and R-hats."""

    sign: int  # 1 if higher scores are better, else -1
    order: Sequence[str]  # of the methods in tables, those without noise last
    scores: Mapping[tuple[str, str, float, float | None], Array]  # (repeats,), by setting, method, ε and rate
    r_hats: Mapping[str, float]  # by cell, for sampled methods

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(setting for setting, *_ in self.scores))

    def methods(self, setting: str) -> list[str]:
        order = (*self.order[: -len(WITHOUT_NOISE)], HINDSIGHT, *WITHOUT_NOISE)
        return [method for method in order if any(key[:2] == (setting, method) for key in self.scores)]

    def private(self, setting: str) -> list[str]:
        return [method for method in self.methods(setting) if method not in WITHOUT_NOISE]

    def epsilons(self, setting: str, method: str) -> list[float]:
        return sorted({key[2] for key in self.scores if key[:2] == (setting, method)} - {0.0})

    def of(self, setting: str, method: str, epsilon: float = 0.0) -> Array:
        """Return a method's scores; methods without noise have the same at any ε."""
        return self.scores[setting, method, 0.0 if method in WITHOUT_NOISE else epsilon, None]

    def non_private(self, setting: str) -> str:
        return max((BAYES, CLASSICAL), key=lambda one: self.sign * self.of(setting, one).mean())

    def lead(self, setting: str) -> str:
        """Return the sufficient statistics that stand for the setting: as published with the paper's own noise."""
        return COROLLARY if setting == PUBLISHED and COROLLARY in self.methods(setting) else TIGHT

    def comparisons(self) -> dict[tuple[str, str, float], Advantage]:
        """Compare sufficient statistics with each opponent, by setting, opponent and ε, with joint intervals."""
        asked = [
            (setting, opponent, epsilon)
            for setting in self.settings
            for opponent in OPPONENTS
            if opponent in self.methods(setting) and opponent != self.lead(setting)
            for epsilon in self.epsilons(setting, self.lead(setting))
            if opponent == NO_MODEL or epsilon in self.epsilons(setting, opponent)
        ]
        own = {one: self.of(one[0], self.lead(one[0]), one[2]) for one in asked}
        return {one: advantage(own[one], self.of(*one), self.sign, len(asked)) for one in asked}


def turn(made: Mapping[float, Advantage]) -> str:
    """Describe at which ε sufficient statistics are ahead of one opponent, and at which behind."""
    at: dict[str, list[str]] = {"ahead": [], "open": [], "behind": []}
    for epsilon, one in made.items():
        at[one.verdict].append(at_least(epsilon))
    return "; ".join(f"{verdict} at ε = {', '.join(those)}" for verdict, those in at.items() if those)


@dataclass(frozen=True, kw_only=True)
class Figure4(Experiment[Cell, Results]):
    """Figure 4 of the LDP paper: linear regression of wine quality from local reports, test RMSE over ε.

    Takes about 35 minutes on two idle cores, nearly all of it NUTS. 30 splits of 6,497 wines into 80 % and 20 %, at
    eight ε from 0.1 to 12.8; as published (which computes centres and principal components from the rows, so it is not
    private) and valid. Where the paper leaves choices open, scripts/papers/ldp2021/regression_*.py and
    inference/models/glm/sgd.py state ours. Exit code 4 if the order of the methods is not the paper's (sufficient
    statistics ahead of LDP-SGD over ε <= 0.4, and LDP-SGD no longer behind at the largest ε), if a private method is
    ahead of no privacy, or if chains have not mixed.

    As published, sufficient statistics have the paper's own noise (Corollary 3.1). They are nowhere ahead of predicting
    the mean, and worse at ε = 3.2 than at 0.2: the wide prior lets θ grow where noise makes S nearly singular. A ridge
    on the same releases keeps what they tell. Exit code 4 also if that is not so.
    """

    KIND, LABEL = "ldp-figure-4", "figure 4"
    QUICK: ClassVar = {"repeats": 2, "epsilons": (0.8, 12.8), "iterations": 200}
    DEPENDS = ("SET", "seed", "delta", "iterations", "components", "norm_quantile")
    SET, SCORE = WINE, "test RMSE"
    METHODS: ClassVar[tuple[str, ...]] = (TIGHT, COROLLARY, RIDGE, SGD, *WITHOUT_NOISE)
    SMALL = 0.4
    """Sufficient statistics must be ahead up to this ε. For Adult, the paper states 0.8; for wine, "small" ε."""
    NEAR = 0.05
    """Tolerance at the largest ε beside no privacy, with rows that are not clipped: of the RMSE relative, of the AUC
    absolute."""

    data_folder: Path | None = data_option()
    setting: tuple[str, ...] = option(SETTINGS, "only this setting", action="append", choices=SETTINGS)
    repeats: int = option(REPEATS, f"number of repeats (default {REPEATS})", type=positive, metavar="R")
    components: int = option(Choices().components, "number of features", type=positive, metavar="K")
    norm_quantile: float = option(Choices().quantile, "the quantile of norms that is R", type=float, metavar="Q")
    delta: float = option(DELTA, f"δ of each client (default {at_least(DELTA)})", type=float, metavar="D")
    iterations: int = option(ITERATIONS, "of each of four chains", type=positive, metavar="K")
    epsilons: tuple[float, ...] = EPSILONS
    inputs: int = 0  # repeats of perturbed inputs, orders 2 and 4; 0 omits them
    exact_inputs: int = 0  # the same with the exact sigmoid

    @property
    def label(self) -> bool:
        return self.SET == ADULT

    def prepare(self) -> None:
        rows_of_data.problem(self.SET, self.data_folder)

    def cells(self) -> list[Cell]:
        found: list[Cell] = []
        for setting, method in product(self.setting, self.METHODS):
            epsilons, repeats = self.epsilons, self.repeats
            if method in WITHOUT_NOISE:
                epsilons = (0.0,)
            elif method in ORDERS:
                epsilons, repeats = INPUT_EPSILONS, self.exact_inputs if method == INPUTS else self.inputs
            if repeats and (method not in (COROLLARY, RIDGE) or setting == PUBLISHED):
                rates = (None, *RATES) if method == SGD else (None,)
                found += [Cell(setting, method, epsilon, rate, repeats) for rate in rates for epsilon in epsilons]
        return found

    def cost(self, cell: Cell) -> float:
        times = min(cell.epsilon, 3.0) if cell.method in (SGD, SGD_ALL) else 1.0
        return cell.repeats * COSTS.get(cell.method, 0.01) * times

    def work(self, cell: Cell) -> Result:
        begun = time.perf_counter()
        terms = Terms(cell.epsilon, self.delta)
        conditions = methods.Conditions(terms, self.label, cell.rate, SHARE, self.iterations)
        found, released = [], cell._replace(method=SAME_RELEASES.get(cell.method, cell.method))
        for repeat in range(cell.repeats):
            rng = stream(self.seed, f"local/{self.LABEL}/{released.name}/{repeat}")
            found.append(methods.scored(cell.method, self.rows_of(cell, repeat), conditions, rng))
        reports = {name: [one.report[name] for one in found] for name in found[0].report}
        seconds = round(time.perf_counter() - begun, 2)
        return {"scores": [one.score for one in found], "reports": reports, "wall_seconds": seconds}

    def rows_of(self, cell: Cell, repeat: int) -> Split:
        """Return the rows of a repeat; with Adult, some methods share a smaller sample of them."""
        choices = Choices(self.components, self.norm_quantile)
        rows = rows_of_data.split(self.SET, self.data_folder, cell.setting, repeat, self.seed, choices)
        if not self.label or cell.method not in methods.PER_INPUT:
            return rows
        return rows.some(RECORDS, stream(self.seed, f"local/records/{repeat}"))

    def gather(self, cells: Sequence[Cell], results: Sequence[Result]) -> Results:
        both = list(zip(cells, results, strict=True))
        r_hats = {str(cell): max(one["reports"]["r_hat"]) for cell, one in both if "r_hat" in one["reports"]}
        sign, scores = 1 if self.label else -1, {cell[:4]: np.array(one["scores"]) for cell, one in both}
        for setting, method, epsilon, rate in list(scores):
            if method == SGD and rate is None:  # in hindsight: the rate with the best mean
                asked = [scores[setting, SGD, epsilon, one] for one in (None, *RATES)]
                scores[setting, HINDSIGHT, epsilon, None] = max(asked, key=lambda one: sign * one.mean())
        return Results(sign, self.METHODS, scores, r_hats)

    def notes(self, found: Results) -> dict[str, Any]:
        return {
            "not_private_because": [] if self.label else [PUBLISHED_WITH_ROWS],
            "score": self.SCORE,
            "spread": "standard deviation over repeats (splits and noise)",
            "label_share": SHARE,
            "records_of_inputs_and_sgd": RECORDS if self.label else None,
            "joint_level": JOINT_LEVEL,
        }

    def tables(self, found: Results) -> Iterator[Table]:
        made = found.comparisons()
        for setting in found.settings:
            title = f"{self.SET}, {TITLES[setting]}: {self.SCORE}, mean ± standard deviation over repeats"
            shown = over_epsilon(title, "method", self.epsilons)
            for method in found.methods(setting):
                run_at = (0.0,) if method in WITHOUT_NOISE else self.epsilons
                own = (0.0, *found.epsilons(setting, method))
                scores = (found.of(setting, method, at) if at in own else None for at in run_at)
                shown.add_row(method, *("" if s is None else f"{s.mean():.3f} ± {spread(s):.3f}" for s in scores))
            yield shown
            level = f"joint {100 * JOINT_LEVEL:g} % intervals (+ ahead, - behind)"
            title = f"{TITLES[setting]}: advantage of {found.lead(setting)} in pairs, {level}"
            shown = over_epsilon(title, "over", epsilons := dict.fromkeys(at for *_, at in made))
            marks = {"ahead": " +", "behind": " -", "open": ""}
            for opponent in dict.fromkeys(opponent for where, opponent, _ in made if where == setting):
                row = (made.get((setting, opponent, at)) for at in epsilons)
                shown.add_row(opponent, *("" if one is None else f"{one}{marks[one.verdict]}" for one in row))
            yield shown

    def checks(self, found: Results) -> Iterator[Check]:
        yield from self._check_order(found)
        for setting in found.settings:
            best = found.non_private(setting)
            pairs = [(one, epsilon) for one in found.private(setting) for epsilon in found.epsilons(setting, one)]
            above = []
            for method, epsilon in pairs:
                gap = advantage(found.of(setting, best), found.of(setting, method, epsilon), found.sign, len(pairs))
                above += [f"{method} at ε = {at_least(epsilon)} by {-gap.mean:.4f}"] if gap.high < 0 else []
            asked = "nothing private ahead of it (joint intervals)"
            yield Check(f"{best} is best, {setting}", asked, "; ".join(above) or "nothing", not above)
        if PUBLISHED in found.settings:  # valid bounds leave more noise
            yield from self._check_own_noise(found)
            best = found.non_private(PUBLISHED)
            last, exact = max(self.epsilons), float(found.of(PUBLISHED, best).mean())
            gap_at_last = found.sign * (exact - float(found.of(PUBLISHED, TIGHT, last).mean()))
            near = self.NEAR * (1.0 if self.label else exact)
            name = f"{TIGHT} near {best} at ε = {at_least(last)}, {PUBLISHED}"
            yield Check(name, f"within {near:.3f}", f"{gap_at_last:.4f}", gap_at_last <= near)
        if found.r_hats:
            cell, r_hat = max(found.r_hats.items(), key=lambda one: one[1])
            asked = f"below {R_HAT_REQUIRED:g} in all runs"
            yield Check("R-hat", asked, f"{r_hat:.3f} at most ({cell})", r_hat < R_HAT_REQUIRED)

    def _check_order(self, found: Results) -> Iterator[Check]:
        made = found.comparisons()
        for setting in found.settings:
            own = {at: one for (*where, at), one in made.items() if where == [setting, SGD]}
            small = [at for at in own if at <= self.SMALL]
            lead = found.lead(setting)
            first, second = (np.mean([found.of(setting, one, at) for at in small], axis=0) for one in (lead, SGD))
            over = advantage(first, second, found.sign, len(found.settings))
            records = f" of {RECORDS:,} records" if self.label else ""
            name = f"{lead} ahead of {SGD}{records} over ε <= {at_least(self.SMALL)}, {setting}"
            asked = "the mean's whole interval above 0, and behind at none of these ε"
            holds = over.low > 0 and all(own[at].verdict != "behind" for at in small)
            yield Check(name, asked, f"{over}; {turn(own)}", holds)
            if not self.label:
                name = f"{SGD} catches up at ε = {at_least(last := max(own))}, {setting}"
                yield Check(name, "the advantage's interval reaches 0 or less", str(own[last]), own[last].low <= 0)

    def _check_own_noise(self, found: Results) -> Iterator[Check]:
        """Check what the paper's own noise leaves of Figure 4: no advantage over the mean, which a ridge keeps."""
        if {COROLLARY, RIDGE} <= set(found.methods(PUBLISHED)):
            made = found.comparisons()
            against = {at: one for (where, whom, at), one in made.items() if (where, whom) == (PUBLISHED, NO_MODEL)}
            ahead = [at_least(at) for at, one in against.items() if one.verdict == "ahead"]
            name = f"{COROLLARY}, never ahead of the mean, {PUBLISHED}"
            yield Check(name, "ahead at no ε", turn(against), not ahead)
            last = made[PUBLISHED, RIDGE, max(against)]
            name = f"a ridge on the same releases ahead of it at ε = {at_least(max(against))}, {PUBLISHED}"
            yield Check(name, "the advantage's whole interval below 0", str(last), last.high < 0)

    def draw(self, found: Results, path: Path) -> None:
        title = f"{self.SET}: {self.SCORE} from local reports, δ = {at_least(self.delta)}, {self.repeats} repeats"
        with picture.drawing(path, columns=len(found.settings), size=(5.6, 4.6), title=title) as panels:
            for axes, setting in zip(panels[0], found.settings, strict=True):
                self._panel(axes, found, setting)
            panels[0, 0].set_ylabel(self.SCORE)
            picture.legend(panels)

    def _panel(self, axes: Any, found: Results, setting: str) -> None:
        """Draw one setting; methods far worse than no model leave the panel."""
        private = found.private(setting)
        for place, method in enumerate(private):
            epsilons = found.epsilons(setting, method)
            scores = [found.of(setting, method, epsilon) for epsilon in epsilons]
            x = np.array(epsilons) * 10 ** (_ASIDE * (place - (len(private) - 1) / 2))
            means, bars = [float(one.mean()) for one in scores], [spread(one) for one in scores]
            axes.errorbar(x, means, yerr=bars, label=method, markersize=5, capsize=2, elinewidth=0.8, **STYLES[method])
        for method, style in LINES.items():
            axes.axhline(float(found.of(setting, method).mean()), label=method, **style)
        useless, best = (float(found.of(setting, one).mean()) for one in (NO_MODEL, found.non_private(setting)))
        picture.zero_line(axes, useless, NO_MODEL)
        reach = abs(useless - best)
        low, high = sorted((best + found.sign * 0.3 * reach, useless - found.sign * _ROOM * reach))
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, low), min(top, high))
        axes.set(xlabel="ε", title=TITLES[setting].partition(" (")[0])
        picture.epsilon_axis(axes, self.epsilons)


@dataclass(frozen=True, kw_only=True)
class Figure5(Figure4):
    """Figure 5 of the LDP paper: logistic regression of Adult's incomes from local reports, AUC over ε.

    Takes an hour and a half on two idle cores (estimated from parts of it), over half of it for perturbed inputs. 30
    splits of 48,842 people into 80 % and 20 %. As in the paper, LDP-SGD and perturbed inputs, which spend half of ε on
    the label, get 10,000 of the records. LDP-SGD runs with all of them, too.

    Each evaluation of perturbed inputs' likelihood needs all rows instead of one sum, so they run at three ε and for
    three repeats only. The polynomial of order 4 turns around at the ends of its interval, and its chains may not mix:
    R-hat was 1.5 in one of 18 fits, after three attempts. The exact sigmoid takes ten times as long, about four hours;
    run it separately by --exact-inputs, with the same --journal file.

    Exit code 4 if sufficient statistics, with all records, are not ahead of LDP-SGD, with 10,000, over ε <= 0.8 (as in
    the paper), if a private method is ahead of no privacy, or if chains have not mixed.
    """

    KIND, LABEL = "ldp-figure-5", "figure 5"
    QUICK: ClassVar = {**Figure4.QUICK, "inputs": 0, "exact_inputs": 0}
    SET, SCORE, SMALL, NEAR = ADULT, "AUC", 0.8, 0.03
    METHODS: ClassVar = (TIGHT, COROLLARY, *ORDERS, SGD, SGD_ALL, *WITHOUT_NOISE)

    inputs: int = option(3, "repeats of perturbed inputs, orders 2 and 4 (default 3)", type=positive, metavar="R")
    exact_inputs: int = option(0, "the same with the exact sigmoid (default: not)", type=positive, metavar="R")
