"""The findings about a coalition, and the verdict whether the claim is refuted.

Bounds have the confidence that the user asked for. The verdict is stricter: it refutes a claim only on evidence that a
correct program shows less than once in 10,000 audits, for all kinds of evidence together. Evidence that a correct
program shows less than once in 100 audits is reported as a doubt.

Some evidence refutes the claim whatever the coalition: noise that is smaller than planned or of another shape, a secret
that others learn, a view or traffic that depends on data, a round that is released or aborted when it must not be. A
larger ε counts only against a coalition that the claim covers; beyond that it is a documented break, which refutes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from dca_proto.crypto.bounded import Statement
from dca_proto.privacy import accounting
from dca_proto.privacy.verified import UNIFORMS_MIN, release_cost
from dca_proto.results.figure import Amount, about
from emulator import reference
from emulator.coalition.actors import same_traffic
from emulator.coalition.adversary import Experiment
from emulator.coalition.bounds import (
    Distributions,
    Errors,
    Samples,
    Spread,
    TradeOff,
    best_thresholds,
    count_errors,
    epsilon_lower_cp,
    epsilon_lower_gdp,
    mu_lower,
    noticeable,
)
from emulator.coalition.dependence import SeenCounts, Test, joint_p_value
from emulator.coalition.programme import Programme
from emulator.coalition.uniformity import View, bonferroni
from emulator.coalition.uniformity import joint_p_value as joint_p_of_views
from emulator.coalition.view import SeenRound, observations
from emulator.coalition.worlds import Setting, Worlds
from emulator.trials.rehearsal import leaked_secrets

STANDS, REFUTED, NOT_COVERED = "stands", "refuted", "not covered"
FALSE_ALARM = 1e-4
DOUBT = 1e-2
KINDS = 6
"""Kinds of evidence to which chance contributes: two bounds on ε, the noise's variance and its shape, masked
contributions, the law of real rounds. Each gets an equal part of the false alarms."""
_OF_COVERED = {"epsilon-gdp", "epsilon-cp", "plan"}
"""Evidence only against a claim that covers the coalition."""
_SHOWN = 4  # coordinates of a recovered value
_SMOOTHING = 9
"""n discrete noises of variance S are as private as a Gaussian of variance n S - 9, in squared grid units, by the lemma
of `dca_proto.privacy.accounting`."""
_ROUNDING = 1e-9


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """The noises that hide the victim, by the plan; variances in the statistic's squared units."""

    unknown: Annotated[int, about("How many noises the coalition does not know.")]
    needed: Annotated[int, about("How many the claim needs.")]
    planned: Annotated[Amount, about("The variance of the unknown noises together, on any line.")]
    floor: Annotated[Amount, about("The variance that the claim needs on every line.")]
    epsilon: Annotated[
        Amount | None,
        about("That the planned noise implies at the claim's delta; null without noise or, in a verified sum, with too "
              "few noise numbers, 0 if nothing is released."),
    ]  # fmt: skip


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """What the guesses of the adversary prove, and the noise that it could not remove."""

    confidence: Annotated[float, about("Of the bounds and the intervals.")]
    epsilon_lower_gdp: Annotated[float, about("A lower bound on epsilon, for programs that claim Gaussian DP.")]
    mu_lower: Annotated[float, about("The same bound, in Gaussian DP.")]
    epsilon_lower_cp: Annotated[float, about("A lower bound on epsilon, for any mechanism.")]
    threshold_gdp: Annotated[float, about("The adversary's threshold for epsilon_lower_gdp.")]
    threshold_cp: Annotated[float, about("The adversary's threshold for epsilon_lower_cp.")]
    line: Annotated[tuple[float, ...], about("The line on which it guesses, a unit vector.")]
    variance: Annotated[float, about("Of the noise on that line, in squared units.")]
    variance_ratio: Annotated[float, about("That variance, divided by the claim's floor.")]
    variance_interval: Annotated[tuple[float, float], about("Interval of that variance.")]
    least_variance: Annotated[
        float,
        about(
            "The least on any of the lines: the attack's, the one of least noise in the survey runs, each coordinate, "
            "and lines across them."
        ),
    ]
    least_variance_interval: Annotated[
        tuple[float, float], about("Interval of the least variance, simultaneous for all lines.")
    ]
    least_line: Annotated[tuple[float, ...], about("The line of the least variance.")]
    lines: Annotated[int, about("The number of lines.")]
    variance_noticeable: Annotated[
        float, about("A relative shortfall on one of these lines that is nearly always detected.")
    ]
    mean_variance: Annotated[float, about("Averaged over all coordinates.")]
    mean_variance_interval: Annotated[tuple[float, float], about("Interval of the average.")]
    mean_noticeable: Annotated[float, about("A relative shortfall of the average that is nearly always detected.")]
    distributions: Annotated[Distributions, about("What the adversary saw in the main runs.")]
    trade_off: Annotated[TradeOff, about("Its error rates in the main runs.")]


class NoiseShape(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the tests of the noise's shape."""

    draws: Annotated[dict[str, int], about("Number of values of each kind of noise.")]
    tests: Annotated[int, about("Number of tests.")]
    p_value: Annotated[Amount, about("A bound on that of all tests together.")]
    wrong: Annotated[tuple[str, ...], about("What fails, as sentences.")] = ()


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The victim's value as all Compute nodes recover it, in the statistic's units."""

    truth: Annotated[tuple[float, ...], about("The first coordinates of the value.")]
    once: Annotated[tuple[float, ...], about("The same coordinates, as recovered in one round.")]
    mean: Annotated[float, about("Of the recovered values, over all rounds of world 0 and all coordinates.")]
    error: Annotated[float, about("Its standard error.")]
    deviation: Annotated[float, about("The standard deviation of the noise in one round, which alone hides the value.")]


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """What real actors' messages show to the coalition."""

    sees: Annotated[list[str], about("All that it sees, item by item.")]
    contributors: Annotated[int, about("How many clients contribute.")]
    needed: Annotated[int, about("The fewest contributions that may be released.")]
    rounds: Annotated[int, about("Number of rounds, of both worlds.")]
    released: Annotated[int, about("Of how many rounds the sum was released.")]
    same_traffic: Annotated[bool, about("Whether messages are the same in both worlds, but for what is sealed.")]
    tests: Annotated[list[Test], about("Whether its view depends on data.")]
    recovered: Annotated[Recovered | None, about("The victim's value, if all Compute nodes collude.")] = None
    same_law_p: Annotated[
        Amount | None, about("p-value of the test that real actors and the ideal functionality have one law.")
    ] = None
    leaked: Annotated[list[str], about("How others learn a secret, a sentence each.")] = []

    @property
    def worst(self) -> str:
        """The test with the least p-value, as a sentence."""
        worst = min(self.tests, key=lambda test: test.p_value, default=None)
        return f"{worst.of} are not {worst.against}, p = {worst.p_value:.2g}" if worst else ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about a coalition, and the verdict."""

    setting: Annotated[Setting, about("The operating point, and the coalition.")]
    covered: Annotated[bool, about("Whether the claim covers the coalition.")]
    mu_claimed: Annotated[Amount, about("The claim, in Gaussian DP.")]
    noise: Annotated[Noise, about("The noises that hide the victim, by the plan.")]
    attack: Annotated[
        Attack | None, about("What guesses prove; null if there is nothing to guess from, as rounds are aborted.")
    ]
    shape: Annotated[NoiseShape, about("The tests of the noise's shape.")]
    uniformity: Annotated[tuple[View, ...], about("Tests of views of masked contributions.")] = ()
    masks_p: Annotated[
        Amount | None, about("Of these and of the tests of real messages together; null if the coalition sees none.")
    ] = None
    messages: Annotated[Messages | None, about("Of real actors; null if the ideal functionality drew the sums.")] = None
    verdict: Annotated[str, about("stands, refuted or not covered.")]
    evidence: Annotated[tuple[str, ...], about("The kinds of evidence that refuted the claim.")]
    doubts: Annotated[tuple[str, ...], about("The kinds of evidence at 99 %.")]
    verdict_confidence: Annotated[float, about("Of the evidence.")] = 1 - FALSE_ALARM


class Result(Finding, frozen=True, kw_only=True):
    """The result of `dca audit`: `--json` writes it, and the report reads it."""

    kind: Annotated[str, about("The kind of run.")] = "audit"
    sentence: Annotated[str, about("The verdict in plain words.")]
    audited: Annotated[str, about("protocol or ideal functionality.")]
    fault: Annotated[str | None, about("Name of the planted fault.")] = None
    fault_meaning: Annotated[str | None, about("What it does.")] = None
    moved: Annotated[list[str], about("What it changed in the setting.")]
    runs: Annotated[int, about("Runs of each world.")]
    pilot_runs: Annotated[int, about("Runs of each world that chose the thresholds.")]
    seed: Annotated[int | None, about("Of all randomness; null for fresh keys.")] = None
    seconds: Annotated[float, about("Duration of the audit.", unit="s")]


class _Evidence(NamedTuple):
    """Possible evidence against a claim: errors at the two thresholds, the least noise of `lines` and on average.

    A p-value is 0 for what is certain, and None where nothing was tested.
    """

    guesses: tuple[Errors, Errors] | None
    noise: tuple[Spread, Spread]
    lines: int
    p_values: dict[str, float | None]

    def against(self, world: Worlds, false_alarm: float) -> tuple[str, ...]:
        """Return the kinds of evidence; a correct program shows any with probability `false_alarm` at most."""
        risk, epsilon, delta = false_alarm / KINDS, world.setting.epsilon, world.setting.delta
        kinds = {name: p_value is not None and p_value < risk for name, p_value in self.p_values.items()}
        if self.guesses is not None:
            gdp, cp = self.guesses
            kinds["epsilon-gdp"] = epsilon_lower_gdp(gdp, delta, 1 - risk) > epsilon
            kinds["epsilon-cp"] = float(epsilon_lower_cp(cp, delta, 1 - risk)) > epsilon
            least = min(spread.upper(risk / (self.lines + 1)) for spread in self.noise)
            kinds["variance"] = least < world.planned
        found = (name for name, holds in kinds.items() if holds)
        return tuple(name for name in found if world.setting.covered or name not in _OF_COVERED)


class Watched(NamedTuple):
    """What real actors' rounds show besides their sums."""

    sees: list[str]
    same_traffic: bool
    once: SeenRound
    leaked: list[str]
    same_law_p: float | None


def watch(world: Worlds, seed: str, same_law_p: float | None) -> Watched:
    """Run a few rounds over bad links, and trials that search for secrets."""
    same, view, once = same_traffic(world, seed)
    return Watched([*observations(world.setting, view)], same, once, leaked_secrets(world.setting, seed), same_law_p)


def find(
    world: Worlds,
    programme: Programme,
    seen: Experiment,
    views: Sequence[View],
    confidence: float,
    watched: Watched | None = None,
) -> Finding:
    """Return the figures and the verdict.

    Args:
        programme: what clients run. views: of contributions that are masked for these tests.
        watched: if real actors ran.
    """
    setting, lines = world.setting, tuple(seen.noise.along(seen.lines))
    noise, shape = plan_of(world, programme), seen.shape.verdict(FALSE_ALARM / KINDS)
    messages = None if watched is None else _messages(world, seen, watched)
    tests = _joint(joint_p_of_views(views), None if messages is None else joint_p_value(messages.tests))
    p_values = {"uniformity": None if setting.has_all_computes else tests, "shape": shape.p_value}
    if messages is not None:
        ended = messages.rounds * setting.is_released
        certain = {
            "secrecy": bool(messages.leaked),
            "release": messages.released != ended,
            "traffic": not messages.same_traffic,
        }
        p_values |= {name: 0.0 if holds else None for name, holds in certain.items()}
        p_values["same-law"] = messages.same_law_p
    p_values["plan"] = 0.0 if setting.is_released and is_short(noise, setting.epsilon) else None
    least = min(range(len(lines)), key=lambda place: lines[place].variance)
    attack, guesses = _attack(world, seen, lines, least, confidence) if seen.has_sums else (None, None)
    possible = _Evidence(guesses, (lines[least], seen.noise.mean), len(lines), p_values)
    evidence = possible.against(world, FALSE_ALARM)
    return Finding(
        setting=setting,
        covered=setting.covered,
        mu_claimed=world.mu,
        noise=noise,
        attack=attack,
        shape=NoiseShape(draws=seen.shape.draws, tests=shape.tests, p_value=shape.p_value, wrong=shape.broken[:_SHOWN]),
        uniformity=tuple(views),
        masks_p=tests,
        messages=messages,
        verdict=REFUTED if evidence else STANDS if setting.covered else NOT_COVERED,
        evidence=evidence,
        doubts=possible.against(world, DOUBT),
    )


def _joint(*p_values: float | None) -> float | None:
    """Return the p-value of those that there are, together."""
    there = [p_value for p_value in p_values if p_value is not None]
    return bonferroni(there) if there else None


def is_short(noise: Noise, epsilon: float) -> bool:
    """Return True if the planned noise has too little variance, or if it is too little for discrete noises."""
    has_less = noise.planned < noise.floor * (1 - _ROUNDING)
    return has_less or noise.epsilon is None or noise.epsilon > epsilon * (1 + _ROUNDING)


def plan_of(world: Worlds, programme: Programme) -> Noise:
    """Return the noises that hide the victim, by the plan."""
    setting, unit = world.setting, world.validated.unit
    variance = (setting.unknown_noises * world.validated.noise_variance - _SMOOTHING) * unit**2 / setting.rounds
    epsilon = 0.0 if not (setting.is_released or setting.has_all_computes) else None
    if epsilon is None and world.validated.statement is not None:
        epsilon = _verified_epsilon(world, world.validated.statement)
    elif epsilon is None and variance > 0:
        epsilon = reference.epsilon_of(world.l2 / math.sqrt(variance), setting.delta)
    return Noise(
        unknown=setting.unknown_noises - programme.silent(setting),
        needed=setting.honest,
        planned=world.planned,
        floor=world.floor,
        epsilon=epsilon,
    )


def _verified_epsilon(world: Worlds, statement: Statement) -> float | None:
    """Return the ε that the planned noise of verified sums implies with its slack; None if it has too few numbers."""
    setting, size = world.setting, world.validated.dimension
    if setting.unknown_noises * statement.noises < UNIFORMS_MIN:
        return None
    noise = (setting.unknown_noises, statement.noises, statement.noise_bits)
    cost = release_cost(world.l2 / world.validated.unit, size, *noise)
    found = accounting.epsilon_of(cost.mu * math.sqrt(setting.rounds), setting.delta, cost.slack * setting.rounds)
    return None if math.isinf(found) else found


def _attack(
    world: Worlds, seen: Experiment, noise: Sequence[Spread], least: int, confidence: float
) -> tuple[Attack, tuple[Errors, Errors]]:
    """Return what the guesses prove, and the errors at the two thresholds. `least`: the place of the least noise."""
    delta, count, mean = world.setting.delta, len(noise), seen.noise.mean
    risk = FALSE_ALARM / KINDS / (count + 1)
    cuts = best_thresholds(seen.pilot, len(seen.main[0]), delta, confidence)
    gdp, cp = count_errors(seen.main, cuts.gdp), count_errors(seen.main, cuts.cp)
    return Attack(
        confidence=confidence,
        epsilon_lower_gdp=epsilon_lower_gdp(gdp, delta, confidence),
        mu_lower=float(mu_lower(gdp, confidence)),
        epsilon_lower_cp=float(epsilon_lower_cp(cp, delta, confidence)),
        threshold_gdp=cuts.gdp,
        threshold_cp=cuts.cp,
        line=tuple(seen.lines[0].tolist()),
        variance=noise[0].variance,
        variance_ratio=noise[0].variance / world.floor,
        variance_interval=noise[0].interval(confidence),
        least_variance=noise[least].variance,
        least_variance_interval=noise[least].interval(1 - (1 - confidence) / count),
        least_line=tuple(seen.lines[least].tolist()),
        lines=count,
        variance_noticeable=noticeable(noise[0].degrees, risk),
        mean_variance=mean.variance,
        mean_variance_interval=mean.interval(confidence),
        mean_noticeable=noticeable(mean.degrees, risk),
        distributions=Distributions.of(seen.main),
        trade_off=TradeOff.of(seen.main),
    ), (gdp, cp)


def _messages(world: Worlds, seen: Experiment, watched: Watched) -> Messages:
    setting, tally = world.setting, seen.tally
    return Messages(
        sees=watched.sees,
        contributors=setting.contributors,
        needed=setting.n_min,
        rounds=tally.rounds,
        released=tally.released,
        same_traffic=watched.same_traffic,
        tests=list(tally.tests()),
        recovered=_recovered(world, tally, watched.once) if setting.has_all_computes else None,
        same_law_p=watched.same_law_p,
        leaked=watched.leaked,
    )


def _recovered(world: Worlds, tally: SeenCounts, once: SeenRound) -> Recovered:
    unit, deviation = world.validated.unit, world.validated.noise_std
    assert once.victim is not None, "all Compute nodes hold every contribution"

    def shown(value: NDArray[np.int64]) -> tuple[float, ...]:
        return tuple((value * unit)[:_SHOWN].tolist())

    means = np.array(tally.victims)
    return Recovered(
        truth=shown(once.secret),
        once=shown(once.victim.view(np.int64)),
        mean=float(means.mean()) * unit,
        error=deviation / math.sqrt(means.size * world.size),
        deviation=deviation,
    )


def same_law(protocol: Samples, ideal: Samples) -> float:
    """Test whether two sources have the same law, by Kolmogorov and Smirnov in both worlds; return the p-value."""
    return bonferroni(float(ks_2samp(one, other).pvalue) for one, other in zip(protocol, ideal, strict=True))
