"""What an audit found, and its verdict.

Bounds are reported at the confidence that was asked for. The verdict asks for more: it refutes a claim only on evidence
that a correct program would show less than once in 10,000 audits, all kinds of evidence together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from scipy.stats import ks_2samp

from emulator.audit.adversary import Experiment, Samples
from emulator.audit.bounds import (
    best_thresholds,
    count_errors,
    epsilon_lower_cp,
    epsilon_lower_gdp,
    mu_lower,
    noticeable,
    spread,
)
from emulator.audit.uniformity import View, joint_p_value
from emulator.audit.worlds import World

STANDS, REFUTED, NOT_COVERED = "stands", "refuted", "not covered"
FALSE_ALARM = 1e-4
RISK = FALSE_ALARM / 5
"""Of each kind of evidence: two bounds on ε, the noise's variance, the coalition's shares, the law of real rounds."""
_WHATEVER_THE_COALITION = {"uniformity", "same-law"}
"""What is claimed against any number of clients."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of an audit; lower bounds on ε, variances in the statistic's squared units.

    Attributes:
        epsilon_claimed, delta, mu_claimed: the claim, as (ε, δ) and in Gaussian DP.
        confidence: of the bounds and the interval.
        epsilon_lower_gdp, mu_lower: for programmes that claim Gaussian DP. epsilon_lower_cp: for any mechanism.
        threshold_gdp, threshold_cp: where the adversary cut.
        residual_variance: of the noise that it could not remove, with `residual_variance_interval`.
        variance_floor: what the claim needs. variance_noticeable: noise that is short by this part of it is nearly
            always noticed.
        uniformity: of each view of the coalition's shares. uniformity_p: of the worst, corrected for their number.
        same_law_p: of the protocol's runs against the ideal functionality's, where the protocol was run.
        verdict: stands, refuted or not covered. evidence: what refuted it. verdict_confidence: at which level.
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
    residual_variance: float
    residual_variance_interval: tuple[float, float]
    variance_floor: float
    variance_noticeable: float
    uniformity: tuple[dict[str, Any], ...]
    uniformity_p: float | None
    same_law_p: float | None
    verdict: str
    evidence: tuple[str, ...]
    verdict_confidence: float = 1 - FALSE_ALARM

    @property
    def variance_ratio(self) -> float:
        """Residual variance over what the claim needs."""
        return self.residual_variance / self.variance_floor


def find(
    world: World, seen: Experiment, views: Sequence[View], confidence: float, same_law_p: float | None = None
) -> Finding:
    """Judge what an adversary saw."""
    epsilon, delta = world.setting.epsilon, world.setting.delta
    cuts = best_thresholds(seen.pilot, len(seen.main[0]), delta, confidence)
    gdp, cp = count_errors(seen.main, cuts.gdp), count_errors(seen.main, cuts.cp)
    noise, uniformity_p = spread(seen.main), joint_p_value(views)
    signs = {
        "epsilon-gdp": epsilon_lower_gdp(gdp, delta, 1 - RISK) > epsilon,
        "epsilon-cp": float(epsilon_lower_cp(cp, delta, 1 - RISK)) > epsilon,
        "variance": noise.upper(RISK) < world.floor,
        "uniformity": uniformity_p is not None and uniformity_p < RISK,
        "same-law": same_law_p is not None and same_law_p < RISK,
    }
    evidence = tuple(name for name, holds in signs.items() if holds)
    return Finding(
        epsilon_claimed=epsilon,
        delta=delta,
        mu_claimed=world.mu,
        confidence=confidence,
        epsilon_lower_gdp=epsilon_lower_gdp(gdp, delta, confidence),
        mu_lower=float(mu_lower(gdp, confidence)),
        epsilon_lower_cp=float(epsilon_lower_cp(cp, delta, confidence)),
        threshold_gdp=cuts.gdp,
        threshold_cp=cuts.cp,
        residual_variance=noise.variance,
        residual_variance_interval=noise.interval(confidence),
        variance_floor=world.floor,
        variance_noticeable=noticeable(noise.degrees, RISK),
        uniformity=tuple(view._asdict() for view in views),
        uniformity_p=uniformity_p,
        same_law_p=same_law_p,
        verdict=_verdict(world.setting.covered, evidence),
        evidence=evidence,
    )


def _verdict(covered: bool, evidence: tuple[str, ...]) -> str:
    if not covered and not _WHATEVER_THE_COALITION & set(evidence):
        return NOT_COVERED
    return REFUTED if evidence else STANDS


def same_law(protocol: Samples, ideal: Samples) -> float:
    """How likely two sources of the same law differ so much: Kolmogorov and Smirnov's test in each world, together."""
    pairs = zip(protocol, ideal, strict=True)
    return min(1.0, 2 * min(float(ks_2samp(one, other).pvalue) for one, other in pairs))
