"""The plan of an audit and its verdict, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.wording import counted
from emulator.coalition.finding import DOUBT, FALSE_ALARM, NOT_COVERED, REFUTED, Attack, Finding, Result
from emulator.coalition.programme import Programme
from emulator.coalition.worlds import ROWS, Setting

_NAMES = {
    "clients": "N",
    "tolerate": "T",
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

    @property
    def audited(self) -> str:
        return "protocol" if self.protocol else "ideal functionality"

    def moved(self) -> list[str]:
        """Return what a planted fault changed in the user's operating point."""

        def number(value: object) -> str:
            return f"{value:g}" if isinstance(value, float) else str(value)

        before, after = map(msgspec.structs.asdict, (self.asked, self.setting))
        changed = [
            f"{_NAMES.get(name, name)} = {number(after[name])} (asked for: {number(before[name])})"
            for name in after
            if name != "coalition" and after[name] != before[name]
        ]
        if self.setting.coalition != self.asked.coalition:
            changed.append(f"coalition = {self.setting.coalition} (asked for: {self.asked.coalition})")
        raised = [f"runs = {self.runs} (asked for: {self.runs_asked})"] if self.runs != self.runs_asked else []
        return changed + raised


def plan_lines(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yield the claim, the program, the coalition and the runs, for the start of an audit."""
    setting, programme = audit.setting, audit.programme
    rounds = f" over {setting.rounds} rounds" if setting.rounds > 1 else ""
    unit = "row of a data node that releases alone" if setting.is_release else "client"
    swarm = f"{ROWS} rows" if setting.is_release else setting.swarm
    summed = f"{setting.statistic} of {counted(setting.columns, 'column')} within ±{setting.bound:g}"
    proven = "; verified: public coins make the noise" if setting.verified else ""
    yield "claim", f"{setting.promise} for each {unit}{rounds}; {swarm}; {summed}{proven}"
    if programme.name:
        yield "planted", f"{programme.name}: {programme.describe(setting)}"
        yield "moved to", "; ".join(audit.moved()) or "no other setting: the fault breaks the claim as asked for"
    yield "coalition", _coalition(setting, programme.silent(setting))
    source = "real actors run the rounds" if audit.protocol else "the ideal functionality, with the protocol's noise"
    keys = "fresh keys" if audit.seed is None else f"seeded with {audit.seed}, for reproduction"
    runs = f"{audit.runs:,} of each world and {audit.pilot_runs:,} to choose thresholds"
    yield "runs", f"{runs}; {source}; {keys}"


def result(audit: Audit, finding: Finding, seconds: float) -> Result:
    """Return the record of an audit."""
    return Result(
        **msgspec.structs.asdict(finding),
        sentence=sentence(finding),
        audited=audit.audited,
        fault=audit.programme.name or None,
        fault_meaning=audit.programme.describe(audit.setting) or None,
        moved=audit.moved(),
        runs=audit.runs,
        pilot_runs=audit.pilot_runs,
        seed=audit.seed,
        seconds=seconds,
    )


def members(setting: Setting) -> str:
    """Return the members of a coalition: "4 of 10 clients, 2 of 3 Compute nodes and the broker"."""
    coalition, of = setting.coalition, f"of {setting.clients} clients"
    parts = {
        f"{coalition.clients} {of}": coalition.clients,
        f"{coalition.omitting} {of} without their noise": coalition.omitting,
        f"{coalition.computes} of {setting.computes} Compute nodes": coalition.computes,
        "the broker": coalition.broker,
        "the trainer": coalition.trainer,
    }
    *others, last = [name for name, present in parts.items() if present] or ["nobody"]
    return f"{', '.join(others)} and {last}" if others else last


def sentence(finding: Finding) -> str:
    """Return the verdict in plain words."""
    setting, attack = finding.setting, finding.attack
    if finding.verdict == REFUTED:
        return (
            f"The claim of epsilon {at_least(setting.epsilon)} does not hold: {_reasons(finding, finding.evidence)}. "
            f"A correct program would be accused less than once in {1 / FALSE_ALARM:,.0f} audits."
        )
    if setting.has_all_computes:
        return _recovered(finding)
    if attack is None:
        needed = f"n_min = N - T + c = {setting.n_min}"
        return (
            f"The round is aborted, as it must be: {setting.contributors} contributions arrived and {needed} are "
            f"needed, so nothing is released.{_view(finding)}"
        )
    if finding.verdict == NOT_COVERED:
        return (
            f"The claim does not cover this coalition: {counted(setting.unknown_noises, 'unknown noise')} for a claim "
            f"that needs N - T - 1 = {setting.honest}. That implies epsilon {bound(finding.noise.epsilon)} of "
            f"{at_least(setting.epsilon)}. {_learned(finding, attack)}{_view(finding)}"
        )
    return (
        f"{_opening(finding, attack)} {_learned(finding, attack)} The audit would nearly always have detected a "
        f"variance short by {_noticeable(attack)}.{_view(finding)}{_worse(setting)}"
    )


def bound(epsilon: float | None) -> str:
    """Return an epsilon, rounded up; None is infinite."""
    return at_least(math.inf if epsilon is None else epsilon)


def _learned(finding: Finding, attack: Attack) -> str:
    low, high = (limit / finding.noise.floor for limit in attack.variance_interval)
    elsewhere = ""
    if attack.lines > 1:
        least, mean = (part / finding.noise.floor for part in (attack.least_variance, attack.mean_variance))
        elsewhere = (
            f", {least:.4g} times on {_line(attack.least_line)}, the least of {attack.lines} lines, and {mean:.4g} "
            "times on average over all coordinates"
        )
    return (
        f"The coalition can prove mu {at_most(attack.mu_lower)} of the {at_least(finding.mu_claimed)} that is "
        f"claimed, which as Gaussian DP is epsilon {at_most(attack.epsilon_lower_gdp)} of "
        f"{at_least(finding.setting.epsilon)} ({_percent(attack.confidence)} confidence). The noise that it cannot "
        f"remove has {attack.variance_ratio:.4g} times the variance that the claim needs "
        f"({low:.4g} to {high:.4g}){elsewhere}."
    )


def _noticeable(attack: Attack) -> str:
    on_line = f"{_percent(attack.variance_noticeable)} or more"
    if attack.lines == 1:
        return on_line
    return f"{on_line} on one of these lines, or by {_percent(attack.mean_noticeable)} on average"


def _recovered(finding: Finding) -> str:
    messages, setting = finding.messages, finding.setting
    found = None if messages is None else messages.recovered
    assert messages is not None
    assert found is not None, "all Compute nodes recover it"
    once, truth = (", ".join(f"{value:.3g}" for value in values) for values in (found.once, found.truth))
    aborted = "" if messages.released else " (although the round was aborted)"
    return (
        f"The documented break: all M = {setting.computes} Compute nodes together remove all masks from a "
        f"contribution{aborted}. They get its value with its own noise only: {once} for {truth}, with a standard "
        f"deviation of {found.deviation:.3g}. This one noise, of {setting.honest} needed, gives epsilon "
        f"{bound(finding.noise.epsilon)}. The claim of epsilon {at_least(setting.epsilon)} needs at least one honest "
        "node."
    )


def _view(finding: Finding) -> str:
    """Return what real messages showed; nothing if none were sent."""
    messages, setting = finding.messages, finding.setting
    if messages is None:
        return ""
    has_sum = setting.coalition.trainer and messages.released > 0
    if finding.masks_p is None:
        return f" It sees {'the private sum and' if has_sum else 'only'} traffic, which is the same for both inputs."
    return (
        " Its view shows no dependence on any client's data"
        f"{', except through the private sum' if has_sum else ''} (p = {finding.masks_p:.2g} over "
        f"{len(messages.tests) + len(finding.uniformity)} tests; traffic is the same to the byte)."
    )


def _worse(setting: Setting) -> str:
    """Return a note if the Compute nodes could reduce the noise below the claim by leaving out more honest clients."""
    coalition = setting.coalition
    spare = min(setting.contributors - setting.n_min, setting.unknown_noises - 1)
    fewer = setting.unknown_noises - spare
    if setting.is_release or not coalition.computes or not spare or fewer >= setting.honest:
        return ""
    return (
        f" Its Compute nodes could leave out {counted(spare, 'more honest client')} (left-out="
        f"{coalition.left_out + spare}), drop-outs to the claim. Then {counted(fewer, 'noise')} would "
        "remain."
    )


def _opening(finding: Finding, attack: Attack) -> str:
    if finding.doubts:
        return (
            f"Not refuted, but {_reasons(finding, finding.doubts)}: a correct program shows this in at most "
            f"{_percent(DOUBT)} of audits. Audit again with more runs."
        )
    beyond = max(attack.epsilon_lower_gdp, attack.epsilon_lower_cp) > finding.setting.epsilon
    if beyond or attack.least_variance_interval[1] < finding.noise.floor:
        return (
            f"There is no evidence against the claim: a bound at {_percent(attack.confidence)} lies beyond it, which "
            f"happens by chance in about {_percent((1 - attack.confidence) / 2)} of audits of a correct program."
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
    coalition, covered = setting.coalition, "" if setting.covered else " (so the claim does not cover this coalition)"
    curious = " (the curious client is one of them)" if coalition.clients else ""
    absent = f"; {setting.dropped} drop out" if setting.dropped else ""
    ignored = f"; its Compute nodes leave {coalition.left_out} out" if coalition.left_out else ""
    missing = f" ({silent} of them missing)" if silent else ""
    return (
        f"{members(setting)}{curious}{absent}{ignored}: "
        f"{counted(setting.unknown_noises, 'noise')}{missing} unknown, the claim needs {setting.honest}{covered}"
    )


def _reasons(finding: Finding, evidence: tuple[str, ...]) -> str:
    setting, attack, messages, noise = finding.setting, finding.attack, finding.messages, finding.noise
    reasons = {
        "plan": f"the plan leaves {noise.planned / noise.floor:.3g} times the variance that the claim needs, which "
        f"implies epsilon {bound(noise.epsilon)}",
        "shape": f"noise does not have the shape of its law ({next(iter(finding.shape.wrong), '') or _p(finding)})",
        "uniformity": "masked contributions, as it sees them, are not uniform",
        "same-law": "the rounds of the real actors do not have the law of the ideal functionality",
    }
    if attack is not None:
        where = f" ({_line(attack.least_line)})" if attack.lines > 1 else ""
        mu_lower, mu_claimed = at_most(attack.mu_lower), at_least(finding.mu_claimed)
        reasons |= {
            "variance": f"the noise that the coalition cannot remove has {attack.least_variance / noise.planned:.3g} "
            f"times the variance planned{where}",
            "epsilon-gdp": f"the coalition proves mu {mu_lower}, more than the {mu_claimed} claimed",
            "epsilon-cp": f"whatever the noise, it proves epsilon {at_most(attack.epsilon_lower_cp)}",
        }
    if messages is not None:
        wrong = messages.rounds - messages.released if setting.is_released else messages.released
        ended = "aborted" if setting.is_released else "released"
        least = min((test.p_value for test in messages.tests), default=1.0)
        if least <= min((view.p_value for view in finding.uniformity), default=1.0):
            reasons["uniformity"] = f"its view depends on more than the private sum ({messages.worst})"
        reasons |= {
            "secrecy": next(iter(messages.leaked), ""),
            "traffic": "traffic differs between two inputs",
            "release": f"{counted(wrong, 'round')} {ended} with |A| = {messages.contributors}, where "
            f"{messages.needed} are needed",
        }
    return "; ".join(text for name, text in reasons.items() if name in evidence)


def _p(finding: Finding) -> str:
    return f"p = {finding.shape.p_value:.2g}"


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"
