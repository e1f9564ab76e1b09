"""The findings about a coalition, and the verdict whether a claim is refuted.

*The noise that it cannot remove.* Differential privacy assumes that the coalition knows all data except the victim's.
It also knows the released sum, even without the trainer, because results are shared. It subtracts its own clients'
contributions and the honest clients' data from the sum; the noises of the honest clients remain. All M Compute nodes
together need no sum: a client's masked vector plus its M masks is its value with its own noise. Both are computed in
the ring, to the last bit. `emulator.reference` computes the noise that the claim needs, and the ε that a noise implies,
from the setting alone, so that a plan with too little noise does not judge itself. n noises of variance S imply the ε
of a Gaussian of variance n S - 9: the sum of discrete noises is as private, by the lemma of
`dca_proto.privacy.accounting`.

*The verdict.* Five documented properties are checked (PRIVACY.md). |A| determines whether a round is released or
aborted. The plan leaves the noise that the claim needs, if the claim covers the coalition. The measured noise is as
large as planned. The data that fewer than all M nodes hold depend on nothing. Traffic does not depend on data. A
coalition that the claim does not cover may break privacy: this is shown as a break, and refutes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import at_least
from dca_proto.wording import counted
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
"""Confidence of the reported intervals."""
_SMOOTHING = 9  # by the lemma, subtracted from the variance, in squared grid units
_SHOWN = 4  # coordinates of a recovered value
_ROUNDING = 1e-9
_SPARE = 1.4  # allows for chance: honest nodes may hold the victim's contribution more often than on average
_HOURS_MAX = 2
_MESSAGE_S, _WORD_S = 4e-4, 2e-7  # of a client and a Compute node; of a client and a coordinate
Progress = Callable[[int], None]

HOLDS, BROKEN, REFUTED = "holds", "break", "refuted"


class NoiseLeft(msgspec.Struct, frozen=True, kw_only=True):
    """Variances per coordinate, in the statistic's squared units.

    Attributes:
        left: of the `noises_left` planned noises that hide the victim. floor: (Δ/μ)², which the claim needs.
        needed: of the `noises_needed` = n_min - 1 - c planned noises, a little above the floor.
        measured: over the rounds, with an interval; None if no round was released.
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
    """The claimed epsilon, and the epsilon with the noise left, as planned and as measured; None means infinite."""

    claimed: Amount
    delta: Amount
    meant: Amount | None = None
    measured_interval: tuple[Amount | None, Amount | None] | None = None

    @property
    def exceeds(self) -> bool:
        """True if the coalition learns more from the sum than is claimed."""
        return self.meant is None or self.meant > self.claimed * (1 + _ROUNDING)


class Recovered(msgspec.Struct, frozen=True):
    """The victim's value as all M Compute nodes recover it, in the statistic's units.

    Attributes:
        truth, once: the first coordinates of the value, and of the value recovered in one round.
        mean: of the recovered values, over all rounds of that world and all coordinates. error: its standard error.
        deviation: the standard deviation of the noise in one round, which alone hides the value.
    """

    truth: tuple[float, ...]
    once: tuple[float, ...]
    mean: float
    error: float
    deviation: float


class Contributors(msgspec.Struct, frozen=True):
    """|A| and n_min."""

    found: int
    needed: int


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about a coalition.

    Attributes:
        sees: what it sees, item by item. released: whether rounds were released. view: whether it depends on data.
        recovered: the victim's value, if all M Compute nodes collude.
        refuted: the documented properties that do not hold, a sentence each.
        broken: whether the coalition learns more than the claim allows: a larger ε, or more than the private sum.
        verdict: `HOLDS`, `BROKEN` (as documented: the claim does not cover the coalition) or `REFUTED`.
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
    """Return the least number of rounds of each world for the tests.

    Args:
        nodes: K colluding Compute nodes; in about K of M rounds one of them holds the victim's contribution.
    """
    part = min(1.0, nodes / (_SPARE * setting.computes)) or 1.0
    return max(2, math.ceil(WORDS_MIN / (part * setting.dimension)))


def require_runs(setting: Setting, nodes: int, runs: int) -> None:
    """Refuse too few rounds, which prove nothing, or too many. Raises `UsageError` that states the limits."""
    least = least_runs(setting, nodes)
    if not least <= runs <= RUNS_MAX:
        raise UsageError(
            f"--rounds {runs}: expected {least} to {RUNS_MAX} at --dimension {setting.dimension}; fewer words than "
            f"{WORDS_MIN} in each world cannot be tested for uniformity"
        )
    round_s = setting.clients * (setting.computes * _MESSAGE_S + setting.dimension * _WORD_S)
    if 2 * runs * round_s > _HOURS_MAX * 3600:
        raise UsageError(
            f"--rounds {runs} of {setting.clients} clients would take about {2 * runs * round_s / 3600:,.0f} hours "
            f"(at most {_HOURS_MAX}); lower --rounds or --clients"
        )


def investigate(case: Case, runs: int, seed: str, progress: Progress = lambda done: None) -> Finding:
    """Run `runs` rounds of real actors in each world, and return the findings about the coalition.

    Args:
        seed: of all keys, noise and links; equal seeds give equal findings.
        progress: called with the number of rounds just done.

    Raises:
        UsageError: the clients declined.
    """
    is_same, watched, shown = same_traffic(case, seed)
    tally, values, outcomes = Tally(case), [], []
    square, count = 0.0, 0
    for side in (0, 1):
        rounds = Rounds(case, side, f"{seed}/{side}", IDEAL)
        for _ in range(runs):
            seen = rounds.run_round()
            tally.add(side, seen)
            rest = residual(case, seen)
            if rest is not None:
                noise = rest.astype(np.float64) * case.plan.unit
                square, count = square + float(noise @ noise), count + rest.size
            outcomes.append(seen.total is not None)
            if case.has_all_nodes and side == 0:
                values.append(_recovered_value(seen) * case.plan.unit)
            progress(1)
    spread = Spread(square / count, count) if count else None  # second moment about zero
    view = Dependence.of(list(tally.tests()), same_traffic=is_same)
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


def residual(case: Case, seen: Round) -> Integers | None:
    """Return a round's result minus all that the coalition knows, in grid units; None if it has no result."""
    if case.has_all_nodes:
        return _recovered_value(seen) - seen.secret
    return None if seen.total is None else seen.total - seen.known - seen.honest


def _recovered_value(seen: Round) -> Integers:
    assert seen.victim is not None, "if all nodes collude, one holds it"
    return seen.victim.view(np.int64)


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
    """Return epsilon at the claimed δ; 0 if the coalition gets neither a sum nor a value."""

    def of(variance: float) -> float | None:
        """Return the epsilon of a Gaussian; None without noise."""
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
    """Return the documented properties that do not hold, a sentence each."""
    upper = math.inf if spread is None else spread.upper(ALARM)
    depends = not case.has_all_nodes and view.p_value is not None and view.p_value < ALARM
    is_short = case.is_released and (noise.left < noise.floor or epsilon.exceeds)
    wrong = outcomes.count(not case.is_released)
    violations = {
        f"{counted(wrong, 'round')} {'aborted' if case.is_released else 'released'} with |A| = {case.contributors}, "
        f"where {case.setting.needed} are needed": wrong > 0,
        "the plan leaves less noise than the claim needs": case.is_covered and is_short,
        f"the noise left has a variance of at most {upper:.4g}, and should have {noise.left:.4g}": upper < noise.left,
        f"the coalition's view depends on more than the private sum ({view.worst})": depends,
        "traffic differs between two inputs": not view.same_traffic,
    }
    return [text for text, holds in violations.items() if holds]


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
    """A round, the number of rounds in each world, and the seed that repeats them."""

    runs: int = 0
    seed: int = 0


class Result(Finding, frozen=True, kw_only=True):
    """The result of `dca emulate collude`: `--json` writes it, and the report reads it.

    Attributes:
        covered: whether the claim covers the coalition. why: the verdict as a sentence. seconds: duration.
    """

    kind: str = "collusion"
    setting: Seeded
    coalition: Coalition
    covered: bool
    why: str
    seconds: Amount


def result(case: Case, finding: Finding, runs: int, seed: int, seconds: float) -> Result:
    """Return the record of an investigation."""
    return Result(
        **msgspec.structs.asdict(finding),
        setting=Seeded(**msgspec.structs.asdict(case.setting), runs=runs, seed=seed),
        coalition=case.coalition,
        covered=case.is_covered,
        why=sentence(case, finding),
        seconds=seconds,
    )


def case_lines(case: Case, runs: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield the claim, the coalition and the rounds, for the start of an investigation."""
    setting = case.setting
    columns = counted(setting.dimension, "column")
    yield "claim", f"{setting.promise} for each client; {setting.swarm}; a sum of {columns}"
    covered = "the claim covers it" if case.is_covered else "the claim does not cover it"
    noises = f"{counted(case.noises_left, 'unknown noise')}, the claim needs {setting.honest}"
    yield "coalition", f"{case.coalition}; {noises}: {covered}"
    yield "rounds", f"{runs} of real actors in each of two worlds that differ in one client's data; --seed {seed}"


def sentence(case: Case, finding: Finding) -> str:
    """Return the verdict in plain words."""
    if finding.verdict == REFUTED:
        return (
            f"Documented properties do not hold: {'; '.join(finding.refuted)}. Each would accuse a correct program "
            f"less than once in {1 / ALARM:,.0f} reports."
        )
    if case.has_all_nodes:
        return _all_nodes(case, finding)
    return f"{_noise_left(case, finding)} {_view(case, finding)}"


def _all_nodes(case: Case, finding: Finding) -> str:
    found, noise, epsilon = finding.recovered, finding.noise, finding.epsilon
    assert found is not None, "all M nodes recover it"
    once, truth = (", ".join(f"{value:.3g}" for value in values) for values in (found.once, found.truth))
    aborted = "" if finding.released else " (although the round was aborted)"
    return (
        f"The documented break: all M = {case.setting.computes} Compute nodes together remove all masks from a "
        f"contribution{aborted}. They get its value with its own noise only: {once} for {truth}, with a standard "
        f"deviation of {found.deviation:.3g}. This one noise, of {noise.noises_needed} needed, gives epsilon "
        f"{_bound(epsilon.meant)}. The claim of epsilon {at_least(epsilon.claimed)} needs at least one honest node."
    )


def _noise_left(case: Case, finding: Finding) -> str:
    noise, epsilon, setting = finding.noise, finding.epsilon, case.setting
    if not finding.released:
        return (
            f"The round is aborted, as it must be: {finding.contributors.found} contributions arrived and "
            f"n_min = N - T + c = {finding.contributors.needed} are needed, so nothing is released."
        )
    unknown = counted(noise.noises_left, "unknown noise")
    ratio = f"{noise.left / noise.floor:.3f} times the floor"
    if finding.verdict == HOLDS:
        return (
            f"The claim holds: {unknown} hide{'s' * (noise.noises_left == 1)} the client, and {noise.noises_needed} "
            f"are needed. Together, their variance is {ratio}, which gives epsilon {_bound(epsilon.meant)} of "
            f"{at_least(epsilon.claimed)}.{_worse(case)}"
        )
    missing = case.coalition.clients + case.coalition.left_out
    return (
        f"A documented break: {missing} clients collude or drop out, and the claim of epsilon "
        f"{at_least(epsilon.claimed)} covers at most T + 1 = {setting.tolerated + 1}, including the curious one. "
        f"Unknown noises left: {noise.noises_left}, of {noise.noises_needed} needed. Together, their variance is "
        f"{ratio}, which gives epsilon {_bound(epsilon.meant)}."
    )


def _worse(case: Case) -> str:
    """Return a note if the Compute nodes could reduce the noise below the claim by leaving out more honest clients."""
    spare = min(case.contributors - case.setting.needed, len(case.honest) - 1)
    fewer = case.noises_left - spare
    if not case.coalition.nodes or fewer >= case.setting.honest:
        return ""
    return (
        f" Its Compute nodes could leave out {spare} more honest clients (--left-out "
        f"{case.coalition.left_out + spare}), which count as drop-outs in the claim. Then {counted(fewer, 'noise')} "
        "would remain."
    )


def _view(case: Case, finding: Finding) -> str:
    has_sum = case.coalition.trainer and finding.released
    if finding.view.p_value is None:
        return f"It sees {'the private sum and' if has_sum else 'only'} traffic, which is the same for both inputs."
    return (
        f"What it sees shows no dependence on any client's data{', except through the private sum' if has_sum else ''} "
        f"(p = {finding.view.p_value:.2g} over {len(finding.view.tests)} tests; traffic is the same to the byte)."
    )


def _bound(epsilon: float | None) -> str:
    return at_least(math.inf if epsilon is None else epsilon)
