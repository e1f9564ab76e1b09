"""Invariant 3: the combined value is the exact ring sum of what the contributions in S encoded.

What an honest client encoded is worked out anew: its statistic from its rows, and the noise that its mechanism drew,
which is recorded. What a hostile client encoded is what its holder keeps of it, and all M masks, worked out a second
time. Each honest node's partial sum is held against the contributions that it has durably kept, and its own masks over
S. The trainer's result is held against the one set that all honest nodes have summed over, also where other nodes are
hostile: only one that alters its sum may spoil the value, and nothing but the value.

Without Compute nodes it is held against each release: what the data node encoded, and how many rows; and the result
against all releases that the trainer has durably kept. Each report is the one that its mechanism draws of the client's
own value from the one key that the client used, whatever rows it has, and says of one row.
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
from dca_proto.crypto.fixedpoint import ring_from_bytes, ring_to_bytes, to_ring
from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import digest
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Channel, Effect
from dca_proto.protocol.events import Event
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.lists import set_hash
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.combine import Hashes, aggregate_of, merge_reports, release_of, sum_releases
from dca_proto.protocol.validated import ValidatedRound, validate_announcement
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Signed
from dca_proto.statistics.contribution import contribution
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.recording import Recording
from emulator.trials.checkers.witness import Entry, Release, Released, Witness, release_in
from emulator.wire import Asked, contributions_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class ExactSum(Checker):
    """Bit for bit: each honest node's partial sum, and the trainer's result.

    Attributes:
        recording: what clients draw.
    """

    number, name = 3, "exact sum"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self.recording = world.cast.mechanism = Recording(world.cast.mechanism)
        for client in world.clients:
            self._watch(client)
        self._encoded: dict[tuple[bytes, bytes, bytes], RingVector] = {}  # by round, client and contribution
        self._alone: dict[tuple[bytes, bytes, bytes], tuple[int, bytes]] = {}  # the same: rows and vector of a release
        self._rounds: dict[bytes, ValidatedRound] = {}
        self._summed: dict[bytes, dict[bytes, list[Entry]]] = defaultdict(dict)  # by round and honest node
        witness.on_release.append(self._released)
        witness.on_alone.append(self._released_alone)

    # --- what was encoded --------------------------------------------------------------------------------------------

    def _watch(self, process: Process) -> None:
        if isinstance(process.actor, Client):
            self.recording.watch(process.actor)

    def on_restart(self, process: Process) -> None:
        """A client that starts again draws by new objects."""
        self._watch(process)

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Keep what an honest client has just encoded."""
        if process.role is not Channel.CLIENT or not self.is_honest(process):
            return
        for round_id, made in contributions_in(effects):
            drawn, self.recording.drawn = self.recording.drawn, None
            if drawn is None:
                self.fail(f"{process.name} contributes to round {round_id.hex()[:8]} without any noise")
            elif not self.witness.is_summed(round_id):
                asked = self.witness.asked[process.id, round_id]
                self._alone[round_id, process.id, made.contribution] = self._told(process.id, asked, drawn)
            else:
                value = self._value(process.id, self.witness.asked[process.id, round_id])
                self._encoded[round_id, process.id, made.contribution] = to_ring(value + drawn)

    def _told(self, client: bytes, asked: Asked, drawn: NDArray[np.int64]) -> tuple[int, bytes]:
        """What a release without Compute nodes must say: how many rows, and the noisy sum or the report."""
        report, value = self._validated(asked).report, self._value(client, asked)
        if report is None:
            failing = client in self.world.cast.failing
            rows = 0 if failing else len(self.world.cast.rows[self.world.client_number(client)])
            counted = min(rows, asked.body.rows_max)
            return counted, ring_to_bytes(to_ring(value + drawn))
        (own,) = report.randomise(report.to_inputs(value[np.newaxis]), self.recording.key)
        return 1, report.encode(own)

    def _value(self, client: bytes, asked: Asked) -> NDArray[np.int64]:
        body, cast = asked.body, self.world.cast
        statistic = self._validated(asked).statistic
        if client in cast.failing:
            return np.zeros(statistic.dimension, dtype=np.int64)
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

    def _validated(self, asked: Asked) -> ValidatedRound:
        if asked.hash not in self._rounds:
            self._rounds[asked.hash] = validate_announcement(asked.body, self.recording, Limits())
        return self._rounds[asked.hash]

    def _encoded_by(self, asked: Asked, entry: Entry) -> RingVector | None:
        """What a contribution encoded; None where nobody honest can tell."""
        if entry.client not in self.witness.dishonest:
            return self._encoded.get((asked.body.round_id, entry.client, entry.contribution))
        kept = self.witness.kept[entry.holder, asked.body.round_id].get((entry.client, entry.contribution))
        if kept is None:
            return None
        tags = [kept.tags[8 * place : 8 * place + 8] for place in range(len(asked.epochs))]
        masks = [self._mask(asked, place, entry, tag) for place, tag in enumerate(tags)]
        known = [mask for mask in masks if mask is not None]
        return _total([_words(kept.y), *known], known[0].size) if len(known) == len(masks) else None

    def _mask(self, asked: Asked, place: int, entry: Entry, tag: bytes) -> RingVector | None:
        """A node's mask of an entry; None where no key of its client gives that tag."""
        dimension = self._validated(asked).dimension
        data = self.witness.pairs.mask(asked.epochs[place], entry.client, tag, asked.hash, entry.encoded, dimension)
        return None if data is None else _words(data)

    # --- what was released -------------------------------------------------------------------------------------------

    def _released(self, release: Release) -> None:
        """A node's first partial sum adds up the contributions that the node has kept, and its masks over all of S."""
        asked, chosen = self.witness.asked.get((release.node, release.round_id)), self.witness.agreed(release)
        if release.number or asked is None or chosen is None:
            return  # said by invariants 1 and 2
        who = f"compute {release.node.hex()[:8]} in round {release.round_id.hex()[:8]}"
        self._summed[release.round_id][release.node] = chosen
        told = [entry.client for entry in chosen if entry.holder == release.node]
        self.expect(release.partial.clients == b"".join(told), f"{who}: it tells of other clients than it holds")
        kept, place = self.witness.kept[release.node, release.round_id], asked.computes.index(release.node)
        held = [kept.get((one.client, one.contribution)) for one in chosen if one.holder == release.node]
        if None in held:
            return  # invariant 8 says that it was never durable
        tags = self.witness.tags[release.node, release.round_id]
        masks = [self._mask(asked, place, entry, tags.get(entry.encoded, b"")) for entry in chosen]
        false = [entry for entry, mask in zip(chosen, masks, strict=True) if mask is None]
        self.expect(not false, f"{who}: {len(false)} in S have a tag that no key of that client gives")
        if not false:
            parts = [*(_words(one.y) for one in held if one is not None), *(mask for mask in masks if mask is not None)]
            words = ring_from_bytes(release.partial.vector, self._validated(asked).dimension)
            self.expect(np.array_equal(words, _total(parts, words.size)), f"{who}: its sum is not that of what it kept")

    # --- what came out -----------------------------------------------------------------------------------------------

    def on_fact(self, process: Process, fact: object) -> None:
        """Hold the trainer's result against the sum over S, as each honest node has summed it up."""
        if not isinstance(fact, RoundCompleted) or process.role is not Channel.TRAINER:
            return
        if not self.witness.is_summed(fact.round_id):
            self._check_alone(fact)
            return
        sets, name = list(self._summed[fact.round_id].items()), fact.round_id.hex()[:8]
        if not sets:
            return  # no node is honest, or it has stored no announcement, which invariant 2 says
        chosen, asked = sets[0][1], self.witness.asked[sets[0][0], fact.round_id]
        self.expect(all(one == chosen for _, one in sets), f"round {name}: a result of sums over different sets")
        parts = {entry.client: self._encoded_by(asked, entry) for entry in chosen}
        unknown = {client for client, part in parts.items() if part is None}
        secretive = set() if self.all_nodes_are_honest else self.witness.dishonest
        self.expect(unknown <= secretive, f"round {name}: nobody knows what {len(unknown)} in its sum encoded")
        known = [part for part in parts.values() if part is not None]
        wrong = _different(fact.aggregate, self._expected(asked, chosen, known))
        if self.world.altering or unknown:
            wrong = [name for name in wrong if name != "value"]
        self.expect(not wrong, f"round {name}: the result differs in {', '.join(wrong)}")
        if isinstance(process.actor, Trainer):
            told = process.actor.contributors(fact.round_id)
            self.expect(told == tuple(sorted(parts)), f"round {name}: the trainer names others than those in S")

    def _expected(self, asked: Asked, chosen: Sequence[Entry], known: Sequence[RingVector]) -> NoisyAggregate:
        """What must come out of a set of contributions, and of what they encoded."""
        body, validated = asked.body, self._validated(asked)
        hashes = Hashes(asked.hash, set_hash(asked.hash, b"".join(entry.encoded for entry in chosen)))
        clients = max(self.witness.requests[body.round_id].answers_expected, len(chosen))
        total, private = _total(known, validated.dimension), self.recording.private
        return aggregate_of(body, validated, total, len(chosen), hashes, clients=clients, private=private)

    def _check_alone(self, fact: RoundCompleted) -> None:
        name = fact.round_id.hex()[:8]
        if not self.witness.gathered[fact.round_id]:
            self.fail(f"round {name}: a result of releases that were never durable")
            return
        wrong = _different(fact.aggregate, self._expected_alone(fact.round_id))
        self.expect(not wrong, f"round {name}: the result differs in {', '.join(wrong)}")

    def _expected_alone(self, round_id: bytes) -> NoisyAggregate:
        """What must come out of releases or reports: each that is kept, by client id, and their sum."""
        body = self.witness.announcements[round_id]
        validated = validate_announcement(body, self.recording, Limits())
        kept = sorted(self.witness.gathered[round_id].items())
        members = [(client, frame) for client, frame in kept if release_in(frame).rows]
        if validated.report is not None:
            reports = np.array([validated.report.decode(release_in(frame).vector) for _, frame in members])
            clients, hashes = tuple(client for client, _ in members), self._hashes(round_id, members)
            return merge_reports(body, validated, validated.report, reports, clients, hashes)
        nodes = []
        for client, frame in members:
            release, told = release_in(frame), self._hashes(round_id, [(client, frame)])
            vector = ring_from_bytes(release.vector, validated.dimension)
            nodes.append(release_of(body, validated, vector, release.rows, told, private=self.recording.private))
        return sum_releases(nodes, self._hashes(round_id, members))

    def _hashes(self, round_id: bytes, members: list[tuple[bytes, Signed]]) -> Hashes:
        announced = self.witness.announced_hash(round_id)
        parts = (part for client, frame in members for part in (client, encode(frame)))
        return Hashes(announced, digest(b"dca4-releases", announced, *parts))


def _words(data: bytes) -> RingVector:
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


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
