"""What an investigation of a coalition found, and whether a claim that should hold is refuted.

Five things are held against what is documented (PRIVACY.md): that a round is released or aborted as |S| says; that the
plan leaves a covered coalition the noise that the claim needs; that the measured noise is as much as the plan says;
that what fewer than all M nodes hold depends on nothing; and that traffic does not depend on data. What the claim does
not cover is a break, and is shown as one, but refutes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from dca_proto.errors import UsageError
from emulator.collusion.coalition import Case, Setting
from emulator.collusion.dependence import ALARM, WORDS_MIN, Dependence, Tally, joint_p_value, same_traffic
from emulator.collusion.observations import observations
from emulator.collusion.residual import Measured, Noise, Residuals, noise_of, opened, residual
from emulator.collusion.rounds import Round, Rounds
from emulator.sim.link import IDEAL

RUNS_MAX = 20_000
_SHOWN = 4  # coordinates of a recovered value
_ROUNDING = 1e-9
_SPARE = 1.4  # by chance, a client may be held by others more often
_HOURS_MAX = 2
_MESSAGE_S, _WORD_S = 4e-4, 2e-7  # of a client and a Compute node; of a client and a coordinate
Progress = Callable[[int], None]

HOLDS, BROKEN, REFUTED = "holds", "break", "refuted"


class Recovered(msgspec.Struct, frozen=True):
    """What all M Compute nodes make of the victim's contribution, in the statistic's units.

    Attributes:
        truth, once: the first coordinates of its value, and of what is recovered in one round.
        mean: of what is recovered, over all rounds of that world and coordinates; `error` is its standard error.
        deviation: the standard deviation of the noise in one round, which is all that hides the value.
    """

    truth: tuple[float, ...]
    once: tuple[float, ...]
    mean: float
    error: float
    deviation: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found.

    Attributes:
        runs: rounds in each world. sees: item by item. noise: from the plan. measured: over the rounds.
        view: whether what is seen depends on data. recovered: by all M Compute nodes.
        released: whether rounds were. contributors, needed: |S| and n_min.
        refuted: which of the documented properties do not hold, in words.
    """

    runs: int
    sees: tuple[str, ...]
    noise: Noise
    measured: Measured | None
    view: Dependence
    recovered: Recovered | None
    released: bool
    contributors: int
    needed: int
    refuted: tuple[str, ...]

    @property
    def is_broken(self) -> bool:
        """Whether the coalition learns more than the claim allows: another ε, or more than the private sum."""
        return bool(self.refuted) or self.view.depends_on_data or _exceeds(self.noise)

    @property
    def verdict(self) -> str:
        """One of `HOLDS`, `BROKEN` (as documented: the claim does not cover it) and `REFUTED`."""
        if self.refuted:
            return REFUTED
        return BROKEN if self.is_broken else HOLDS


def least_runs(setting: Setting, nodes: int) -> int:
    """How many rounds of each world the tests ask for.

    Args:
        nodes: how many Compute nodes collude: in so many of M rounds one of them holds the victim's contribution.
    """
    part = min(1.0, nodes / (_SPARE * setting.computes)) or 1.0
    return max(2, math.ceil(WORDS_MIN / (part * setting.dimension)))


def require_runs(setting: Setting, nodes: int, runs: int) -> None:
    """Refuse a number of rounds that proves nothing or does not end. Raises `UsageError` with one that does."""
    least = least_runs(setting, nodes)
    if not least <= runs <= RUNS_MAX:
        raise UsageError(
            f"--runs {runs}: expected {least} to {RUNS_MAX} at --dimension {setting.dimension}; fewer words than "
            f"{WORDS_MIN} in each world cannot be tested for uniformity"
        )
    round_s = setting.clients * (setting.computes * _MESSAGE_S + setting.dimension * _WORD_S)
    if 2 * runs * round_s > _HOURS_MAX * 3600:
        raise UsageError(
            f"--runs {runs} of {setting.clients} clients would take about {2 * runs * round_s / 3600:,.0f} hours "
            f"(at most {_HOURS_MAX}); lower --runs or --clients"
        )


def investigate(case: Case, runs: int, seed: str, progress: Progress = lambda done: None) -> Finding:
    """Hold `runs` rounds of real actors in each world and say what the coalition makes of them.

    Args:
        seed: of all keys, noise and links: equal ones give equal findings. progress: told of rounds that are done.

    Raises:
        UsageError: the clients would not take part.
    """
    alike, watched, shown = same_traffic(case, seed)
    tally, residuals, values = Tally(case), Residuals(case), []
    outcomes = []
    for side in (0, 1):
        rounds = Rounds(case, side, f"{seed}/{side}", IDEAL)
        for _ in range(runs):
            one = rounds.hold()
            tally.add(side, one)
            residuals.add(residual(case, one))
            outcomes.append(one.total is not None)
            if case.has_all_nodes and side == 0:
                values.append(opened(one) * case.plan.unit)
            progress(1)
    tests = tally.tests()
    view = Dependence(tests, joint_p_value(tests), alike)
    noise = noise_of(case)
    return Finding(
        runs=runs,
        sees=observations(case, shown, watched.traffic),
        noise=noise,
        measured=residuals.measured(),
        view=view,
        recovered=_recovered(case, shown, np.array(values)) if values else None,
        released=any(outcomes),
        contributors=case.contributors,
        needed=case.setting.needed,
        refuted=tuple(_refuted(case, noise, residuals, view, outcomes)),
    )


def _refuted(case: Case, noise: Noise, residuals: Residuals, view: Dependence, outcomes: list[bool]) -> list[str]:
    """What is documented and does not hold."""
    spread = residuals.spread
    upper = math.inf if spread is None else spread.upper(ALARM)
    seen = not case.has_all_nodes and view.p_value is not None and view.p_value < ALARM
    found = {
        f"{outcomes.count(not case.is_released)} rounds ended otherwise than |S| = {case.contributors} of "
        f"{case.setting.needed} needed says": any(one != case.is_released for one in outcomes),
        "the plan leaves less noise than the claim needs": case.is_covered and _is_short(case, noise),
        f"the noise left has a variance of at most {upper:.4g}, and should have {noise.left:.4g}": upper < noise.left,
        f"what the coalition sees depends on more than the private sum ({_worst(view)})": seen,
        "traffic differs between two inputs": not view.same_traffic,
    }
    return [said for said, holds in found.items() if holds]


def _is_short(case: Case, noise: Noise) -> bool:
    return case.is_released and (noise.left < noise.floor or _exceeds(noise))


def _exceeds(noise: Noise) -> bool:
    return noise.meant > noise.claimed * (1 + _ROUNDING)


def _worst(view: Dependence) -> str:
    worst = view.worst
    return f"{worst.of} are not {worst.against}, p = {worst.p_value:.2g}" if worst else ""


def _recovered(case: Case, shown: Round, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Recovered:
    unit, deviation = case.plan.unit, case.plan.noise_std
    return Recovered(
        truth=tuple((shown.secret * unit)[:_SHOWN].tolist()),
        once=tuple(values[0][:_SHOWN].tolist()),
        mean=float(values.mean()),
        error=deviation / math.sqrt(values.size),
        deviation=deviation,
    )
