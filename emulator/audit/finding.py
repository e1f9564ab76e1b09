"""What an audit found, and its verdict.

Bounds are reported at the confidence that was asked for. The verdict asks for more: it refutes a claim only on evidence
that a correct program would show less than once in 10,000 audits, all kinds of evidence together. What a correct
program shows less than once in 100 is reported as a doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.stats import ks_2samp

from emulator.audit.adversary import Experiment, Samples
from emulator.audit.bounds import Errors, best_thresholds, count_errors, epsilon_lower_cp, epsilon_lower_gdp, mu_lower
from emulator.audit.uniformity import View, joint_p_value
from emulator.audit.variance import Spread, noticeable
from emulator.audit.worlds import World

STANDS, REFUTED, NOT_COVERED = "stands", "refuted", "not covered"
FALSE_ALARM = 1e-4
DOUBT = 1e-2
KINDS = 5
"""Of evidence: two bounds on ε, the noise's variance, masked contributions, the law of real rounds. Each has an equal
part of the false alarms."""
_WHATEVER_THE_COALITION = {"uniformity", "same-law"}
"""What is claimed against any number of clients."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of an audit; lower bounds on ε, variances in the statistic's squared units.

    Attributes:
        epsilon_claimed, delta, mu_claimed: the claim, as (ε, δ) and in Gaussian DP.
        confidence: of the bounds and the intervals.
        epsilon_lower_gdp, mu_lower: for programmes that claim Gaussian DP. epsilon_lower_cp: for any mechanism.
        threshold_gdp, threshold_cp: where the adversary cut.
        attack_line: on which it looked, a vector of length 1.
        residual_variance: of the noise that it could not remove, on that line, with `residual_variance_interval`.
        variance_ratio: that over what the claim needs.
        least_variance: the least on any of `lines` lines: the attack's, the one on which other runs had the least
            noise, and each coordinate. least_line: which. least_variance_interval: for all of them at once.
        variance_floor: what the claim needs on every line. variance_noticeable: noise that is short by this part of it
            on one of these lines is nearly always noticed.
        uniformity: of each view of masked contributions. uniformity_p: of the worst, corrected for their number.
        same_law_p: of the protocol's runs against the ideal functionality's, where the protocol was run.
        verdict: stands, refuted or not covered. evidence: what refuted it. verdict_confidence: at which level.
        doubts: evidence at 99 % only.
    """

    epsilon_claimed: float
    delta: float
    mu_claimed: float
    confidence: float
    epsilon_lower_gdp: float
    mu_lower: float
    epsilon_lower_cp: float
    threshold_gdp: float
    threshold_cp: float
    attack_line: tuple[float, ...]
    residual_variance: float
    variance_ratio: float
    residual_variance_interval: tuple[float, float]
    least_variance: float
    least_variance_interval: tuple[float, float]
    least_line: tuple[float, ...]
    lines: int
    variance_floor: float
    variance_noticeable: float
    uniformity: tuple[View, ...]
    uniformity_p: float | None
    same_law_p: float | None
    verdict: str
    evidence: tuple[str, ...]
    doubts: tuple[str, ...]
    verdict_confidence: float = 1 - FALSE_ALARM


class _Signs(NamedTuple):
    """What can speak against a claim: errors at the two thresholds, the noise on each line, and p-values."""

    gdp: Errors
    cp: Errors
    noise: tuple[Spread, ...]
    p_values: dict[str, float | None]

    @property
    def least(self) -> int:
        """On which line the noise is least."""
        return int(np.argmin([spread.variance for spread in self.noise]))

    def against(self, world: World, false_alarm: float) -> tuple[str, ...]:
        """The evidence that a correct program would show with probability `false_alarm` at most, all together."""
        risk, epsilon, delta = false_alarm / KINDS, world.setting.epsilon, world.setting.delta
        least = self.noise[self.least].upper(risk / len(self.noise))
        signs = {
            "epsilon-gdp": epsilon_lower_gdp(self.gdp, delta, 1 - risk) > epsilon,
            "epsilon-cp": float(epsilon_lower_cp(self.cp, delta, 1 - risk)) > epsilon,
            "variance": least < world.floor,
            **{name: p_value is not None and p_value < risk for name, p_value in self.p_values.items()},
        }
        return tuple(name for name, holds in signs.items() if holds)


def find(
    world: World, seen: Experiment, views: Sequence[View], confidence: float, same_law_p: float | None = None
) -> Finding:
    """Judge what an adversary saw."""
    delta, uniformity_p = world.setting.delta, joint_p_value(views)
    cuts = best_thresholds(seen.pilot, len(seen.main[0]), delta, confidence)
    gdp, cp = count_errors(seen.main, cuts.gdp), count_errors(seen.main, cuts.cp)
    noise = tuple(seen.noise.along(line) for line in seen.lines)
    signs = _Signs(gdp, cp, noise, {"uniformity": uniformity_p, "same-law": same_law_p})
    evidence, least, lines = signs.against(world, FALSE_ALARM), signs.least, len(noise)
    return Finding(
        epsilon_claimed=world.setting.epsilon,
        delta=delta,
        mu_claimed=world.mu,
        confidence=confidence,
        epsilon_lower_gdp=epsilon_lower_gdp(gdp, delta, confidence),
        mu_lower=float(mu_lower(gdp, confidence)),
        epsilon_lower_cp=float(epsilon_lower_cp(cp, delta, confidence)),
        threshold_gdp=cuts.gdp,
        threshold_cp=cuts.cp,
        attack_line=tuple(seen.lines[0].tolist()),
        residual_variance=noise[0].variance,
        variance_ratio=noise[0].variance / world.floor,
        residual_variance_interval=noise[0].interval(confidence),
        least_variance=noise[least].variance,
        least_variance_interval=noise[least].interval(1 - (1 - confidence) / lines),
        least_line=tuple(seen.lines[least].tolist()),
        lines=lines,
        variance_floor=world.floor,
        variance_noticeable=noticeable(noise[0].degrees, FALSE_ALARM / KINDS / lines),
        uniformity=tuple(views),
        uniformity_p=uniformity_p,
        same_law_p=same_law_p,
        verdict=_verdict(world.setting.covered, evidence),
        evidence=evidence,
        doubts=signs.against(world, DOUBT),
    )


def _verdict(covered: bool, evidence: tuple[str, ...]) -> str:
    if not covered and not _WHATEVER_THE_COALITION & set(evidence):
        return NOT_COVERED
    return REFUTED if evidence else STANDS


def same_law(protocol: Samples, ideal: Samples) -> float:
    """How likely two sources of the same law differ so much: Kolmogorov and Smirnov's test in each world, together."""
    pairs = zip(protocol, ideal, strict=True)
    return min(1.0, 2 * min(float(ks_2samp(one, other).pvalue) for one, other in pairs))
