"""Invariant 8: killing any actor at any step loses nothing that was promised and doubles nothing.

A receipt promises that the share is kept until the round's end. All receipts promise, where all nodes are honest, a
place in the sum. A durable end promises that no other end follows. (That charges stay is invariant 4.) In a local round
the trainer's receipt for a release or a report promises both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dca_proto.core.codec import decode_body, decode_frame
from dca_proto.core.commit import positions_of
from dca_proto.core.compute import ROUNDS, SHARES
from dca_proto.core.compute_round import ABORTED, ENDS, RELEASED, StoredRound
from dca_proto.core.effects import Channel, Forget, Persist, Send, Write
from dca_proto.core.facts import AllReceived, RoundCompleted, RoundFailed
from dca_proto.core.messages import Abort, Receipt, Signed
from dca_proto.core.records import decoded
from dca_proto.core.sealing import ID_BYTES
from dca_proto.core.trainer_round import RELEASES
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Of, Release, Witness, release_in

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class Kills(Checker):
    """Receipts, ends and results, against what is durable."""

    number, name = 8, "kills lose and double nothing"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._received: defaultdict[bytes, set[bytes]] = defaultdict(set)  # round -> clients with all receipts
        self._phases: dict[Of, str] = {}
        self._present: dict[bytes, set[bytes]] = {}  # round -> clients in S
        self._results: dict[bytes, bytes | None] = {}  # round -> the result's bytes; None where it failed
        witness.on_release.append(self._released)

    def _released(self, release: Release) -> None:
        roster = self.witness.rosters.get((release.node, release.round_id))
        if roster is not None and self.all_nodes_are_honest:
            present = positions_of(release.partial.contributors, len(roster.clients))
            self._present.setdefault(release.round_id, {roster.clients[position] for position in present})

    # --- Compute nodes -----------------------------------------------------------------------------------------------

    def on_send(self, process: Process, send: Send) -> None:
        """A receipt leaves behind a durable share or release, an abort behind a durable abort."""
        if process.role is Channel.TRAINER and send.to.channel is Channel.CLIENT:
            self._check_kept(process, send)
        if process.role is not Channel.COMPUTE or not self.is_honest(process):
            return
        frame = decode_frame(send.payload)
        if isinstance(frame, Receipt):
            self._check_receipt(process, send.to.id, frame)
        elif isinstance(frame, Signed) and isinstance(decode_body(frame.body), Abort):
            ended = self.witness.ends.get((process.id, send.round_id))
            self.expect(ended == ABORTED, f"{process.name} says abort and has stored {ended or 'no end'}")

    def _check_kept(self, trainer: Process, send: Send) -> None:
        frame = decode_frame(send.payload)
        if isinstance(frame, Receipt):
            stored = trainer.disk.records.get((RELEASES, send.round_id + send.to.id))
            kept = None if stored is None else release_in(decoded(RELEASES, stored, Signed)).contribution
            self.expect(
                kept == frame.contribution,
                f"round {send.round_id.hex()[:8]}: a receipt for a release that is not durable",
            )

    def _check_receipt(self, process: Process, client: bytes, receipt: Receipt) -> None:
        of = process.id, receipt.round_id
        roster = self.witness.rosters.get(of)
        who = f"{process.name}, round {receipt.round_id.hex()[:8]}"
        if roster is None or client not in roster.clients:
            self.fail(f"{who}: a receipt for a client that is on no stored roster")
            return
        position = roster.clients.index(client)
        stored = process.disk.records.get((SHARES, receipt.round_id + position.to_bytes(4, "big")), b"")
        kept = stored[:ID_BYTES] == receipt.contribution
        self.expect(kept or of in self.witness.ends, f"{who}: a receipt for a share that is not durable")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Shares go only behind an end, and an end is not followed by another."""
        if process.role is not Channel.COMPUTE or not self.is_honest(process):
            return
        for write in writes:
            if isinstance(write, Forget) and write.table == SHARES:
                ended = (process.id, write.key[:ID_BYTES]) in self.witness.ends
                self.expect(ended, f"{process.name} forgets a share of a round that has not ended")
            if isinstance(write, Persist) and write.table == ROUNDS:
                self._check_end(process, decoded(ROUNDS, write.value, StoredRound))

    def _check_end(self, process: Process, stored: StoredRound) -> None:
        first = self._phases.get((process.id, stored.round_id), stored.phase)
        self._phases[process.id, stored.round_id] = stored.phase
        holds = first not in ENDS or stored.phase == first
        self.expect(holds, f"{process.name}: round {stored.round_id.hex()[:8]} was {first} and is {stored.phase}")

    def on_restart(self, process: Process) -> None:
        """A start finds the ends that were durable."""
        if process.role is not Channel.COMPUTE or process.actor is None or not self.is_honest(process):
            return
        for (node, round_id), end in self.witness.ends.items():
            if node == process.id and (ROUNDS, round_id) in process.disk.records:
                stored = decoded(ROUNDS, process.disk.records[ROUNDS, round_id], StoredRound)
                self.expect(stored.phase == end, f"{process.name} has lost the end of round {round_id.hex()[:8]}")

    # --- clients and trainer -----------------------------------------------------------------------------------------

    def on_fact(self, process: Process, fact: object) -> None:
        """Note who has all receipts, and hold each result against those told before."""
        if not self.is_honest(process):
            return
        match fact:
            case AllReceived():
                self._received[fact.round_id].add(process.id)
            case RoundCompleted():
                self._tell(fact.round_id, fact.aggregate.value.tobytes())
            case RoundFailed():
                self._tell(fact.round_id, None)
            case _:
                pass

    def _tell(self, round_id: bytes, result: bytes | None) -> None:
        first = self._results.setdefault(round_id, result)
        self.expect(first == result, f"round {round_id.hex()[:8]} ends in two ways at the trainer")
        if self.witness.is_local(round_id):
            kept = self.witness.gathered[round_id]
            self.expect(result is not None or not kept, f"round {round_id.hex()[:8]} fails with {len(kept)} releases")
            self._present.setdefault(round_id, set(kept))
        elif result is not None:
            ends = {self.witness.ends.get((node.id, round_id)) for node in self.world.computes if self.is_honest(node)}
            self.expect(ends <= {RELEASED}, f"round {round_id.hex()[:8]} has a result, and its nodes {ends}")

    def finish(self) -> None:
        """Whoever had all receipts is in the sum."""
        for round_id, present in self._present.items():
            missing = self._received[round_id] - present
            self.expect(not missing, f"round {round_id.hex()[:8]}: {len(missing)} with all receipts are not in S")
