"""Invariants 1 and 2: what leaves a Compute node as a partial sum, how often, and over whom; what clients release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.compute.round import ABORTED, ANNOUNCEMENTS, CONTRIBUTIONS, ROUNDS
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.effects import Channel, Persist, Write
from dca_proto.protocol.lists import set_hash
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.trainer.round import RELEASES
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Entry, Of, Release, Released, Witness, places_of
from emulator.trials.federation import FOREVER_MS
from emulator.wire import Asked

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class OneRelease(Checker):
    """Distinct partial sums per honest node and round, sent or stored, over all restarts; none beside an abort.

    Without Compute nodes: distinct releases of each honest data node, distinct reports of each client.
    """

    number, name = 1, "one partial sum"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        witness.on_release.append(self._released)
        witness.on_alone.append(self._released_alone)

    def _released_alone(self, release: Released) -> None:
        who, round_id = release.client.hex()[:8], release.round_id.hex()[:8]
        once = release.number == 0 or release.client in self.world.restored  # which nothing notices (DESIGN §10)
        self.expect(once, f"client {who} releases or reports twice in round {round_id}")

    def _released(self, release: Release) -> None:
        node, round_id = release.node.hex()[:8], release.round_id.hex()[:8]
        self.expect(release.number == 0, f"compute {node} releases a second partial sum of round {round_id}")
        aborted = self.witness.ends.get((release.node, release.round_id)) == ABORTED
        self.expect(not aborted, f"compute {node} releases round {round_id}, which it has aborted")


class EnoughContributors(Checker):
    """The size of S, where its members come from, and that all honest nodes that release sum over one set.

    Without Compute nodes: where what the trainer keeps comes from.
    """

    number, name = 2, "enough, enrolled, one set"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._sets: dict[bytes, list[Entry]] = {}  # by the announcement's hash
        self._kept: dict[bytes, bytes] = {}  # contribution ids by round and client
        self._gathered: set[tuple[bytes, bytes]] = set()  # by round and client
        self._answered: set[Of] = set()
        self._ranks: dict[tuple[bytes, bytes], tuple[int, int, bytes]] = {}  # of sessions, by node and client
        witness.on_release.append(self._released)

    def _released(self, release: Release) -> None:
        who = f"compute {release.node.hex()[:8]} releases round {release.round_id.hex()[:8]}"
        asked = self.witness.asked.get((release.node, release.round_id))
        if asked is None:
            self.fail(f"{who} of which it has stored no announcement")
            return
        chosen = self.witness.agreed(release)
        if chosen is None:
            self.fail(f"{who} by answers or lists that nobody has given")
            return
        told = set_hash(asked.hash, b"".join(entry.encoded for entry in chosen))
        same = (told, len(chosen)) == (release.partial.set_hash, release.partial.count)
        self.expect(same, f"{who} over another set than lists and answers say")
        fewest, most, count = asked.terms.fewest, asked.terms.most, len(chosen)
        self.expect(fewest <= count <= most, f"{who} over {count} contributions, where {fewest} to {most} are needed")
        clients = [entry.client for entry in chosen]
        self.expect(len(set(clients)) == count, f"{who} over a client twice")
        first = self._sets.setdefault(asked.hash, chosen)
        self.expect(chosen == first, f"{who} over another set than its peers")
        self._check_members(release.node, asked, chosen, who)

    def _check_members(self, node: bytes, asked: Asked, chosen: Sequence[Entry], who: str) -> None:
        records = self.world.simulator.processes[node].disk.records
        found = {
            "is not enrolled": [one for one in chosen if self._is_strange(one.client)],
            "has no session here": [one for one in chosen if (SESSIONS, one.client) not in records],
            "is not invited": [one for one in chosen if one.client not in (asked.invited or {one.client})],
            "another node holds": [one for one in chosen if asked.holder(one.client) != one.holder],
        }
        for what, members in found.items():
            names = ", ".join(one.client.hex()[:8] for one in members)
            self.expect(not members, f"{who} over a client that {what}: {names}")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """What is kept of a client: its session is its own, its contribution or release is its first and was asked."""
        if process.id in self.witness.dishonest:
            return
        for write in writes:
            if not isinstance(write, Persist):
                continue
            if write.table == SESSIONS:
                self._check_session(process, write)
            elif write.table == ANNOUNCEMENTS and process.role is Channel.COMPUTE:
                self._check_begun(process, write.key)
            elif write.table == ROUNDS and process.role is Channel.COMPUTE:
                self._check_objections(process, (process.id, write.key))
            elif write.table == RELEASES:
                self._check_release(process, write)
            elif write.table == CONTRIBUTIONS:
                self._check_kept(process, write)

    def _check_begun(self, node: Process, round_id: bytes) -> None:
        """A node takes part where its floors hold, and knows exactly those whom the trainer has invited."""
        asked, floors = self.witness.asked[node.id, round_id], self.world.cast.floors_of(node.id)
        fewest, honest = asked.terms.fewest, asked.terms.fewest - 1 - asked.terms.colluders
        let = fewest >= floors.clients_min and honest >= max(1, floors.honest_min)
        self.expect(let, f"{node.name} takes part in round {round_id.hex()[:8]}, which its floors forbid")
        told = asked.invited or frozenset()
        invited = frozenset(self.witness.requests[round_id].invited)
        self.expect(told == invited, f"{node.name} takes others for invited to round {round_id.hex()[:8]}")

    def _check_objections(self, node: Process, of: Of) -> None:
        """A node objects to everybody whose certificate has ended, and to no other honest client's entry in an honest
        holder's list whose tag its own session gives.
        """
        answer = self.witness.answers.get(of)
        if answer is None or of in self._answered:
            return
        self._answered.add(of)
        objected, union = places_of(answer.objections), self.witness.union(of) or []
        let_in = [entry for place, entry in enumerate(union) if place not in objected]
        ended = [one.client.hex()[:8] for one in let_in if self._has_ended(one.client, node)]
        self.expect(not ended, f"{node.name} lets in {', '.join(ended)}, whose certificate has ended")
        asked = self.witness.asked[of]
        own = asked.epochs[asked.computes.index(node.id)]
        repeating = self.world.restored | self.world.twinned  # they may use a charge's number twice
        for entry in (union[place] for place in objected):
            record = node.disk.records.get((SESSIONS, entry.client))
            if record is None or not (self.witness.dishonest | repeating).isdisjoint((entry.client, entry.holder)):
                continue
            tag = self.witness.tags[of].get(entry.encoded, b"")
            found = self.witness.pairs.public_of(own, entry.client, tag, asked.hash, entry.encoded)
            stored = decoded(SESSIONS, record, StoredSession)
            grace_ms = self.world.cast.timing.epoch_grace_ms
            alive = {
                one.public
                for one in (stored.current, stored.previous)
                if one is not None and node.now_ms < min(one.expires_ms + grace_ms, one.certificate_ms)
            }
            wrong = found is not None and found[1] in alive
            self.expect(not wrong, f"{node.name} objects to {entry.client.hex()[:8]} without a reason")

    def _has_ended(self, client: bytes, judge: Process) -> bool:
        """Whether a client's certificate has ended, by the clock of whoever has to judge."""
        return self.world.cast.ends_ms.get(client, FOREVER_MS) <= judge.now_ms

    def _check_session(self, node: Process, write: Persist) -> None:
        """The key is one that the client has made, and later than those before."""
        session, who = decoded(SESSIONS, write.value, StoredSession).current, f"{node.name}, {write.key.hex()[:8]}"
        assert session is not None, "it is stored with a session"
        self.expect(not self._is_strange(write.key), f"{who} has a session, who is not enrolled")
        own = self.witness.pairs.has(write.key, session.public)
        self.expect(own, f"{who} has a session under a key that is not the client's")
        before = self._ranks.setdefault((node.id, write.key), session.rank)
        self._ranks[node.id, write.key] = session.rank
        self.expect(before <= session.rank, f"{who} has an older session than before")

    def _check_release(self, trainer: Process, write: Persist) -> None:
        round_id, client = write.key[:ID_BYTES], write.key[ID_BYTES:]
        who = f"round {round_id.hex()[:8]}: what {client.hex()[:8]} releases"
        self.expect(not self._is_strange(client), f"{who} is kept, who is not enrolled")
        self.expect(not self._has_ended(client, trainer), f"{who} is kept, whose certificate has ended")
        invited = self.witness.requests[round_id].invited
        self.expect(not invited or client in invited, f"{who} is kept, who is not invited")
        again = (round_id, client) in self._gathered
        self.expect(not again, f"{who} is stored twice")
        self._gathered.add((round_id, client))

    def _check_kept(self, node: Process, write: Persist) -> None:
        round_id, client = write.key[:ID_BYTES], write.key[ID_BYTES:]
        who = f"{node.name}, round {round_id.hex()[:8]}: a contribution of {client.hex()[:8]}"
        asked = self.witness.asked.get((node.id, round_id))
        if asked is None:
            self.fail(f"{who} is kept without an announcement")
            return
        self.expect(asked.holder(client) == node.id, f"{who} is kept, which another node is to hold")
        self.expect(client in (asked.invited or {client}), f"{who} is kept, who is not invited")
        kept = Kept(write.value)
        first = self._kept.setdefault(write.key, kept.contribution)
        self.expect(first == kept.contribution, f"{who} takes the place of another one")

    def _is_strange(self, client: bytes) -> bool:
        return client not in self.world.enrolled
