"""Invariant 8: killing any actor at any step loses nothing that was promised and doubles nothing.

A receipt promises that the contribution is kept until the round's end, and stands in its holder's list. Word that it
was late promises that it stands in none. A node's list, its answer and its end are said once: what is durable never
changes, and nothing else leaves. (That charges stay is invariant 4.) Without Compute nodes the trainer's receipt for a
release or a report promises a place in the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute.round import ABORTED, CONTRIBUTIONS, ENDS, RELEASED, ROUNDS, StoredRound
from dca_proto.protocol.contribution import Kept, Outbound
from dca_proto.protocol.effects import Channel, Effect, Forget, Send, Write
from dca_proto.protocol.events import Event, Started
from dca_proto.protocol.facts import Acknowledged, ChargeReturned, RoundCompleted, RoundFailed
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.wire.codec import decode_body, decode_frame
from dca_proto.protocol.wire.messages import Abort, Answer, Receipt, Sealed, Signed
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, about
from emulator.trials.checkers.witness import Of, Release, Witness, entries_of, release_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class Kills(Checker):
    """Receipts, lists, answers, ends and results, against what is durable."""

    number, name = 8, "kills lose and double nothing"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._acknowledged: defaultdict[bytes, set[bytes]] = defaultdict(set)  # round -> clients with a receipt
        self._phases: dict[Of, str] = {}
        self._words: dict[Of, tuple[bytes, Signed | None, Signed | None]] = {}  # entries, header and answer
        self._in_result: dict[bytes, set[bytes]] = {}  # round -> clients, without Compute nodes
        self._said: dict[tuple[bytes, ...], str] = {}  # of each node, round, client and contribution
        self._made: dict[tuple[bytes, bytes], Outbound] = {}  # by client and contribution id
        self._results: dict[bytes, bytes | None] = {}  # round -> the result's bytes; None where it failed

    # --- what is durable ---------------------------------------------------------------------------------------------

    def on_paid(self, client: Process, round_id: bytes, made: Outbound) -> None:
        """The announcement is stored with the charge."""
        self._made[client.id, made.contribution] = made
        known = (client_round.ANNOUNCEMENTS, round_id) in client.disk.records
        self.expect(known, f"{about(client, round_id)}: paid for, and its announcement is lost")

    def on_release(self, release: Release) -> None:
        """What a node holds of S was durable."""
        kept, who = (
            self.witness.kept[release.node, release.round_id],
            f"compute {about(release.node, release.round_id)}",
        )
        held = [one for one in self.witness.agreed(release) or () if one.holder == release.node]
        lost = [one for one in held if (one.client, one.contribution) not in kept]
        self.expect(not lost, f"{who}: {len(lost)} of its sum were never durable")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Contributions go only behind an end."""
        if process.role is not Channel.COMPUTE or not self.is_honest(process):
            return
        for write in writes:
            if isinstance(write, Forget) and write.table == CONTRIBUTIONS:
                round_id = write.key[:ID_BYTES]
                ended = (process.id, round_id) in self.witness.ends
                self.expect(ended, f"{about(process, round_id)}: it forgets a contribution before the end")

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: Kept) -> None:
        """Contributions come before the list."""
        of = node.id, round_id
        if self.is_honest(node):
            in_time = of not in self.witness.lists or (client, kept.contribution) in self._listed(of)
            self.expect(in_time, f"{about(node, round_id)}: it keeps a contribution after its list was frozen")

    def on_round(self, node: Process, stored: StoredRound) -> None:
        """Words do not change."""
        of, who = (node.id, stored.round_id), about(node, stored.round_id)
        first = self._phases.get(of, stored.phase)
        self._phases[of] = stored.phase
        self.expect(first not in ENDS or stored.phase == first, f"{who} was {first} and is {stored.phase}")
        if stored.phase == RELEASED and not stored.word:
            return  # an hour after the end
        said = stored.entries, stored.header, stored.answer
        same = [old == new or old in (b"", None) for old, new in zip(self._words.get(of, said), said, strict=True)]
        self.expect(all(same), f"{who}: its list or its answer is worked out again")
        self._words[of] = said

    def on_restart(self, process: Process) -> None:
        """A start finds the ends that were durable."""
        if process.role is not Channel.COMPUTE or process.actor is None or not self.is_honest(process):
            return
        for (node, round_id), end in self.witness.ends.items():
            if node == process.id and (ROUNDS, round_id) in process.disk.records:
                stored = decoded(ROUNDS, process.disk.records[ROUNDS, round_id], StoredRound)
                self.expect(stored.phase == end, f"{process.name} has lost the end of round {round_id.hex()[:8]}")

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """A client that starts goes on with what it has paid for and has no receipt of."""
        if process.role is not Channel.CLIENT or not isinstance(event, Started) or not self.is_honest(process):
            return
        sent = {one.payload for one in effects if isinstance(one, Send)}
        for (table, round_id), value in process.disk.records.items():
            asked = self.witness.asked.get((process.id, round_id))
            if table == client_round.ROUNDS and asked is not None and process.now_ms < asked.body.commit_by_ms:
                stored = decoded(table, value, client_round.StoredRound)
                goes_on = stored.phase != client_round.SENT or getattr(stored.outbound, "payload", None) in {
                    *sent,
                    None,
                }
                self.expect(goes_on, f"{about(process, round_id)}: it starts anew, and gives the round up")

    # --- what is said ------------------------------------------------------------------------------------------------

    def on_send(self, process: Process, send: Send) -> None:
        """What a node or the trainer says is durable."""
        if process.role is Channel.CLIENT or not self.is_honest(process):
            return
        frame, of, who = decode_frame(send.payload), (process.id, send.round_id), about(process, send.round_id)
        if isinstance(frame, Receipt) and send.to.channel is Channel.CLIENT:
            check = self._check_gathered if process.role is Channel.TRAINER else self._check_receipt
            check(process, send.to.id, frame)
        elif process.role is Channel.TRAINER:
            return
        elif isinstance(frame, Sealed) and send.to.channel is Channel.COMPUTE:
            self.expect(of in self.witness.lists, f"{who}: a list leaves that is not durable")
        elif isinstance(frame, Signed):
            body = decode_body(frame.body)
            if isinstance(body, Answer):
                self.expect(self.witness.answers.get(of) == body, f"{who}: an answer leaves that is not durable")
            elif isinstance(body, Abort) and body.compute == process.id:
                ended = self.witness.ends.get(of)
                self.expect(ended == ABORTED, f"{who}: it says abort and has stored {ended or 'no end'}")

    def _check_gathered(self, trainer: Process, client: bytes, receipt: Receipt) -> None:
        """A receipt is of what is on the disk, and word that it was late of what is not; the client knows both tags."""
        who, made = f"round {receipt.round_id.hex()[:8]}", self._made.get((client, receipt.contribution))
        if made is None:
            self.expect(client in self.witness.dishonest, f"{who}: an answer to a release that nobody has made")
            return
        stored = trainer.disk.records.get((RELEASES, receipt.round_id + client))
        kept = stored is not None and release_in(decoded(RELEASES, stored, Signed)).contribution == receipt.contribution
        if receipt.tag == made.receipt:
            self.expect(kept, f"{who}: a receipt for a release that is not durable")
        else:
            self.expect(receipt.tag == made.late and not kept, f"{who}: it says late of a release that it keeps")

    def _check_receipt(self, node: Process, client: bytes, receipt: Receipt) -> None:
        """It is about what is on the disk, and in the list once there is one; or says late of what is not in the list.

        Which of the two it is, its tag says: both are worked out again, under the keys of the client and of the node.
        """
        of, who = (node.id, receipt.round_id), about(node, receipt.round_id)
        asked, pair = self.witness.asked[of], (client, receipt.contribution)
        own = asked.epochs[asked.computes.index(node.id)]
        word = self.witness.pairs.words(own, client, asked.hash, receipt.contribution).get(receipt.tag)
        if word is None:
            self.expect(client in self.witness.dishonest, f"{who}: a receipt whose tag means nothing")
            return
        said = self._said.setdefault((*of, *pair), word)
        self.expect(said == word, f"{who}: both a receipt and word that it was late for one contribution")
        frozen, listed = of in self.witness.lists, pair in self._listed(of)
        if word == "late":
            self.expect(frozen and not listed, f"{who}: it says late of what its list holds, or before there is one")
            return
        there = (CONTRIBUTIONS, receipt.round_id + client) in node.disk.records or of in self.witness.ends
        self.expect(pair in self.witness.kept[of] and there, f"{who}: a receipt for a contribution that is not durable")
        self.expect(not frozen or listed, f"{who}: a receipt for what its list does not hold")

    def _listed(self, of: Of) -> set[tuple[bytes, bytes]]:
        """Clients and contributions in a node's own list; none before there is one."""
        return {(one.client, one.contribution) for one in entries_of(self.witness.lists.get(of, b""), of[0])}

    # --- clients and trainer -----------------------------------------------------------------------------------------

    def on_fact(self, process: Process, fact: object) -> None:
        """Note who has a receipt, and compare each result with those reported before."""
        if not self.is_honest(process):
            return
        match fact:
            case Acknowledged():
                self._acknowledged[fact.round_id].add(process.id)
            case ChargeReturned():
                charge = decoded(LEDGER, process.disk.records[LEDGER, fact.round_id], Charge)
                self.expect(charge.returned, f"{process.name} tells of a charge that has not durably come back")
            case RoundCompleted():
                self._tell(fact.round_id, fact.aggregate.value.tobytes())
            case RoundFailed():
                self._tell(fact.round_id, None)
            case _:
                pass

    def _tell(self, round_id: bytes, result: bytes | None) -> None:
        first, name = self._results.setdefault(round_id, result), round_id.hex()[:8]
        self.expect(first == result, f"round {name} ends in two ways at the trainer")
        if round_id in self.witness.announcements and not self.witness.is_summed(round_id):
            kept = self.witness.gathered[round_id]
            told = sum(bool(release_in(frame).rows) for frame in kept.values())
            self.expect(result is not None or not told, f"round {name} fails with {told} releases")
            self._in_result.setdefault(round_id, set(kept))
        elif result is not None:
            ends = {self.witness.ends.get((node.id, round_id)) for node in self.world.computes if self.is_honest(node)}
            self.expect(ends <= {RELEASED}, f"round {name} has a result, and its nodes {ends}")

    def finish(self) -> None:
        """Whoever had a receipt is in the list of its holder, or in the result of a round without Compute nodes."""
        for round_id, clients in self._acknowledged.items():
            if not self.witness.is_summed(round_id):
                missing = clients - self._in_result.get(round_id, clients)
                self.expect(not missing, f"round {round_id.hex()[:8]}: {len(missing)} with a receipt are in no result")
        for (node, round_id), entries in self.witness.lists.items():
            if node not in self.witness.dishonest:
                asked, listed = self.witness.asked[node, round_id], {one.client for one in entries_of(entries, node)}
                told = {one for one in self._acknowledged[round_id] if self.witness.knows(one, asked)}
                missing = {one for one in told if asked.holder(one) == node} - listed
                who = f"compute {about(node, round_id)}"
                self.expect(not missing, f"{who}: {len(missing)} with a receipt are not in its list")
