"""The findings of an audit, and its verdict.

Bounds have the confidence that the user asked for. The verdict is stricter: it refutes a claim only on evidence that a
correct program shows less than once in 10,000 audits, for all kinds of evidence together. Evidence that a correct
program shows less than once in 100 audits is reported as a doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.stats import ks_2samp

from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.wording import counted
from emulator.audit.adversary import Experiment
from emulator.audit.bounds import (
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
from emulator.audit.programme import Programme
from emulator.audit.uniformity import View, joint_p_value
from emulator.audit.worlds import ROWS, Coalition, OperatingPoint, Setting, World

STANDS, REFUTED, NOT_COVERED = "stands", "refuted", "not covered"
FALSE_ALARM = 1e-4
DOUBT = 1e-2
KINDS = 5
"""Kinds of evidence: two bounds on ε, the noise's variance, masked contributions, the law of real rounds. Each gets an
equal part of the false alarms."""
_FOR_ANY_COALITION = {"uniformity", "same-law"}
"""Evidence that refutes the claim for a coalition with any number of clients."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an audit: lower bounds on ε, and variances in the statistic's squared units.

    Attributes:
        epsilon_claimed, delta, mu_claimed: the claim, as (ε, δ) and in Gaussian DP.
        confidence: of the bounds and the intervals.
        epsilon_lower_gdp, mu_lower: for programs that claim Gaussian DP. epsilon_lower_cp: for any mechanism.
        threshold_gdp, threshold_cp: the adversary's thresholds.
        attack_line: the line of the attack, a unit vector.
        residual_variance: of the noise that the adversary could not remove, on that line, with
            `residual_variance_interval`. variance_ratio: that variance divided by `variance_floor`.
        least_variance: the least on any of `lines` lines: the attack's, the one with the least noise in the survey
            runs, and each coordinate. least_line: that line. least_variance_interval: simultaneous for all lines.
        variance_floor: the variance that the claim requires on every line. variance_noticeable: a relative shortfall
            on one of these lines that is nearly always detected.
        uniformity: of each view of masked contributions. uniformity_p: of the worst, corrected for their number.
        same_law_p: p-value of the test that real actors and the ideal functionality have one law, if actors ran.
        verdict: stands, refuted or not covered. evidence: the kinds that refuted it. verdict_confidence: of these.
        doubts: the kinds of evidence at 99 %.
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


class _Evidence(NamedTuple):
    """Possible evidence against a claim: errors at the two thresholds, the noise on each line, and p-values."""

    gdp: Errors
    cp: Errors
    noise: tuple[Spread, ...]
    p_values: dict[str, float | None]

    @property
    def least(self) -> int:
        """Index of the line with the least noise."""
        return int(np.argmin([spread.variance for spread in self.noise]))

    def against(self, world: World, false_alarm: float) -> tuple[str, ...]:
        """Return the kinds of evidence; a correct program shows any with probability `false_alarm` at most."""
        risk, epsilon, delta = false_alarm / KINDS, world.setting.epsilon, world.setting.delta
        least = self.noise[self.least].upper(risk / len(self.noise))
        kinds = {
            "epsilon-gdp": epsilon_lower_gdp(self.gdp, delta, 1 - risk) > epsilon,
            "epsilon-cp": float(epsilon_lower_cp(self.cp, delta, 1 - risk)) > epsilon,
            "variance": least < world.floor,
            **{name: p_value is not None and p_value < risk for name, p_value in self.p_values.items()},
        }
        return tuple(name for name, holds in kinds.items() if holds)


def find(
    world: World, seen: Experiment, views: Sequence[View], confidence: float, same_law_p: float | None = None
) -> Finding:
    """Return the figures and the verdict."""
    delta, uniformity_p = world.setting.delta, joint_p_value(views)
    cuts = best_thresholds(seen.pilot, len(seen.main[0]), delta, confidence)
    gdp, cp = count_errors(seen.main, cuts.gdp), count_errors(seen.main, cuts.cp)
    noise = tuple(seen.noise.along(line) for line in seen.lines)
    possible = _Evidence(gdp, cp, noise, {"uniformity": uniformity_p, "same-law": same_law_p})
    evidence, least, lines = possible.against(world, FALSE_ALARM), possible.least, len(noise)
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
        doubts=possible.against(world, DOUBT),
    )


def _verdict(covered: bool, evidence: tuple[str, ...]) -> str:
    if not covered and not _FOR_ANY_COALITION & set(evidence):
        return NOT_COVERED
    return REFUTED if evidence else STANDS


def same_law(protocol: Samples, ideal: Samples) -> float:
    """Test whether two sources have the same law, by Kolmogorov and Smirnov in both worlds; return the p-value."""
    pairs = zip(protocol, ideal, strict=True)
    return min(1.0, 2 * min(float(ks_2samp(one, other).pvalue) for one, other in pairs))


_NAMES = {
    "clients": "N",
    "tolerated": "T",
    "colluders": "c",
    "computes": "M",
    "dropped": "K",
    "reach": "values / bounds",
}
_NEARLY_ALONG = 0.99


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of an audit.

    Attributes:
        setting: the operating point. asked: the user's, before a planted fault moved it.
        programme: the clients' program. protocol: whether real actors run the rounds.
        runs, pilot_runs: of each world. runs_asked: before a planted fault raised them. seed: None for fresh keys.
    """

    setting: Setting
    asked: Setting
    programme: Programme
    protocol: bool
    runs: int
    pilot_runs: int
    runs_asked: int
    seed: int | None

    def moved(self) -> list[str]:
        """Return what a planted fault changed in the user's operating point."""

        def number(value: object) -> str:
            return f"{value:g}" if isinstance(value, float) else str(value)

        before, after = map(msgspec.structs.asdict, (self.asked, self.setting))
        changed = [
            f"{_NAMES.get(name, name)} = {number(after[name])} (asked for: {number(before[name])})"
            for name in after
            if after[name] != before[name]
        ]
        raised = [f"runs = {self.runs} (asked for: {self.runs_asked})"] if self.runs != self.runs_asked else []
        return changed + raised


def plan_lines(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yield the claim, the program, the coalition and the runs, for the start of an audit."""
    setting, programme = audit.setting, audit.programme
    rounds = f" over {setting.rounds} rounds" if setting.rounds > 1 else ""
    unit = "row of a data node that releases alone" if setting.is_release else "client"
    swarm = f"{ROWS} rows" if setting.is_release else setting.swarm
    summed = f"{setting.statistic} of {counted(setting.columns, 'column')} within ±{setting.bound:g}"
    yield "claim", f"{setting.promise} for each {unit}{rounds}; {swarm}; {summed}"
    if programme.name:
        yield "planted", f"{programme.name}: {programme.describe(setting)}"
        yield "moved to", "; ".join(audit.moved()) or "no other setting: the fault breaks the claim as asked for"
    yield "coalition", _coalition(setting, programme.silent(setting))
    source = "real actors run the rounds" if audit.protocol else "the ideal functionality, with the protocol's noise"
    keys = "fresh keys" if audit.seed is None else f"seeded with {audit.seed}, for reproduction"
    runs = f"{audit.runs:,} of each world and {audit.pilot_runs:,} to choose thresholds"
    yield "runs", f"{runs}; {source}; {keys}"


def sentence(setting: Setting, finding: Finding) -> str:
    """Return the verdict in plain words."""
    low, high = (limit / finding.variance_floor for limit in finding.residual_variance_interval)
    if finding.verdict == REFUTED:
        return (
            f"The claim of epsilon {at_least(setting.epsilon)} does not hold: {_reasons(finding, finding.evidence)}. "
            f"A correct program would be accused less than once in {1 / FALSE_ALARM:,.0f} audits."
        )
    elsewhere = ""
    if finding.lines > 1:
        ratio = finding.least_variance / finding.variance_floor
        elsewhere = f", and {ratio:.4g} times on {_line(finding.least_line)}, the least of {finding.lines} lines"
    learned = (
        f"The coalition can prove mu {at_most(finding.mu_lower)} of the {at_least(finding.mu_claimed)} that is "
        f"claimed, which as Gaussian DP is epsilon {at_most(finding.epsilon_lower_gdp)} of "
        f"{at_least(setting.epsilon)} ({_percent(finding.confidence)} confidence). The noise that it cannot remove has "
        f"{finding.variance_ratio:.4g} times the variance that the claim needs "
        f"({low:.4g} to {high:.4g}){elsewhere}."
    )
    if finding.verdict == NOT_COVERED:
        return (
            f"The claim does not cover this coalition: {setting.unknown_noises} noises remain unknown to it, and the "
            f"claim needs N - T - 1 = {setting.honest}. {learned}"
        )
    return (
        f"{_opening(finding)} {learned} The audit would nearly always have detected a variance short by "
        f"{_percent(finding.variance_noticeable)} or more{' on one of these lines' if finding.lines > 1 else ''}."
    )


class Result(Finding, frozen=True, kw_only=True):
    """The result of `dca audit`: `--json` writes it, and the report reads it.

    Attributes:
        sentence: the verdict in plain words. audited: "protocol" or "ideal functionality".
        fault, fault_meaning: the planted fault. operating_point, coalition: the setting.
        moved: what a planted fault changed in it. covered: whether the claim covers the coalition.
        noises_unknown: noises that the coalition does not know. noises_needed: for the claim.
        seconds: duration of the audit. distributions, trade_off: of the main runs.
    """

    kind: str = "audit"
    sentence: str
    audited: str
    fault: str | None = None
    fault_meaning: str | None = None
    operating_point: OperatingPoint
    moved: list[str]
    coalition: Coalition
    covered: bool
    noises_unknown: int
    noises_needed: int
    runs: int
    pilot_runs: int
    seed: int | None = None
    seconds: float
    distributions: Distributions
    trade_off: TradeOff


def result(audit: Audit, finding: Finding, samples: Samples, seconds: float) -> Result:
    """Return the record of an audit; `samples` are the main runs."""
    return Result(
        **msgspec.structs.asdict(finding),
        sentence=sentence(audit.setting, finding),
        audited="protocol" if audit.protocol else "ideal functionality",
        fault=audit.programme.name or None,
        fault_meaning=audit.programme.describe(audit.setting) or None,
        operating_point=msgspec.convert(audit.setting, OperatingPoint, from_attributes=True),
        moved=audit.moved(),
        coalition=audit.setting.coalition,
        covered=audit.setting.covered,
        noises_unknown=audit.setting.unknown_noises - audit.programme.silent(audit.setting),
        noises_needed=audit.setting.honest,
        runs=audit.runs,
        pilot_runs=audit.pilot_runs,
        seed=audit.seed,
        seconds=seconds,
        distributions=Distributions.of(samples),
        trade_off=TradeOff.of(samples),
    )


def _opening(finding: Finding) -> str:
    if finding.doubts:
        return (
            f"Not refuted, but {_reasons(finding, finding.doubts)}: a correct program shows this in at most "
            f"{_percent(DOUBT)} of audits. Audit again with more runs."
        )
    beyond = max(finding.epsilon_lower_gdp, finding.epsilon_lower_cp) > finding.epsilon_claimed
    if beyond or finding.least_variance_interval[1] < finding.variance_floor:
        return (
            f"There is no evidence against the claim: a bound at {_percent(finding.confidence)} lies beyond it, which "
            f"happens by chance in about {_percent((1 - finding.confidence) / 2)} of audits of a correct program."
        )
    return "There is no evidence against the claim."


def _line(vector: tuple[float, ...]) -> str:
    """Return a line in words: its coordinate, or the number of coordinates that it crosses."""
    largest = max(range(len(vector)), key=lambda place: abs(vector[place]))
    if abs(vector[largest]) > _NEARLY_ALONG:
        return f"coordinate {largest + 1} of {len(vector)}"
    return f"a line across {len(vector)} coordinates"


def _coalition(setting: Setting, silent: int) -> str:
    if setting.is_release:
        return "the trainer, or anyone who sees the release and knows all rows but one; the noise is the node's own"
    members, absent = setting.coalition, f", {setting.dropped} drop out" if setting.dropped else ""
    covered = "" if setting.covered else " (so the claim does not cover this coalition)"
    curious = " (including the curious one)" if members.clients else ""
    broker = " and the broker, which sees only sealed contributions" if members.broker else ""
    missing = f" ({silent} of them missing)" if silent else ""
    return (
        f"{members.clients} of {setting.clients} clients{curious}, {members.computes} of {setting.computes} "
        f"Compute nodes{broker}{absent}: {setting.unknown_noises} noises{missing} remain unknown, the claim needs "
        f"{setting.honest}{covered}"
    )


def _reasons(finding: Finding, evidence: tuple[str, ...]) -> str:
    ratio, where = finding.least_variance / finding.variance_floor, ""
    mu_lower, mu_claimed = at_most(finding.mu_lower), at_least(finding.mu_claimed)
    if finding.lines > 1:
        where = f" ({_line(finding.least_line)})"
    reasons = {
        "variance": f"the noise that the coalition cannot remove has {ratio:.3g} times the variance needed{where}",
        "epsilon-gdp": f"the coalition proves mu {mu_lower}, more than the {mu_claimed} claimed",
        "epsilon-cp": f"whatever the noise, it proves epsilon {at_most(finding.epsilon_lower_cp)}",
        "uniformity": "masked contributions, as it sees them, are not uniform",
        "same-law": "the rounds of the real actors do not have the law of the ideal functionality",
    }
    return "; ".join(text for name, text in reasons.items() if name in evidence)


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"
