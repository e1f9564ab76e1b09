"""Invariant 3: the combined value is the exact ring sum of what the contributions in S encoded.

What an honest client encoded is worked out anew: its statistic from its rows, and the noise that its mechanism drew,
which is recorded. What a hostile client encoded is what the nodes hold of it. Each honest node's partial
sum is held against the shares that it has durably kept. The trainer's result is held against the one set that all
honest nodes have summed over, also where other nodes are hostile: only one that alters its sum may spoil the value, and
nothing but the value.

In a local round it is held against each release: what the data node encoded, and how many rows; and the result against
all releases that the trainer has durably kept. So it is in a round of reports: each is the one that its mechanism draws
of the client's own value from the one key that the client used, whatever rows it has, and says of one row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import CONTRIBUTIONS
from dca_proto.core.combine import Hashes, aggregate_of, release_of, reported, together
from dca_proto.core.commit import Entries, agree, encode_entries, positions_of
from dca_proto.core.effects import Channel, Effect, Persist
from dca_proto.core.events import Event
from dca_proto.core.facts import RoundCompleted
from dca_proto.core.fixedpoint import ring_from_bytes, ring_to_bytes, to_ring
from dca_proto.core.messages import Signed
from dca_proto.core.params import Limits
from dca_proto.core.plan import Question, ask, plan_round
from dca_proto.core.records import decoded
from dca_proto.core.round import list_hash, roster_hash
from dca_proto.core.shares import VECTOR, RingVector, mask, vector_node
from dca_proto.core.upload import Contribution
from dca_proto.statistics.contribution import contribution
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.recording import Recording
from emulator.trials.checkers.witness import Release, Released, SeenRoster, Witness, release_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class ExactSum(Checker):
    """Bit for bit: each honest node's partial sum, and the trainer's result."""

    number, name = 3, "exact sum"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._recording = world.cast.mechanism = Recording(world.cast.mechanism)
        for client in world.clients:
            self._watch(client)
        self._encoded: dict[tuple[bytes, bytes, bytes], RingVector] = {}  # by round, client and contribution
        self._alone: dict[tuple[bytes, bytes, bytes], tuple[int, bytes]] = {}  # the same: rows and vector of a release
        self._questions: dict[bytes, Question] = {}
        self._summed: dict[bytes, dict[bytes, Entries]] = defaultdict(dict)  # by round and honest node
        witness.on_release.append(self._released)
        witness.on_local.append(self._released_alone)

    # --- what was encoded --------------------------------------------------------------------------------------------

    def _watch(self, process: Process) -> None:
        if isinstance(process.actor, ClientActor):
            self._recording.watch(process.actor)

    def on_restart(self, process: Process) -> None:
        """A client that starts again draws by new objects."""
        self._watch(process)

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Keep what an honest client has just encoded."""
        if process.role is not Channel.CLIENT or not self.is_honest(process):
            return
        for effect in effects:
            if isinstance(effect, Persist) and effect.table == CONTRIBUTIONS:
                made = decoded(CONTRIBUTIONS, effect.value, Contribution)
                drawn, self._recording.drawn = self._recording.drawn, None
                if drawn is None:
                    self.fail(f"{process.name} contributes to round {effect.key.hex()[:8]} without any noise")
                elif self.witness.is_local(effect.key):
                    self._alone[effect.key, process.id, made.contribution] = self._told(process.id, effect.key, drawn)
                else:
                    value = self._value(process.id, effect.key)
                    self._encoded[effect.key, process.id, made.contribution] = to_ring(value + drawn)

    def _told(self, client: bytes, round_id: bytes, drawn: NDArray[np.int64]) -> tuple[int, bytes]:
        """What a release in a local round must say: how many rows, and the noisy sum or the report."""
        report, value = self._question(round_id).report, self._value(client, round_id)
        if report is None:
            rows = len(self.world.cast.rows[self.world.client_number(client)])
            counted = min(rows, self.witness.announcements[round_id].rows_max)
            return counted, ring_to_bytes(to_ring(value + drawn))
        (own,) = report.randomise(report.held(value[np.newaxis]), self._recording.key)
        return 1, report.encode(own)

    def _value(self, client: bytes, round_id: bytes) -> NDArray[np.int64]:
        body, cast = self.witness.announcements[round_id], self.world.cast
        statistic = self._question(round_id).statistic
        places = [cast.columns.index(column) for column in statistic.columns]
        rows = cast.rows[self.world.client_number(client)][:, places]
        return contribution(statistic, rows, body.rows_max, body.fraction_bits)

    def _released_alone(self, release: Released) -> None:
        """What an honest data node releases is its own rows' sum with the noise that it drew, and their number; what an
        honest client reports, what its mechanism makes of its value with the key that it drew."""
        body, who = release.body, f"client {release.client.hex()[:8]} in round {release.round_id.hex()[:8]}"
        expected = self._alone.get((release.round_id, release.client, body.contribution))
        if expected is None:
            self.fail(f"{who} releases what it has not stored")
            return
        rows, vector = expected
        self.expect(body.vector == vector, f"{who}: it does not release what its rows and its key give")
        self.expect(body.rows == rows, f"{who}: it tells of {body.rows} rows, expected {rows}")

    def _question(self, round_id: bytes) -> Question:
        if round_id not in self._questions:
            self._questions[round_id] = ask(self.witness.announcements[round_id], self._recording, Limits())
        return self._questions[round_id]

    def _encoded_by(self, roster: SeenRoster, position: int, chosen: bytes) -> RingVector | None:
        """What the contribution with that id encoded; None where nobody honest can tell."""
        client, round_id = roster.clients[position], roster.announcement.round_id
        if client not in self.witness.dishonest:
            return self._encoded.get((round_id, client, chosen))
        parts = [self._kept(node.id, roster, index, position, chosen) for index, node in enumerate(self.world.computes)]
        known = [part for part in parts if part is not None]
        return reduce(np.add, known) if len(known) == len(parts) else None

    def _kept(self, node: bytes, roster: SeenRoster, index: int, position: int, chosen: bytes) -> RingVector | None:
        """A node's share as words; `index`: the node's place among the M."""
        body, round_id = roster.announcement, roster.announcement.round_id
        kept = self.witness.shares[node, round_id].get(position)
        if kept is None or kept.contribution != chosen:
            return None
        dimension = self._question(round_id).dimension
        full_at = vector_node(round_id, roster.clients[position], len(body.computes))
        is_vector = body.encoding == VECTOR or full_at == index
        return ring_from_bytes(kept.body, dimension) if is_vector else mask(kept.body, dimension)

    # --- what was released -------------------------------------------------------------------------------------------

    def _released(self, release: Release) -> None:
        """A node's first partial sum is over the agreed set, and adds up the shares that the node has kept."""
        of = release.node, release.round_id
        roster, own = self.witness.rosters.get(of), self.witness.lists.get(of)
        if release.number or roster is None or own is None:
            return  # said by invariants 1 and 2
        who = f"compute {release.node.hex()[:8]} in round {release.round_id.hex()[:8]}"
        present = positions_of(release.partial.contributors, len(roster.clients)).tolist()
        if not set(present) <= own.keys():
            self.fail(f"{who} sums over clients that are not on its own list")
            return
        chosen = self._summed[release.round_id][release.node] = {position: own[position] for position in present}
        told = list_hash(roster.session, encode_entries(chosen))
        self.expect(told == release.partial.contributors_hash, f"{who}: S has another hash than the node tells")
        if self.all_nodes_are_honest:
            lists = [self.witness.lists.get((node.id, release.round_id), {}) for node in self.world.computes]
            self.expect(chosen == agree(lists[0], lists[1:]), f"{who}: S is not what all frozen lists hold")
        self._check_partial(release, roster, chosen, who)

    def _check_partial(self, release: Release, roster: SeenRoster, chosen: Entries, who: str) -> None:
        index = next(index for index, node in enumerate(self.world.computes) if node.id == release.node)
        shares = [self._kept(release.node, roster, index, position, one) for position, one in chosen.items()]
        known = [share for share in shares if share is not None]
        if len(known) < len(shares):
            return  # invariant 8 says that it was never durable
        told = ring_from_bytes(release.partial.vector, self._question(release.round_id).dimension)
        self.expect(np.array_equal(told, _total(known, told.size)), f"{who}: its sum is not that of the shares it kept")

    # --- what came out -----------------------------------------------------------------------------------------------

    def on_fact(self, process: Process, fact: object) -> None:
        """Hold the trainer's result against the sum over S, as each honest node has summed it up."""
        if not isinstance(fact, RoundCompleted) or process.role is not Channel.TRAINER:
            return
        if self.witness.is_local(fact.round_id):
            self._check_alone(fact)
            return
        sets = list(self._summed[fact.round_id].values())
        roster, name = self.witness.roster_of(fact.round_id), fact.round_id.hex()[:8]
        if roster is None or not sets:
            return  # no node is honest, or it has stored no roster, which invariant 2 says
        self.expect(all(one == sets[0] for one in sets), f"round {name}: a result of sums over different sets")
        parts = {roster.clients[position]: self._encoded_by(roster, position, one) for position, one in sets[0].items()}
        unknown = {client for client, part in parts.items() if part is None}
        secretive = set() if self.all_nodes_are_honest else self.witness.dishonest
        self.expect(unknown <= secretive, f"round {name}: nobody knows what {len(unknown)} in its sum encoded")
        known = [part for part in parts.values() if part is not None]
        wrong = _different(fact.aggregate, self._expected(roster, sets[0], known))
        if self.world.altering or unknown:
            wrong = [name for name in wrong if name != "value"]
        self.expect(not wrong, f"round {name}: the result differs in {', '.join(wrong)}")

    def _expected(self, roster: SeenRoster, agreed: Entries, known: Sequence[RingVector]) -> NoisyAggregate:
        """What must come out of a set of contributions, and of what they encoded."""
        question, body = self._question(roster.announcement.round_id), roster.announcement
        plan = plan_round(body, question, len(roster.clients), self._recording)
        absent = tuple(position for position in range(len(roster.clients)) if position not in agreed)
        told = Hashes(roster.session, list_hash(roster.session, encode_entries(agreed)), roster.hash)
        total = _total(known, question.dimension)
        return aggregate_of(body, plan, total, absent, told, private=self._recording.private)

    def _check_alone(self, fact: RoundCompleted) -> None:
        name = fact.round_id.hex()[:8]
        if not self.witness.gathered[fact.round_id]:
            self.fail(f"round {name}: a result of releases that were never durable")
            return
        wrong = _different(fact.aggregate, self._expected_alone(fact.round_id))
        self.expect(not wrong, f"round {name}: the result differs in {', '.join(wrong)}")

    def _expected_alone(self, round_id: bytes) -> NoisyAggregate:
        """What must come out of a local round: each release or report that is kept, by client id, and their sum."""
        body, question = self.witness.announcements[round_id], self._question(round_id)
        plan, private = plan_round(body, question, 1, self._recording), self._recording.private
        kept = sorted(self.witness.gathered[round_id].items())
        members = [(client, frame) for client, frame in kept if release_in(frame).rows]
        if question.report is not None:
            reports = np.array([question.report.decode(release_in(frame).vector) for _, frame in members])
            clients, hashes = tuple(client for client, _ in members), self._hashes(round_id, members)
            return reported(body, plan, question.report, reports, clients, hashes)
        nodes = []
        for client, frame in members:
            release, told = release_in(frame), self._hashes(round_id, [(client, frame)])
            vector = ring_from_bytes(release.vector, question.dimension)
            nodes.append(release_of(body, plan, vector, release.rows, told, private=private))
        return together(nodes, self._hashes(round_id, members))

    def _hashes(self, round_id: bytes, members: list[tuple[bytes, Signed]]) -> Hashes:
        announced = self.witness.announced_hash(round_id)
        return Hashes(announced, list_hash(announced, b"".join(client for client, _ in members)), roster_hash(members))


def _total(vectors: Sequence[RingVector], dimension: int) -> RingVector:
    """The sum modulo 2^64."""
    return reduce(np.add, vectors, np.zeros(dimension, dtype=np.uint64))


def _different(found: NoisyAggregate, expected: NoisyAggregate) -> list[str]:
    """The names of the fields that differ, the value's in any bit."""
    plain = [field.name for field in fields(found) if field.name not in ("value", "nodes", "reports")]
    wrong = [name for name in plain if getattr(found, name) != getattr(expected, name)]
    wrong += _different_reports(found.reports, expected.reports)
    if len(found.nodes) != len(expected.nodes):
        wrong.append("nodes")
    for place, pair in enumerate(zip(found.nodes, expected.nodes, strict=False), 1):
        wrong += [f"{name} of node {place}" for name in _different(*pair)]
    return wrong if found.value.tobytes() == expected.value.tobytes() else ["value", *wrong]


def _different_reports(found: LocalReports | None, expected: LocalReports | None) -> list[str]:
    """The names of the fields of reports that differ."""
    if found is None or expected is None:
        return [] if found is expected else ["reports"]
    plain = [field.name for field in fields(found) if field.name != "values"]
    wrong = [f"{name} of the reports" for name in plain if getattr(found, name) != getattr(expected, name)]
    same = found.values.dtype == expected.values.dtype and np.array_equal(found.values, expected.values)
    return wrong if same else ["values of the reports", *wrong]
