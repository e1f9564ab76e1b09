"""What a person sees of an audit: the claim, who attacks it, what they found, and a verdict in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich import box
from rich.table import Table

from dca_proto.privacy.rounding import at_least, at_most
from emulator.audit.adversary import Samples
from emulator.audit.bounds import Distributions, TradeOff
from emulator.audit.finding import DOUBT, FALSE_ALARM, KINDS, NOT_COVERED, REFUTED, Finding
from emulator.audit.programme import Programme
from emulator.audit.worlds import ROWS, Coalition, Setting

_NAMES = {
    "clients": "N",
    "tolerated": "T",
    "colluders": "c",
    "computes": "M",
    "dropped": "K",
    "reach": "values / bounds",
}

_NEARLY_ALONG = 0.99
Line = tuple[str, str]
"""A label and a text."""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """How an audit was made.

    Attributes:
        setting: the operating point. asked: the one that was asked for, before a planted fault moved it.
        programme: what the clients ran. protocol: whether real actors held the rounds.
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
        """What a planted fault changed of the operating point that was asked for."""
        before, after = (msgspec.structs.asdict(one) for one in (self.asked, self.setting))
        changed = [
            f"{_NAMES.get(name, name)} = {_number(after[name])} (asked for: {_number(before[name])})"
            for name in after
            if after[name] != before[name]
        ]
        raised = [f"runs = {self.runs} (asked for: {self.runs_asked})"] if self.runs != self.runs_asked else []
        return changed + raised


def plan_lines(audit: Audit) -> Iterator[Line]:
    """Before the work: the claim, the programme and the coalition."""
    setting, programme = audit.setting, audit.programme
    yield "claim", _claim(setting)
    if programme.name:
        yield "planted", f"{programme.name}: {programme.describe(setting)}"
        yield "moved to", "; ".join(audit.moved()) or "nothing else: it is a fault where it was asked for"
    yield "coalition", _coalition(setting, programme.silent(setting))
    source = "real actors hold the rounds" if audit.protocol else "the ideal functionality, with the protocol's noise"
    keys = "fresh keys" if audit.seed is None else f"seeded with {audit.seed}, for reproduction"
    runs = f"{audit.runs:,} of each world and {audit.pilot_runs:,} to choose thresholds on"
    yield "runs", f"{runs}; {source}; {keys}"


def sentence(setting: Setting, finding: Finding) -> str:
    """The verdict in plain words."""
    low, high = (limit / finding.variance_floor for limit in finding.residual_variance_interval)
    sure = _percent(finding.confidence)
    if finding.verdict == REFUTED:
        return (
            f"The claim of epsilon {at_least(setting.epsilon)} does not hold: {_reasons(finding, finding.evidence)}. "
            f"A correct program would be accused so less than once in {1 / FALSE_ALARM:,.0f} audits."
        )
    learned = (
        f"The coalition can prove mu {at_most(finding.mu_lower)} of the {at_least(finding.mu_claimed)} that is "
        f"claimed, which as Gaussian DP is epsilon {at_most(finding.epsilon_lower_gdp)} of "
        f"{at_least(setting.epsilon)} ({sure} confidence); the noise that it cannot remove has "
        f"{finding.variance_ratio:.4g} times the variance that the claim needs "
        f"({low:.4g} to {high:.4g}){_elsewhere(finding)}."
    )
    if finding.verdict == NOT_COVERED:
        return (
            f"The claim says nothing of this coalition: {setting.unknown_noises} noises remain unknown to it, and the "
            f"claim needs N - T - 1 = {setting.honest}. {learned}"
        )
    return (
        f"{_opening(finding)} {learned} Noise whose variance is short by {_percent(finding.variance_noticeable)} or "
        f"more{' on one of these lines' if finding.lines > 1 else ''} would have been noticed."
    )


class Result(Finding, frozen=True, kw_only=True):
    """What `--json` writes and the report reads: the finding, how it was made, and what the adversary saw.

    Attributes:
        sentence: the verdict. audited: "protocol" or "ideal functionality". fault, fault_meaning: planted.
        operating_point, coalition: the setting; moved: what a planted fault changed of it. covered: by the claim.
        noises_unknown, noises_needed: to the coalition, and for the claim. seconds: that the audit took.
        distributions, trade_off: of the runs that the errors were counted on.
    """

    kind: str = "audit"
    sentence: str
    audited: str
    fault: str | None = None
    fault_meaning: str | None = None
    operating_point: dict[str, Any]
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
    """Everything, for programs; `samples` are the runs that the errors were counted on."""
    setting = msgspec.structs.asdict(audit.setting)
    return Result(
        **msgspec.structs.asdict(finding),
        sentence=sentence(audit.setting, finding),
        audited="protocol" if audit.protocol else "ideal functionality",
        fault=audit.programme.name or None,
        fault_meaning=audit.programme.describe(audit.setting) or None,
        operating_point=setting,
        moved=audit.moved(),
        coalition=setting.pop("coalition"),
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


def _claim(setting: Setting) -> str:
    rounds = f" over {setting.rounds} rounds" if setting.rounds > 1 else ""
    whose = "row of a data node that releases alone" if setting.is_release else "client"
    return (
        f"{setting.promise} for each {whose}{rounds}; "
        f"{f'{ROWS} rows' if setting.is_release else setting.swarm}; {setting.statistic} of {setting.columns} "
        f"column{'s' * (setting.columns > 1)} within ±{setting.bound:g}"
    )


def _opening(finding: Finding) -> str:
    """Of a claim that stands."""
    if finding.doubts:
        return (
            f"Not refuted, but {_reasons(finding, finding.doubts)}: a correct program shows as much in "
            f"{_percent(DOUBT)} of audits. Audit again with more runs."
        )
    beyond = max(finding.epsilon_lower_gdp, finding.epsilon_lower_cp) > finding.epsilon_claimed
    if beyond or finding.least_variance_interval[1] < finding.variance_floor:
        return (
            f"Nothing speaks against the claim: a bound at {_percent(finding.confidence)} lies beyond it, which chance "
            f"does in about {_percent((1 - finding.confidence) / 2)} of audits of a correct program."
        )
    return "Nothing speaks against the claim."


def _elsewhere(finding: Finding) -> str:
    """The least noise on any line, where there are several."""
    if finding.lines == 1:
        return ""
    ratio = finding.least_variance / finding.variance_floor
    return f", and {ratio:.4g} times on {_line(finding.least_line)}, the least of {finding.lines} lines"


def _line(vector: tuple[float, ...]) -> str:
    """A line in words: the coordinate that it runs along, or through how many it does."""
    largest = max(range(len(vector)), key=lambda place: abs(vector[place]))
    if abs(vector[largest]) > _NEARLY_ALONG:
        return f"coordinate {largest + 1} of {len(vector)}"
    return f"a line across {len(vector)} coordinates"


def _coalition(setting: Setting, silent: int) -> str:
    if setting.is_release:
        return "whoever sees the release, as the trainer does, and knows all rows but one; the noise is the node's own"
    one, absent = setting.coalition, f", {setting.dropped} drop out" if setting.dropped else ""
    covered = "" if setting.covered else " (so the claim does not cover this coalition)"
    curious = " (the curious one among them)" if one.clients else ""
    broker = " and the broker, which sees sealed contributions only" if one.broker else ""
    missing = f", of which {silent} are not there," if silent else ""
    return (
        f"{one.clients} of {setting.clients} clients{curious}, {one.computes} of {setting.computes} "
        f"Compute nodes{broker}{absent}: {setting.unknown_noises} noises{missing} remain unknown, the claim needs "
        f"{setting.honest}{covered}"
    )


def figures_table(finding: Finding) -> Table:
    """After the work: the figures, their bounds and the claim."""
    sure, (low, high) = _percent(finding.confidence), finding.residual_variance_interval
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("", "found", f"{sure} bound", "claim"):
        table.add_column(name, justify="right" if name else "left")
    variance = (f"{finding.residual_variance:.4g}", f"{low:.4g} to {high:.4g}", f"≥ {finding.variance_floor:.4g}")
    table.add_row("variance of the noise left", *variance)
    if finding.lines > 1:
        low, high = finding.least_variance_interval
        least = (f"{finding.least_variance:.4g}", f"{low:.4g} to {high:.4g}", f"≥ {finding.variance_floor:.4g}")
        table.add_row(f"least on any of {finding.lines} lines", *least)
    claimed, likely = f"≤ {at_least(finding.epsilon_claimed)}", f"≥ {FALSE_ALARM / KINDS:g}"
    table.add_row("epsilon, as Gaussian DP", "", f"≥ {at_most(finding.epsilon_lower_gdp)}", claimed)
    table.add_row("epsilon, of any mechanism", "", f"≥ {at_most(finding.epsilon_lower_cp)}", claimed)
    if finding.uniformity_p is not None:
        table.add_row("masked values seen are uniform, p", f"{finding.uniformity_p:.2g}", "", likely)
    if finding.same_law_p is not None:
        table.add_row("same as the ideal functionality, p", f"{finding.same_law_p:.2g}", "", likely)
    return table


def _reasons(finding: Finding, evidence: tuple[str, ...]) -> str:
    ratio, where = finding.least_variance / finding.variance_floor, ""
    mu_lower, mu_claimed = at_most(finding.mu_lower), at_least(finding.mu_claimed)
    if finding.lines > 1:
        where = f" ({_line(finding.least_line)})"
    said = {
        "variance": f"the noise that cannot be removed has {ratio:.3g} times the variance needed{where}",
        "epsilon-gdp": f"the coalition proves mu {mu_lower} where {mu_claimed} is claimed",
        "epsilon-cp": f"whatever the noise, it proves epsilon {at_most(finding.epsilon_lower_cp)}",
        "uniformity": "what it sees of a masked contribution is not uniform",
        "same-law": "the real actors' rounds have another law than the ideal functionality that is claimed for them",
    }
    return "; ".join(text for name, text in said.items() if name in evidence)


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
