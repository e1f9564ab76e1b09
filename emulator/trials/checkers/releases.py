"""Invariants 1 and 2: what leaves a Compute node as a partial sum, how often, and over whom; what clients release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dca_proto.protocol.compute.round import ABORTED
from dca_proto.protocol.contribution import Kept
from dca_proto.protocol.lists import set_hash
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, about
from emulator.trials.checkers.witness import Entry, Of, Release, Released, Witness
from emulator.trials.federation import FOREVER_MS
from emulator.wire import Asked

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class OneRelease(Checker):
    """Distinct partial sums per honest node and round, sent or stored, over all restarts; none beside an abort.

    Without Compute nodes: distinct releases of each honest data node, distinct reports of each client.
    """

    number, name = 1, "one partial sum"

    def on_alone(self, release: Released) -> None:
        who, round_id = release.client.hex()[:8], release.round_id.hex()[:8]
        once = release.number == 0 or release.client in self.world.restored  # which nothing notices (DESIGN §10)
        self.expect(once, f"client {who} releases or reports twice in round {round_id}")

    def on_release(self, release: Release) -> None:
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
        self._gathered: set[Of] = set()
        self._ranks: dict[tuple[bytes, bytes], tuple[int, int, bytes]] = {}  # of sessions, by node and client

    def on_release(self, release: Release) -> None:
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
        self.expect(len({entry.client for entry in chosen}) == count, f"{who} over a client twice")
        first = self._sets.setdefault(asked.hash, chosen)
        self.expect(chosen == first, f"{who} over another set than its peers")
        self._check_members(release.node, asked, chosen, who)

    def _check_members(self, node: bytes, asked: Asked, chosen: Sequence[Entry], who: str) -> None:
        records = self.world.simulator.processes[node].disk.records
        found = {
            "is not enrolled": [one for one in chosen if one.client not in self.world.enrolled],
            "has no session here": [one for one in chosen if (SESSIONS, one.client) not in records],
            "is not invited": [one for one in chosen if one.client not in (asked.invited or {one.client})],
            "another node holds": [one for one in chosen if asked.holder(one.client) != one.holder],
        }
        for what, members in found.items():
            names = ", ".join(one.client.hex()[:8] for one in members)
            self.expect(not members, f"{who} over a client that {what}: {names}")

    def on_begun(self, node: Process, asked: Asked) -> None:
        """A node takes part where its floors hold, and knows exactly those whom the trainer has invited."""
        floors, round_id = self.world.actors.floors_of(node.id), asked.body.round_id
        fewest, honest = asked.terms.fewest, asked.terms.fewest - 1 - asked.terms.colluders
        let = fewest >= floors.clients_min and honest >= max(1, floors.honest_min)
        self.expect(let, f"{node.name} takes part in round {round_id.hex()[:8]}, which its floors forbid")
        same = (asked.invited or frozenset()) == frozenset(self.witness.requests[round_id].invited)
        self.expect(same, f"{node.name} takes others for invited to round {round_id.hex()[:8]}")

    def on_answer(self, node: Process, asked: Asked, union: list[Entry] | None, objected: list[int]) -> None:
        """A node objects to everybody whose certificate has ended, and to no other honest client's entry in an honest
        holder's list whose tag its own session gives.
        """
        let_in = [entry for place, entry in enumerate(union or ()) if place not in objected]
        ended = [one.client.hex()[:8] for one in let_in if self._has_ended(one.client, node)]
        self.expect(not ended, f"{node.name} lets in {', '.join(ended)}, whose certificate has ended")
        own, tags = asked.epochs[asked.computes.index(node.id)], self.witness.tags[node.id, asked.body.round_id]
        repeating = self.world.restored | self.world.twinned  # they may use a charge's number twice
        for entry in [union[place] for place in objected] if union else ():
            record = node.disk.records.get((SESSIONS, entry.client))
            if record is None or not (self.witness.dishonest | repeating).isdisjoint((entry.client, entry.holder)):
                continue
            tag = tags.get(entry.encoded, b"")
            found = self.witness.pairs.public_of(own, entry.client, tag, asked.hash, entry.encoded)
            stored, grace_ms = decoded(SESSIONS, record, StoredSession), self.world.actors.timing.epoch_grace_ms
            alive = {
                one.public
                for one in (stored.current, stored.previous)
                if one is not None and node.now_ms < min(one.expires_ms + grace_ms, one.certificate_ms)
            }
            wrong = found is not None and found[1] in alive
            self.expect(not wrong, f"{node.name} objects to {entry.client.hex()[:8]} without a reason")

    def _has_ended(self, client: bytes, judge: Process) -> bool:
        """Whether a client's certificate has ended, by the clock of whoever has to judge."""
        return self.world.actors.ends_ms.get(client, FOREVER_MS) <= judge.now_ms

    def on_session(self, node: Process, client: bytes, stored: StoredSession) -> None:
        """The key is one that the client has made, and later than those before."""
        session, who = stored.current, f"{node.name}, {client.hex()[:8]}"
        assert session is not None, "it is stored with a session"
        self.expect(client in self.world.enrolled, f"{who} has a session, who is not enrolled")
        own = self.witness.pairs.has(client, session.public)
        self.expect(own, f"{who} has a session under a key that is not the client's")
        before = self._ranks.get((node.id, client), session.rank)
        self._ranks[node.id, client] = session.rank
        self.expect(before <= session.rank, f"{who} has an older session than before")

    def on_gathered(self, trainer: Process, round_id: bytes, client: bytes) -> None:
        """What is kept of a client is its first, of one who was asked."""
        if not self.is_honest(trainer):
            return
        who = f"round {round_id.hex()[:8]}: what {client.hex()[:8]} releases"
        self.expect(client in self.world.enrolled, f"{who} is kept, who is not enrolled")
        self.expect(not self._has_ended(client, trainer), f"{who} is kept, whose certificate has ended")
        invited = self.witness.requests[round_id].invited
        self.expect(not invited or client in invited, f"{who} is kept, who is not invited")
        self.expect((client, round_id) not in self._gathered, f"{who} is stored twice")
        self._gathered.add((client, round_id))

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: Kept) -> None:
        """What is kept of a client is its first, of one who was asked, at its holder."""
        if not self.is_honest(node):
            return
        who = f"{about(node, round_id)}: a contribution of {client.hex()[:8]}"
        asked = self.witness.asked.get((node.id, round_id))
        if asked is None:
            self.fail(f"{who} is kept without an announcement")
            return
        self.expect(asked.holder(client) == node.id, f"{who} is kept, which another node is to hold")
        self.expect(client in (asked.invited or {client}), f"{who} is kept, who is not invited")
        first = self._kept.setdefault(round_id + client, kept.contribution)
        self.expect(first == kept.contribution, f"{who} takes the place of another one")
