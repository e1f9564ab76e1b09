"""The record of a run: of `dca swarm` (`kind` "swarm"), or of a job at a federation's trainer ("learn").

The results of a job are in its own summary (`inference.jobs.summary`), whose fields join those of the run in the JSON
object. A field that does not apply is None or empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from dca_proto.protocol.terms import Terms
from dca_proto.protocol.wire.kinds import LDP_REPORT, NODE_RELEASE, SECURE_SUM, Kind, SecureSum, name_of
from dca_proto.results.figure import Amount, Count, Real, Whole, about, compute_fields, figure
from dca_proto.results.round import Node, Round, Traffic

Setting = bool | int | float | str | list[float | str] | dict[str, float | str | list[float | str] | None] | None
"""A setting of a job: a scalar, a list, or a table of a federation's file, such as the bounds."""
SETTING = "setting"
"""The table of a run's terms and circumstances."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run: its rounds, their terms, and what it used."""

    kind: Annotated[str, about("The kind of run.")] = "swarm"
    ok: Annotated[bool, about("Whether it has a result.")]
    error: Annotated[str | None, about("Why it has none.")] = None
    remedy: Annotated[str | None, about("What to do about the error.")] = None
    clients: Annotated[Count, figure("clients (N)", "N clients, or J data nodes.", table=SETTING)]
    batch: Annotated[
        Count | None, figure("clients in a mini-batch (B)", "B, the clients in a round.", table=SETTING)
    ] = None
    tolerate: Annotated[Count, figure("tolerated dropouts (T)", "T, of all clients.", table=SETTING)]
    colluders: Annotated[
        Count, figure("reserved for colluders (c)", "c, the clients that may collude.", table=SETTING)
    ] = 0
    n_min: Annotated[
        Count | None,
        figure("contributions needed in each round, at least", "n_min, of the smallest round; null without Compute "
               "nodes, and if no round has a result.", table=SETTING),
    ] = None  # fmt: skip
    computes: Annotated[Count, figure("Compute nodes (M)", "M, the number of Compute nodes.", table=SETTING)]
    dimension: Annotated[Count | None, about("Numbers in a synthetic sum.")] = None
    round_kind: Annotated[str, about("The kind of its rounds.")] = SECURE_SUM
    reports: Annotated[str | None, about("The mechanism of LDP reports.")] = None
    mechanism: Annotated[str, figure("noise", "Its mechanism.", table=SETTING)] = ""
    private: Annotated[bool, about("Whether epsilon is claimed.")] = True
    not_private_because: Annotated[list[str], about("The reasons why it is not.")] = []
    epsilon: Annotated[Amount | None, about("Of all rounds together; null if none is claimed.")] = None
    delta: Annotated[Amount | None, about("As epsilon.")] = None
    epsilon_spent: Annotated[Amount | None, about("The most that a client has spent, in a swarm.")] = None
    job: Annotated[str | None, figure("job", "Its name.", table=SETTING)] = None
    settings: Annotated[dict[str, Setting], about("Of the job.")] = {}
    federation: Annotated[str | None, figure("federation", "Its name.", table=SETTING)] = None
    broker: Annotated[str, figure("broker", "Its kind.", table=SETTING)] = ""
    broker_version: Annotated[str | None, figure("broker's version", "As it states it.", table=SETTING)] = None
    connections: Annotated[
        str | None,
        figure(
            "connections, each client's or shared",
            "'shared': one for all clients of a process.",
            table=SETTING,
        ),
    ] = None
    processes: Annotated[Count | None, figure("processes", "Of clients.", table=SETTING)] = None
    seed: Annotated[Whole | None, about("Of data splits, drops and waits.")] = None
    connect_s: Annotated[
        Amount | None,
        figure("until all were connected", "From the start of the first process, with making keys and certificates.",
               unit="s", table=SETTING),
    ] = None  # fmt: skip
    sessions_s: Annotated[
        Amount | None,
        figure("until all had sessions", "From the same start, until every Compute node had a session of every client.",
               unit="s", table=SETTING),
    ] = None  # fmt: skip
    sessions_core_s: Annotated[Amount | None, about("Processor seconds of all roles until then.")] = None
    agreement_s: Annotated[
        Real | None,
        about("Extra time of the first round, in which pairs agree on keys, over the mean of the later ones."),
    ] = None
    rounds: Annotated[list[Round], about("In order.")]
    roles: Annotated[dict[str, Traffic], about("Sent by each role since the start.")] = {}
    core_s_by_role: Annotated[dict[str, Amount], about("Processor seconds of each role since the start.")] = {}
    peak_rss_mb_by_process: Annotated[dict[str, Amount], about("Peak memory of each process, in MiB.")] = {}
    facts: Annotated[dict[str, Count], about("Facts that clients and Compute nodes reported since the start.")] = {}
    wall_s: Annotated[Amount | None, about("Seconds of the whole run.")] = None

    def __post_init__(self) -> None:
        compute_fields(self)

    @property
    def last(self) -> Round | None:
        """The last round whose contributors are known."""
        return next((one for one in reversed(self.rounds) if one.contributors is not None), None)

    @property
    def aborted(self) -> Round | None:
        """The last round, if it has no result."""
        return self.rounds[-1] if self.rounds and not self.rounds[-1].ok else None

    @property
    def contributors(self) -> int | None:
        """Those of the last round."""
        return None if self.last is None else self.last.contributors

    @property
    def nodes(self) -> list[Node]:
        """The releases of the data nodes in the last round."""
        return [] if self.last is None else self.last.nodes

    @property
    def reported(self) -> int:
        """The number of LDP reports in all rounds."""
        return sum(one.contributors or 0 for one in self.rounds) if self.reports else 0

    @property
    def p(self) -> Annotated[int | None, figure("Compute nodes that may collude (p)", table=SETTING)]:
        """The most Compute nodes that may be corrupt, in the last round of which that is known."""
        return next((one.p for one in reversed(self.rounds) if one.p is not None), None)

    @property
    def peak_rss_mb(self) -> float | None:
        """Peak memory of the largest process, in MiB."""
        return max(self.peak_rss_mb_by_process.values(), default=None)

    @property
    def unknown_noises(self) -> int:
        """The number of honest noises, unknown to any coalition that the guarantee covers, in the smallest sum."""
        n_min = self.clients - self.tolerate + self.colluders if self.n_min is None else self.n_min
        return n_min - 1 - self.colluders

    @property
    def is_summed(self) -> bool:
        """True if rounds are secure sums, with Compute nodes."""
        return self.round_kind == SECURE_SUM

    @property
    def has_nodes(self) -> bool:
        """True if clients are data nodes, each with a release of its own."""
        return self.round_kind == NODE_RELEASE

    @property
    def who(self) -> str:
        """The name of a participant."""
        return "data node" if self.has_nodes else "client"

    @property
    def came(self) -> str:
        """The verb for what participants did."""
        return {NODE_RELEASE: "released", LDP_REPORT: "reported"}.get(self.round_kind, "contributed")

    @property
    def aborts(self) -> dict[str, list[int]]:
        """The reasons of aborts, each with the numbers of its rounds, from 1."""
        reasons: dict[str, list[int]] = {}
        for number, entry in enumerate(self.rounds, 1):
            if not entry.ok:
                reasons.setdefault(entry.error or "the reason was not recorded", []).append(number)
        return reasons


def run_of(
    terms: Terms[Any], round_kind: type[Kind], rounds: list[Round], not_private: Sequence[str], **fields: Any
) -> Run:
    """Return the record of a run with these terms: fields of the same name. Without a privacy claim, it has no epsilon.

    Args:
        round_kind: of its rounds. not_private: the reasons why no epsilon may be claimed.
        fields: further fields, or other values of these; `batch` is B, or None if all clients are asked.
    """
    batch, is_summed = fields.get("batch"), issubclass(round_kind, SecureSum)
    found: dict[str, Any] = {
        **{name: getattr(terms, name) for name in Terms.__struct_fields__ if name in Run.__struct_fields__},
        "computes": terms.computes if isinstance(terms.computes, int) else len(terms.computes),
        "n_min": (terms.in_batch(batch) if batch else terms).n_min if is_summed else None,
        "round_kind": name_of(round_kind),
        **fields,
    }
    if not_private:
        found |= dict.fromkeys(("epsilon", "delta", "epsilon_spent"))
    return Run(rounds=rounds, private=not not_private, not_private_because=[*not_private], **found)


GROUPED_FROM = 5
"""The number of rounds from which similar ones are grouped."""


def grouped(rounds: Sequence[Round]) -> list[list[Round]]:
    """Return each round by itself; if there are many, those of the same name, size and outcome together."""
    if len(rounds) < GROUPED_FROM:
        return [[entry] for entry in rounds]
    groups: dict[tuple[str, int | None, bool], list[Round]] = {}
    for entry in rounds:
        groups.setdefault((entry.statistic, entry.dimension, entry.ok), []).append(entry)
    return list(groups.values())
