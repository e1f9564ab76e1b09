"""What an investigation of a coalition found, and whether a claim that should hold is refuted.

*The noise that it cannot remove.* Differential privacy grants the coalition all data but the victim's, and the released
sum, whether the trainer belongs to it or not: results get about. It subtracts from the sum what its own clients put in,
and the honest clients' data; what is left is the noises of the honest clients. All M Compute nodes together need no
sum: a client's masked vector and its M masks add up to its value with its own noise. Both are computed in the ring, to
the last bit. What the claim needs, and the ε that noise means, `emulator.reference` says from the setting alone: a plan
with too little noise does not judge itself. The ε that n noises of variance S mean is that of the Gaussian of variance
n S - 9: the sum of discrete noises is as private, by the lemma of `dca_proto.privacy.accounting`.

*The verdict.* Five things are checked against what is documented (PRIVACY.md): that a round is released or aborted as
|S| says; that the plan leaves a covered coalition the noise that the claim needs; that the measured noise is as much as
the plan says; that what fewer than all M nodes hold depends on nothing; and that traffic does not depend on data. What
the claim does not cover is a break, and is shown as one, but refutes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.fixedpoint import from_ring
from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import at_least
from emulator import reference
from emulator.audit.bounds import Spread
from emulator.collusion.coalition import Case, Coalition, Setting
from emulator.collusion.dependence import ALARM, WORDS_MIN, Dependence, Tally, same_traffic
from emulator.collusion.rounds import Integers, Round, Rounds
from emulator.collusion.view import observations
from emulator.results import Amount
from emulator.sim.link import IDEAL

RUNS_MAX = 20_000
CONFIDENCE = 0.95
"""Of the intervals that are shown."""
_SMOOTHING = 9  # what the lemma takes from the variance, in squared grid units
_SHOWN = 4  # coordinates of a recovered value
_ROUNDING = 1e-9
_SPARE = 1.4  # by chance, a client may be held by others more often
_HOURS_MAX = 2
_MESSAGE_S, _WORD_S = 4e-4, 2e-7  # of a client and a Compute node; of a client and a coordinate
Progress = Callable[[int], None]

HOLDS, BROKEN, REFUTED = "holds", "break", "refuted"


class NoiseLeft(msgspec.Struct, frozen=True, kw_only=True):
    """Variances per coordinate, in the statistic's squared units.

    Attributes:
        left: by the plan, of the `noises_left` noises that hide the victim. floor: (Δ/μ)², what the claim needs.
        needed: of the `noises_needed` = n_min - 1 - c noises of the plan, a little above the floor.
        measured: over the rounds, with an interval; None where none was released.
    """

    left: Amount
    floor: Amount
    needed: Amount
    noises_left: int
    noises_needed: int
    measured: Amount | None = None
    measured_interval: tuple[Amount, Amount] | None = None
    confidence: Amount = CONFIDENCE


class EpsilonLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What is claimed, and what the noise left means by the plan and as measured; None is infinite: no bound at all."""

    claimed: Amount
    delta: Amount
    meant: Amount | None = None
    measured_interval: tuple[Amount | None, Amount | None] | None = None

    @property
    def exceeds(self) -> bool:
        """Whether the coalition learns more from the sum than is claimed."""
        return self.meant is None or self.meant > self.claimed * (1 + _ROUNDING)


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


class Contributors(msgspec.Struct, frozen=True):
    """|S| and n_min."""

    found: int
    needed: int


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found.

    Attributes:
        sees: item by item. released: whether rounds were. view: whether what is seen depends on data.
        recovered: by all M Compute nodes. refuted: which of the documented properties do not hold, a sentence each.
        broken: whether the coalition learns more than the claim allows: another ε, or more than the private sum.
        verdict: one of `HOLDS`, `BROKEN` (as documented: the claim does not cover it) and `REFUTED`.
    """

    sees: list[str]
    released: bool
    contributors: Contributors
    noise: NoiseLeft
    epsilon: EpsilonLeft
    view: Dependence
    recovered: Recovered | None
    verdict: str
    broken: bool
    refuted: list[str]


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
        seed: of all keys, noise and links: equal ones give equal findings. progress: called with the number of rounds
        that are done.

    Raises:
        UsageError: the clients would not take part.
    """
    alike, watched, shown = same_traffic(case, seed)
    tally, values, outcomes = Tally(case), [], []
    square, count = 0.0, 0
    for side in (0, 1):
        rounds = Rounds(case, side, f"{seed}/{side}", IDEAL)
        for _ in range(runs):
            one = rounds.hold()
            tally.add(side, one)
            left = residual(case, one)
            if left is not None:
                noise = left.astype(np.float64) * case.plan.unit
                square, count = square + float(noise @ noise), count + left.size
            outcomes.append(one.total is not None)
            if case.has_all_nodes and side == 0:
                values.append(_opened(one) * case.plan.unit)
            progress(1)
    spread = Spread(square / count, count) if count else None  # about zero
    view = Dependence.of(list(tally.tests()), same_traffic=alike)
    noise_left, epsilon = _noise(case, spread), _epsilon(case, spread)
    refuted = _refuted(case, noise_left, epsilon, spread, view, outcomes)
    broken = bool(refuted) or view.depends_on_data or epsilon.exceeds
    return Finding(
        sees=list(observations(case, watched)),
        released=any(outcomes),
        contributors=Contributors(case.contributors, case.setting.needed),
        noise=noise_left,
        epsilon=epsilon,
        view=view,
        recovered=_recovered(case, shown, np.array(values)) if values else None,
        verdict=REFUTED if refuted else BROKEN if broken else HOLDS,
        broken=broken,
        refuted=refuted,
    )


def residual(case: Case, one: Round) -> Integers | None:
    """What is left of a round, in grid units, when all that the coalition knows is subtracted.

    None where it learned nothing to subtract from.
    """
    if case.has_all_nodes:
        return _opened(one) - one.secret
    return None if one.total is None else one.total - one.known - one.honest


def _opened(one: Round) -> Integers:
    assert one.victim is not None, "one of all nodes holds it"
    return from_ring(one.victim)


def _noise(case: Case, spread: Spread | None) -> NoiseLeft:
    setting, each = case.setting, case.plan.noise_std**2
    return NoiseLeft(
        left=case.noises_left * each,
        floor=reference.least_variance(setting.l2, setting.epsilon, setting.delta),
        needed=setting.honest * each,
        noises_left=case.noises_left,
        noises_needed=setting.honest,
        measured=None if spread is None else spread.variance,
        measured_interval=None if spread is None else spread.interval(CONFIDENCE),
    )


def _epsilon(case: Case, spread: Spread | None) -> EpsilonLeft:
    """At the claimed δ; 0 where nothing is released and nothing opened."""

    def of(variance: float) -> float | None:
        """Of a Gaussian of that variance; None without noise."""
        if variance <= 0:
            return None
        return reference.epsilon_of(case.setting.l2 / math.sqrt(variance), case.setting.delta)

    learns = case.is_released or case.has_all_nodes
    variance = case.noises_left * case.plan.noise_variance - _SMOOTHING
    low, high = (None, None) if spread is None else spread.interval(CONFIDENCE)
    return EpsilonLeft(
        claimed=case.setting.epsilon,
        delta=case.setting.delta,
        meant=of(variance * case.plan.unit**2) if learns else 0.0,
        measured_interval=None if low is None or high is None else (of(high), of(low)),
    )


def _refuted(
    case: Case,
    noise: NoiseLeft,
    epsilon: EpsilonLeft,
    spread: Spread | None,
    view: Dependence,
    outcomes: Sequence[bool],
) -> list[str]:
    """What is documented and does not hold."""
    upper = math.inf if spread is None else spread.upper(ALARM)
    seen = not case.has_all_nodes and view.p_value is not None and view.p_value < ALARM
    is_short = case.is_released and (noise.left < noise.floor or epsilon.exceeds)
    found = {
        f"{outcomes.count(not case.is_released)} rounds ended otherwise than |S| = {case.contributors} of "
        f"{case.setting.needed} needed says": any(one != case.is_released for one in outcomes),
        "the plan leaves less noise than the claim needs": case.is_covered and is_short,
        f"the noise left has a variance of at most {upper:.4g}, and should have {noise.left:.4g}": upper < noise.left,
        f"what the coalition sees depends on more than the private sum ({view.worst})": seen,
        "traffic differs between two inputs": not view.same_traffic,
    }
    return [said for said, holds in found.items() if holds]


def _recovered(case: Case, shown: Round, values: NDArray[np.float64]) -> Recovered:
    unit, deviation = case.plan.unit, case.plan.noise_std
    return Recovered(
        truth=tuple((shown.secret * unit)[:_SHOWN].tolist()),
        once=tuple(values[0][:_SHOWN].tolist()),
        mean=float(values.mean()),
        error=deviation / math.sqrt(values.size),
        deviation=deviation,
    )


class Seeded(Setting, frozen=True, kw_only=True):
    """A round, how many of them were held in each world, and the seed that repeats them."""

    runs: int = 0
    seed: int = 0


class Result(Finding, frozen=True, kw_only=True):
    """What `--json` writes and the report reads: the finding, and how it was made.

    Attributes:
        covered: whether the claim speaks of the coalition. why: the verdict as a sentence. seconds: that it took.
    """

    kind: str = "collusion"
    setting: Seeded
    coalition: Coalition
    covered: bool
    why: str
    seconds: Amount


def result(case: Case, finding: Finding, runs: int, seed: int, seconds: float) -> Result:
    """Everything, for programs."""
    return Result(
        **msgspec.structs.asdict(finding),
        setting=Seeded(**msgspec.structs.asdict(case.setting), runs=runs, seed=seed),
        coalition=case.coalition,
        covered=case.is_covered,
        why=sentence(case, finding),
        seconds=seconds,
    )


def case_lines(case: Case, runs: int, seed: int) -> Iterator[tuple[str, str]]:
    """Before the work: the claim, the coalition, the rounds; a label and a text each."""
    setting = case.setting
    columns = f"a sum of {setting.dimension} column{'s' * (setting.dimension > 1)}"
    yield "claim", f"{setting.promise} for each client; {setting.swarm}; {columns}"
    covered = "the claim covers it" if case.is_covered else "the claim does not cover it"
    hides = f"{case.noises_left} unknown noise{'s' * (case.noises_left > 1)}, the claim needs {setting.honest}"
    yield "coalition", f"{case.coalition}; {hides}: {covered}"
    yield "rounds", f"{runs} of real actors in each of two worlds that differ in one client's data; --seed {seed}"


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
    once, truth = (", ".join(f"{value:.3g}" for value in values) for values in (found.once, found.truth))
    aborted = "" if finding.released else " (although the round was aborted)"
    return (
        f"The documented break: all M = {case.setting.computes} Compute nodes together take all masks off "
        f"a contribution{aborted} and have its value with its own noise alone: {once} for {truth}, with a standard "
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
    has_sum = case.coalition.trainer and finding.released
    if finding.view.p_value is None:
        return f"It sees {'the private sum and' if has_sum else 'only'} traffic, which is the same for both inputs."
    return (
        f"What it sees depends on no client's data {'but through the private sum ' if has_sum else ''}"
        f"(p = {finding.view.p_value:.2g} over {len(finding.view.tests)} tests; traffic is the same to the byte)."
    )


def _bound(epsilon: float | None) -> str:
    return at_least(math.inf if epsilon is None else epsilon)
