"""Invariant 7: a round never hangs. It ends with a result, or with an abort that names its reason.

After its retention nothing is left of it but charges, and of an epoch no secret after its grace (DESIGN §2.2, §4.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.client.round import DECLINES as DECLINED
from dca_proto.protocol.compute.round import ANNOUNCEMENTS, COLLECTING, ENDS
from dca_proto.protocol.compute.round import ROUNDS as NODE_ROUNDS
from dca_proto.protocol.compute.round import StoredRound as NodeRound
from dca_proto.protocol.effects import Channel, Persist, Write
from dca_proto.protocol.facts import Declined, NodeAborted, RoundCompleted, RoundFailed
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import FAILED, RETURNED, ROUNDS, StoredRound
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Of, Witness

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld

_SLACK_MS = 1_000


class Endings(Checker):
    """When and how each round that was asked for ends: at the trainer, and at each honest node that has stored it."""

    number, name = 7, "every round ends"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._ended_ms: dict[bytes, int] = {}  # by the trainer's own clock
        self._up_ms: dict[bytes, int] = {}  # since when a process runs, by its own clock
        self._crashed: set[bytes] = set()
        self._heard_ms: dict[Of, int] = {}  # when a node stored an announcement, by its own clock
        self._collected: set[Of] = set()

    def on_crash(self, process: Process, error: Exception) -> None:
        """Note who broke invariant 6."""
        self._crashed.add(process.id)

    def on_restart(self, process: Process) -> None:
        """Nobody ends anything while it is down."""
        self._up_ms[process.id] = process.now_ms

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """A failure that is durable has ended the round, also where a kill keeps it from being told."""
        for write in writes:
            if not isinstance(write, Persist):
                continue
            of = process.id, write.key
            if write.table == ANNOUNCEMENTS and process.role is Channel.COMPUTE:
                self._heard_ms[of] = process.now_ms
            elif write.table == NODE_ROUNDS and of in self._heard_ms and of not in self._collected:
                self._check_freeze(process, of, decoded(NODE_ROUNDS, write.value, NodeRound))
            elif write.table == ROUNDS:
                stored = decoded(ROUNDS, write.value, StoredRound)
                if stored.phase in (FAILED, RETURNED):
                    self._ended_ms.setdefault(write.key, process.now_ms)
                    self.expect(bool(stored.reason.strip()), f"round {write.key.hex()[:8]} fails without a reason")

    def _check_freeze(self, node: Process, of: Of, stored: NodeRound) -> None:
        """A node that runs collects until `close_by`, and no longer."""
        if stored.phase == COLLECTING or not self.is_honest(node):
            return
        self._collected.add(of)
        due_ms = max(self.witness.asked[of].body.close_by_ms, self._heard_ms[of], self._up_ms.get(node.id, 0))
        late_ms = node.now_ms - due_ms - _SLACK_MS - self.world.tardiness_ms(node)
        self.expect(late_ms <= 0, f"{node.name} has collected for round {of[1].hex()[:8]} {late_ms} ms too long")

    def on_fact(self, process: Process, fact: object) -> None:
        """Note ends; aborts, failures and refusals say why."""
        if not self.is_honest(process) and process is not self.world.trainer:
            return
        match fact:
            case RoundCompleted():
                self._ended_ms.setdefault(fact.round_id, process.now_ms)
            case RoundFailed():
                self._ended_ms.setdefault(fact.round_id, process.now_ms)
                self.expect(bool(fact.reason.strip()), f"round {fact.round_id.hex()[:8]} fails without a reason")
            case NodeAborted():
                self.expect(bool(fact.reason and fact.detail), f"{process.name} aborts without a reason")
            case Declined():
                self.expect(bool(fact.reason and fact.expected), f"{process.name} declines without a reason")
            case _:
                pass

    def finish(self) -> None:
        """All is healed and the time is over."""
        for request in self.world.requests:
            self._check_trainer(request.round_id)
        for node in self.world.computes:
            if self.is_honest(node):
                self._check_node(node)
        for process in self.world.simulator.processes.values():
            if process.is_up and self.is_honest(process):
                self._check_forgotten(process)

    def _check_trainer(self, round_id: bytes) -> None:
        name, trainer = round_id.hex()[:8], self.world.trainer
        ended_ms = self._ended_ms.get(round_id)
        if ended_ms is None:
            self.expect(False, f"round {name} has not ended at the trainer ({'; '.join(self._pending())})")
            return
        announced = self.witness.announcements.get(round_id)
        if announced is None:
            self.checked += 1
            return  # it ended before it was announced, and said why
        settle_ms = self.world.cast.timing.settle_ms + _SLACK_MS + self.world.tardiness_ms(trainer)
        window_ms = self.witness.requests[round_id].commit_window_ms if self.witness.is_summed(round_id) else 0
        due_ms = max(announced.commit_by_ms + window_ms, self._up_ms.get(trainer.id, 0)) + settle_ms
        self.expect(ended_ms <= due_ms, f"round {name} ended {ended_ms - due_ms} ms after its announced end")

    def _check_node(self, node: Process) -> None:
        """A node that runs has ended each of its rounds once commit_by is past."""
        if not self.expect_up(node):
            return
        for (compute, round_id), asked in self.witness.asked.items():
            over_ms = max(asked.body.commit_by_ms, self._up_ms.get(node.id, 0)) + _SLACK_MS
            if compute == node.id and node.now_ms > over_ms + self.world.tardiness_ms(node):
                phase = self.witness.ends.get((compute, round_id), "open")
                self.expect(phase in ENDS, f"{node.name} has not ended round {round_id.hex()[:8]}")

    def _check_forgotten(self, process: Process) -> None:
        """What is over has left the disk, once its time to be asked for is over."""
        timing, name = self.world.cast.timing, process.name
        slack_ms = _SLACK_MS + self.world.tardiness_ms(process)
        kept_ms = {
            Channel.CLIENT: timing.abort_grace_ms,
            Channel.COMPUTE: max(timing.retention_ms, 2 * timing.epoch_ms + timing.epoch_grace_ms),
            Channel.TRAINER: timing.retention_ms,
        }[process.role]
        for round_id, announced in self.witness.announcements.items():
            over_ms = max(announced.commit_by_ms + kept_ms, self._up_ms.get(process.id, 0)) + slack_ms
            if process.now_ms > over_ms:
                left = {table for table, key in process.disk.records if key[:ID_BYTES] == round_id} - {LEDGER, DECLINED}
                self.expect(not left, f"{name} keeps {', '.join(sorted(left))} of round {round_id.hex()[:8]}")
        late_ms = slack_ms + (timing.hello_spread_ms if process.role is Channel.CLIENT else 0)
        epochs = [int.from_bytes(key, "big") for table, key in process.disk.records if table == EPOCHS]
        over = [one for one in epochs if (one + 1) * timing.epoch_ms + timing.epoch_grace_ms + late_ms < process.now_ms]
        self.expect(not over, f"{name} keeps the secret of epochs {over}, which are over")

    def expect_up(self, process: Process) -> bool:
        """After healing everybody runs; whoever crashes is invariant 6's."""
        self.expect(process.is_up or process.id in self._crashed, f"{process.name} is down after all was healed")
        return process.is_up

    def _pending(self) -> list[str]:
        return self.world.simulator.pending()[:4] or ["nothing is left to happen"]
