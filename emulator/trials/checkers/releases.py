"""Invariants 1, 2 and 8: one release each, over one set of enough enrolled clients, and nothing lost by kills.

A receipt promises that the holder keeps the contribution until the round's end and lists it. A notice of lateness
promises that the holder does not list it. A node's list, answer and final phase never change once they are durable, and
it sends no others. (Invariant 4 covers charges.) In a round without Compute nodes, the trainer's receipt for a release
or report promises a place in the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute.round import ABORTED, ANSWERS, CONTRIBUTIONS, ENDS, RELEASED, ROUNDS, StoredComputeRound
from dca_proto.protocol.contribution import ClientMessage, HeldContribution
from dca_proto.protocol.effects import Channel, Effect, Forget, Send, Write
from dca_proto.protocol.events import Event, Started
from dca_proto.protocol.facts import Acknowledged, ChargeReturned, RoundCompleted, RoundFailed
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.lists import set_hash
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.wire.codec import decode_body, decode_frame
from dca_proto.protocol.wire.messages import Abort, Answer, Receipt, Sealed, Signed
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, ReleasedVector, RunLog, about, release_in
from emulator.trials.checkers.entries import Entry, entries_in
from emulator.trials.federation import FOREVER_MS
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted


class OneRelease(Checker):
    """Each honest node has at most one partial sum of a round, stored or sent, over all restarts; none beside an abort.

    Without Compute nodes, each honest data node has one release, or each client one report.
    """

    number, name = 1, "one partial sum"

    def on_release(self, release: ReleasedVector) -> None:
        who, round_id = release.sender.hex()[:8], release.round_id.hex()[:8]
        once = release.number == 0 or release.sender in self.world.restored  # no party can notice that (DESIGN §10)
        self.expect(once, f"client {who} releases or reports twice in round {round_id}")

    def on_partial_sum(self, release: ReleasedVector) -> None:
        node, round_id = release.sender.hex()[:8], release.round_id.hex()[:8]
        self.expect(release.number == 0, f"compute {node} releases a second partial sum of round {round_id}")
        aborted = self.log.ends.get((release.sender, release.round_id)) == ABORTED
        self.expect(not aborted, f"compute {node} releases round {round_id}, which it has aborted")


class EnoughContributors(Checker):
    """A has n_min to n_max members, each enrolled, invited and from its holder; honest nodes sum over the same A.

    Without Compute nodes, the trainer keeps releases of enrolled and invited clients only.
    """

    number, name = 2, "enough, enrolled, one set"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._sets: dict[bytes, list[Entry]] = {}  # by the announcement's hash
        self._kept: dict[bytes, bytes] = {}  # contribution ids by round and client
        self._stored: set[Key] = set()
        self._ranks: dict[tuple[bytes, bytes], tuple[int, int, bytes]] = {}  # of sessions, by node and client

    def on_unannounced(self, sender: Process, round_id: bytes) -> None:
        self.fail(f"{about(sender, round_id)}: it sends the trainer a message of a round that was never announced")

    def on_partial_sum(self, release: ReleasedVector) -> None:
        who = f"compute {release.sender.hex()[:8]} releases round {release.round_id.hex()[:8]}"
        accepted = self.log.accepted.get((release.sender, release.round_id))
        if accepted is None:
            self.fail(f"{who}, but has stored no announcement of it")
            return
        chosen = self.log.agreed(release)
        if chosen is None:
            self.fail(f"{who} by unknown or inconsistent answers or lists")
            return
        hashed = set_hash(accepted.hash, b"".join(entry.encoded for entry in chosen))
        same = (hashed, len(chosen)) == (release.body.set_hash, release.body.count)
        self.expect(same, f"{who} over another set than lists and answers give")
        n_min, n_max, count = accepted.counts.n_min, accepted.counts.n_max, len(chosen)
        self.expect(n_min <= count <= n_max, f"{who} over {count} contributions, expected {n_min} to {n_max}")
        self.expect(len({entry.client for entry in chosen}) == count, f"{who} with a client twice")
        first = self._sets.setdefault(accepted.hash, chosen)
        self.expect(chosen == first, f"{who} over another set than its peers")
        records = self.world.simulator.processes[release.sender].disk.records
        wrong = {
            "is not enrolled": [entry for entry in chosen if entry.client not in self.world.enrolled],
            "has no session here": [entry for entry in chosen if (SESSIONS, entry.client) not in records],
            "is not invited": [entry for entry in chosen if entry.client not in (accepted.invited or {entry.client})],
            "another node holds": [entry for entry in chosen if accepted.holder(entry.client) != entry.holder],
        }
        for mistake, members in wrong.items():
            names = ", ".join(entry.client.hex()[:8] for entry in members)
            self.expect(not members, f"{who} over a client that {mistake}: {names}")

    def on_begun(self, node: Process, accepted: Accepted) -> None:
        """A node takes part only if its floors and p allow it, and knows exactly the clients that were invited."""
        floors, round_id = self.world.actors.floors_of(node.id), accepted.body.round_id
        n_min, _, honest = accepted.counts
        allowed = n_min >= floors.clients_min and honest >= max(1, floors.honest_min)
        self.expect(allowed, f"{node.name} takes part in round {round_id.hex()[:8]}, which its floors forbid")
        many = len(accepted.computes) > self.log.colluding.of(node)
        self.expect(many, f"{node.name} takes part in round {round_id.hex()[:8]} of {len(accepted.computes)} nodes")
        request = self.log.requests.get(round_id)
        same = request is not None and (accepted.invited or frozenset()) == frozenset(request.invited)
        self.expect(
            same, f"{node.name} has other clients as invited to round {round_id.hex()[:8]} than the trainer invited"
        )

    def on_answer(self, node: Process, accepted: Accepted, union: list[Entry] | None, objected: list[int]) -> None:
        """A node objects to all clients whose certificate has ended.

        It accepts all other entries of honest clients and holders with a tag that is right under its own session.
        """
        admitted = [entry for place, entry in enumerate(union or ()) if place not in objected]
        ended = [entry.client.hex()[:8] for entry in admitted if self._has_ended(entry.client, node)]
        self.expect(not ended, f"{node.name} accepts {', '.join(ended)}, whose certificate has ended")
        own, tags = accepted.epochs[accepted.computes.index(node.id)], self.log.tags[node.id, accepted.body.round_id]
        excused = self.log.dishonest | self.world.copied  # may reuse a charge number, or have a session no more
        for entry in [union[place] for place in objected] if union else ():
            record = node.disk.records.get((SESSIONS, entry.client))
            if record is None or not excused.isdisjoint((entry.client, entry.holder)):
                continue
            named = self.log.pairs.public_of(
                own, entry.client, tags.get(entry.encoded, b""), accepted.hash, entry.encoded
            )
            stored, grace_ms = decoded(SESSIONS, record, StoredSession), self.world.actors.timing.epoch_grace_ms
            alive = {
                session.public
                for session in (stored.current, stored.previous)
                if session is not None and node.now_ms < min(session.expires_ms + grace_ms, session.certificate_ms)
            }
            wrong = named is not None and named[1] in alive
            self.expect(not wrong, f"{node.name} objects to {entry.client.hex()[:8]} without a reason")

    def _has_ended(self, client: bytes, judge: Process) -> bool:
        """Return True if a client's certificate has ended by the clock of `judge`."""
        return self.world.actors.ends_ms.get(client, FOREVER_MS) <= judge.now_ms

    def on_session(self, node: Process, client: bytes, stored: StoredSession) -> None:
        """A session's client is enrolled and made its key, and no session is older than the one before."""
        session, who = stored.current, f"{node.name}, {client.hex()[:8]}"
        if session is None:  # the client is revoked: `Revocation` checks that
            return
        self.expect(client in self.world.enrolled, f"{who} has a session, but is not enrolled")
        own = self.log.pairs.has(client, session.public)
        self.expect(own, f"{who} has a session under a key that is not the client's")
        before = self._ranks.get((node.id, client), session.rank)
        if before[0] > node.now_ms // self.world.actors.timing.epoch_ms + 1:  # made while both clocks ran ahead
            before = session.rank
        self._ranks[node.id, client] = session.rank
        self.expect(before <= session.rank, f"{who} has an older session than before")

    def on_stored_release(self, trainer: Process, round_id: bytes, client: bytes) -> None:
        """The trainer keeps one release of each client, which is enrolled and invited and has a valid certificate."""
        if not self.is_honest(trainer):
            return
        who = f"round {round_id.hex()[:8]}: the release of {client.hex()[:8]}"
        self.expect(client in self.world.enrolled, f"{who} is kept, but the client is not enrolled")
        self.expect(not self._has_ended(client, trainer), f"{who} is kept, but the client's certificate has ended")
        invited = self.log.requests[round_id].invited
        self.expect(not invited or client in invited, f"{who} is kept, but the client is not invited")
        self.expect((client, round_id) not in self._stored, f"{who} is stored twice")
        self._stored.add((client, round_id))

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: HeldContribution) -> None:
        """A node keeps one contribution of each client that is invited and that it holds."""
        if not self.is_honest(node):
            return
        who = f"{about(node, round_id)}: a contribution of {client.hex()[:8]}"
        accepted = self.log.accepted.get((node.id, round_id))
        if accepted is None:
            self.fail(f"{who} is kept without an announcement")
            return
        self.expect(accepted.holder(client) == node.id, f"{who} is kept, but another node is its holder")
        self.expect(client in (accepted.invited or {client}), f"{who} is kept, but the client is not invited")
        first = self._kept.setdefault(round_id + client, kept.contribution)
        self.expect(first == kept.contribution, f"{who} replaces another one")


class Kills(Checker):
    """Receipts, lists, answers, final phases and results agree with durable records, over all restarts."""

    number, name = 8, "kills lose and double nothing"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._acknowledged: defaultdict[bytes, set[bytes]] = defaultdict(set)  # round -> clients with a receipt
        self._phases: dict[Key, str] = {}
        self._messages: dict[Key, tuple[bytes, Signed | None, Signed | None]] = {}  # entries, header and answer
        self._in_result: dict[bytes, set[bytes]] = {}  # round without Compute nodes -> clients
        self._receipts: dict[tuple[bytes, ...], str] = {}  # meaning, by node, round, client and contribution
        self._outbound: dict[tuple[bytes, bytes], ClientMessage] = {}  # by client and contribution id
        self._results: dict[bytes, bytes | None] = {}  # round -> the result's bytes; None if it failed

    def on_paid(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        """A client stores the announcement with the charge."""
        self._outbound[client.id, outbound.contribution] = outbound
        known = (client_round.ANNOUNCEMENTS, round_id) in client.disk.records
        self.expect(known, f"{about(client, round_id)}: it has paid, but has not stored the announcement")

    def on_partial_sum(self, release: ReleasedVector) -> None:
        """The contributions to A that a node holds were durable."""
        kept = self.log.kept[release.sender, release.round_id]
        held = [entry for entry in self.log.agreed(release) or () if entry.holder == release.sender]
        lost = [entry for entry in held if (entry.client, entry.contribution) not in kept]
        who = f"compute {about(release.sender, release.round_id)}"
        self.expect(not lost, f"{who}: {len(lost)} contributions in its sum were never durable")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """A node deletes contributions only after the round's end."""
        if process.role is not Channel.COMPUTE or not self.is_honest(process):
            return
        for write in writes:
            if isinstance(write, Forget) and write.table == CONTRIBUTIONS:
                round_id = write.key[:ID_BYTES]
                ended = (process.id, round_id) in self.log.ends
                self.expect(ended, f"{about(process, round_id)}: it forgets a contribution before the end")

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: HeldContribution) -> None:
        """A node keeps no new contribution after it has frozen its list."""
        key = node.id, round_id
        if self.is_honest(node):
            in_time = key not in self.log.lists or (client, kept.contribution) in self._listed(key)
            self.expect(in_time, f"{about(node, round_id)}: it keeps a contribution after its list was frozen")

    def on_round(self, node: Process, stored: StoredComputeRound) -> None:
        """A final phase, a list and an answer do not change."""
        key, who = (node.id, stored.round_id), about(node, stored.round_id)
        first = self._phases.get(key, stored.phase)
        self._phases[key] = stored.phase
        self.expect(first not in ENDS or stored.phase == first, f"{who} was {first} and is {stored.phase}")
        if (stored.phase == ABORTED and not stored.entries) or (stored.phase == RELEASED and not stored.final_message):
            return  # deleted with the abort, or with the sum after its grace
        now = stored.entries, stored.header, stored.answer
        before = self._messages.get(key, now)
        same = all(old == new or old in (b"", None) for old, new in zip(before, now, strict=True))
        self.expect(same, f"{who}: its list or its answer changes")
        self._messages[key] = now

    def on_restart(self, process: Process) -> None:
        """A restarted node has the final phases that were durable."""
        if process.role is not Channel.COMPUTE or process.actor is None or not self.is_honest(process):
            return
        for (node, round_id), end in self.log.ends.items():
            if node == process.id and (ROUNDS, round_id) in process.disk.records:
                stored = decoded(ROUNDS, process.disk.records[ROUNDS, round_id], StoredComputeRound)
                self.expect(stored.phase == end, f"{process.name} has lost the end of round {round_id.hex()[:8]}")

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """A restarted client resends what it has paid for and has no receipt of."""
        if process.role is not Channel.CLIENT or not isinstance(event, Started) or not self.is_honest(process):
            return
        sent = {effect.payload for effect in effects if isinstance(effect, Send)}
        for (table, round_id), value in process.disk.records.items():
            accepted = self.log.accepted.get((process.id, round_id))
            if table == client_round.ROUNDS and accepted is not None and process.now_ms < accepted.body.commit_by_ms:
                stored = decoded(table, value, client_round.StoredClientRound)
                lost = stored.phase == client_round.SENT and stored.outbound and stored.outbound.payload not in sent
                self.expect(not lost, f"{about(process, round_id)}: it restarts, and does not resend its contribution")

    def on_send(self, process: Process, send: Send) -> None:
        """What a node or the trainer sends was durable before."""
        if process.role is Channel.CLIENT or not self.is_honest(process):
            return
        frame, key, who = decode_frame(send.payload), (process.id, send.round_id), about(process, send.round_id)
        if isinstance(frame, Receipt) and send.to.channel is Channel.CLIENT:
            check = self._check_trainers_receipt if process.role is Channel.TRAINER else self._check_receipt
            check(process, send.to.id, frame)
        elif process.role is Channel.TRAINER:
            return
        elif isinstance(frame, Sealed) and send.to.channel is Channel.COMPUTE:
            self.expect(key in self.log.lists, f"{who}: a list leaves that is not durable")
        elif isinstance(frame, Signed):
            body = decode_body(frame.body)
            if isinstance(body, Answer) and body.compute == process.id:
                self.expect(self.log.answers.get(key) == body, f"{who}: an answer leaves that is not durable")
            elif isinstance(body, Answer):
                kept = process.disk.records.get((ANSWERS, send.round_id + body.compute))
                self.expect(kept == send.payload, f"{who}: it passes on an answer that it has not stored")
            elif isinstance(body, Abort) and body.compute == process.id:
                ended = self.log.ends.get(key)
                self.expect(ended == ABORTED, f"{who}: it sends an abort and has stored {ended or 'no end'}")

    def _check_trainers_receipt(self, trainer: Process, client: bytes, receipt: Receipt) -> None:
        """A receipt is for a stored release, "late" for one that is not stored; the client knows both tags."""
        who, outbound = f"round {receipt.round_id.hex()[:8]}", self._outbound.get((client, receipt.contribution))
        if outbound is None:
            self.expect(client in self.log.dishonest, f"{who}: a receipt for a release that nobody has made")
            return
        stored = trainer.disk.records.get((RELEASES, receipt.round_id + client))
        kept = stored is not None and release_in(decoded(RELEASES, stored, Signed)).contribution == receipt.contribution
        if receipt.tag == outbound.receipt:
            self.expect(kept, f"{who}: a receipt for a release that is not durable")
        else:
            late = receipt.tag == outbound.late and not kept
            self.expect(late, f"{who}: it answers late for a release that it keeps, or with an unknown tag")

    def _check_receipt(self, node: Process, client: bytes, receipt: Receipt) -> None:
        """A receipt is for a contribution on the disk, and in the list once there is one; "late" for an unlisted one.

        Its tag tells them apart: both tags are computed again, under the keys of the client and of the node.
        """
        key, who = (node.id, receipt.round_id), about(node, receipt.round_id)
        accepted, pair = self.log.accepted[key], (client, receipt.contribution)
        own = accepted.epochs[accepted.computes.index(node.id)]
        meaning = self.log.pairs.receipts(own, client, accepted.hash, receipt.contribution).get(receipt.tag)
        if meaning is None:
            self.expect(client in self.log.dishonest, f"{who}: a receipt with an unknown tag")
            return
        first = self._receipts.setdefault((*key, *pair), meaning)
        self.expect(first == meaning, f"{who}: both a receipt and a notice of lateness for one contribution")
        frozen, listed = key in self.log.lists, pair in self._listed(key)
        if meaning == "late":
            self.expect(frozen and not listed, f"{who}: it answers late for a listed contribution, or without a list")
            return
        durable = (CONTRIBUTIONS, receipt.round_id + client) in node.disk.records or key in self.log.ends
        self.expect(pair in self.log.kept[key] and durable, f"{who}: a receipt for a contribution that is not durable")
        self.expect(not frozen or listed, f"{who}: a receipt for a contribution that its list does not hold")

    def _listed(self, key: Key) -> set[tuple[bytes, bytes]]:
        """Return the clients and contributions in a node's own list; none before it has one."""
        return {(entry.client, entry.contribution) for entry in entries_in(self.log.lists.get(key, b""), key[0])}

    def on_fact(self, process: Process, fact: object) -> None:
        """Note the clients with a receipt. Each result equals those that the trainer reported before."""
        if not self.is_honest(process):
            return
        match fact:
            case Acknowledged():
                self._acknowledged[fact.round_id].add(process.id)
            case ChargeReturned():
                charge = decoded(LEDGER, process.disk.records[LEDGER, fact.round_id], Charge)
                self.expect(charge.returned, f"{process.name} reports a returned charge that is not durably returned")
            case RoundCompleted():
                self._check_result(fact.round_id, fact.aggregate.value.tobytes())
            case RoundFailed():
                self._check_result(fact.round_id, None)

    def _check_result(self, round_id: bytes, result: bytes | None) -> None:
        if self._results.get(round_id) is None and self.log.is_summed(round_id):  # sums may come after a failure
            self._results[round_id] = result
        first, name = self._results.setdefault(round_id, result), round_id.hex()[:8]
        self.expect(first == result, f"round {name} ends in two ways at the trainer")
        if round_id in self.log.announcements and not self.log.is_summed(round_id):
            kept = self.log.stored_releases[round_id]
            count = sum(bool(release_in(frame).rows) for frame in kept.values())
            liars = len(self.log.dishonest & kept.keys())  # a trainer refuses a round if most reports are false
            self.expect(
                result is not None or count <= 2 * liars, f"round {name} fails although it has {count} releases"
            )
            self._in_result.setdefault(round_id, set(kept))
        elif result is not None:
            asked = self.log.requests[round_id].computes
            nodes = [node for node in self.world.computes if node.id in asked and self.is_honest(node)]
            ends = {self.log.ends.get((node.id, round_id)) for node in nodes}
            self.expect(ends <= {RELEASED}, f"round {name} has a result, but its nodes have ended in {ends}")

    def finish(self) -> None:
        """Each client with a receipt is in its holder's list, or in the result of a round without Compute nodes."""
        for round_id, clients in self._acknowledged.items():
            if not self.log.is_summed(round_id):
                missing = clients - self._in_result.get(round_id, clients)
                short = round_id.hex()[:8]
                self.expect(not missing, f"round {short}: {len(missing)} clients with a receipt are in no result")
        for (node, round_id), entries in self.log.lists.items():
            if node not in self.log.dishonest:
                accepted, who = self.log.accepted[node, round_id], f"compute {about(node, round_id)}"
                own = {client for client in self._acknowledged[round_id] if accepted.holder(client) == node}
                unlisted = own - {entry.client for entry in entries_in(entries, node)}
                known = (self.log.accepted.get((client, round_id)) for client in unlisted)
                forgotten = [stored for stored in known if stored is not None and stored.hash == accepted.hash]
                self.expect(not forgotten, f"{who}: {len(forgotten)} clients with a receipt are not in its list")
