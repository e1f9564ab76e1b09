"""Invariant 7: a round never hangs. It ends with a result, or with an abort that names its reason; and not too early.

After its end a Compute node holds no more work of it; after its grace no sum, after its retention nothing but charges.
Nor is there a secret of an epoch after its grace (DESIGN §2.2, §4.7, §4.8, §8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.protocol.client.round import DECLINES as DECLINED
from dca_proto.protocol.compute import round as node_round
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Declined, NodeAborted, RoundCompleted, RoundFailed
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire.messages import Abort
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, about
from emulator.trials.checkers.witness import Of, Witness
from emulator.wire import Asked, body_of

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld

_SLACK_MS, _GRACE_MS = 1_000, 4_000
_WORK = (node_round.CONTRIBUTIONS, node_round.LISTS)


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
        self._aborted: set[bytes] = set()  # rounds of which the trainer got an abort

    def on_crash(self, process: Process, error: Exception) -> None:
        """Note who broke invariant 6."""
        self._crashed.add(process.id)

    def on_restart(self, process: Process) -> None:
        """Nobody ends anything while it is down."""
        self._up_ms[process.id] = process.now_ms

    def on_trainer_round(self, trainer: Process, round_id: bytes, stored: trainer_round.StoredRound) -> None:
        """A failure that is durable has ended the round, also where a kill keeps it from being reported."""
        if stored.phase in (trainer_round.FAILED, trainer_round.RETURNED):
            known, announced = round_id in self._ended_ms, self.witness.announcements[round_id]
            self._end(trainer, round_id, stored.reason)
            early_ms = announced.commit_by_ms - trainer.now_ms - _SLACK_MS - self.world.tardiness_ms(trainer)
            if not known and self.all_nodes_are_honest and self.is_honest(trainer) and announced.terms.is_summed:
                gave_up = early_ms > 0 and round_id not in self._aborted
                self.expect(not gave_up, f"round {round_id.hex()[:8]} fails before its end, and nobody has aborted it")

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        """Note aborts, of whomever they are."""
        if process is self.world.trainer and isinstance(body := body_of(payload), Abort):
            self._aborted.add(body.round_id)

    def on_begun(self, node: Process, asked: Asked) -> None:
        self._heard_ms[node.id, asked.body.round_id] = node.now_ms

    def on_round(self, node: Process, stored: node_round.StoredRound) -> None:
        """A node that runs collects until `close_by`, and no longer."""
        of = node.id, stored.round_id
        if stored.phase == node_round.COLLECTING or of not in self._heard_ms or of in self._collected:
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
                self._end(process, fact.round_id, fact.reason)
            case NodeAborted():
                self.expect(bool(fact.reason and fact.detail), f"{process.name} aborts without a reason")
                asked = self.witness.asked.get((process.id, fact.round_id))
                own = fact.reason == "peer-silent" and fact.detail.startswith("no ")  # and not a peer's word
                if own and asked is not None:
                    over_ms = asked.body.commit_by_ms
                    waited = process.now_ms + _SLACK_MS + self.world.tardiness_ms(process) >= over_ms
                    self.expect(waited, f"{about(process, fact.round_id)}: it gives up before commit_by")
            case Declined():
                self.expect(bool(fact.reason and fact.expected), f"{process.name} declines without a reason")
            case _:
                pass

    def _end(self, trainer: Process, round_id: bytes, reason: str) -> None:
        self._ended_ms.setdefault(round_id, trainer.now_ms)
        self.expect(bool(reason.strip()), f"round {round_id.hex()[:8]} fails without a reason")

    def finish(self) -> None:
        """All is healed and the time is over."""
        for request in self.world.requests:
            self._check_trainer(request.round_id)
        for node in self.world.computes:
            if self.is_honest(node):
                self._check_node(node)
        for process in self.honest():
            if process.is_up:
                self._check_forgotten(process)

    def _check_trainer(self, round_id: bytes) -> None:
        name, trainer = round_id.hex()[:8], self.world.trainer
        ended_ms, announced = self._ended_ms.get(round_id), self.witness.announcements.get(round_id)
        if ended_ms is None or announced is None:  # one that ended before it was announced has said why
            pending = "; ".join(self.world.simulator.pending()[:4] or ["nothing is left to happen"])
            self.expect(ended_ms is not None, f"round {name} has not ended at the trainer ({pending})")
            return
        settle_ms = self.world.actors.timing.settle_ms + _SLACK_MS + self.world.tardiness_ms(trainer)
        window_ms = self.witness.requests[round_id].commit_window_ms if self.witness.is_summed(round_id) else 0
        due_ms = max(announced.commit_by_ms + window_ms, self._up_ms.get(trainer.id, 0)) + settle_ms
        self.expect(ended_ms <= due_ms, f"round {name} ended {ended_ms - due_ms} ms after its announced end")

    def _check_node(self, node: Process) -> None:
        """After healing everybody runs (whoever crashes is invariant 6's), and has ended what was to end."""
        self.expect(node.is_up or node.id in self._crashed, f"{node.name} is down after all was healed")
        for (compute, round_id), asked in self.witness.asked.items() if node.is_up else ():
            over_ms = max(asked.body.commit_by_ms, self._up_ms.get(node.id, 0)) + _SLACK_MS
            if compute == node.id and node.now_ms > over_ms + self.world.tardiness_ms(node):
                phase = self.witness.ends.get((compute, round_id), "open")
                self.expect(phase in node_round.ENDS, f"{node.name} has not ended round {round_id.hex()[:8]}")

    def _check_forgotten(self, process: Process) -> None:
        """What is over has left the disk, once its time to be asked for is over."""
        timing, records = self.world.actors.timing, process.disk.records
        slack_ms = _SLACK_MS + self.world.tardiness_ms(process)
        kept_ms = {
            Channel.CLIENT: timing.abort_grace_ms,
            Channel.COMPUTE: max(timing.retention_ms, 2 * timing.epoch_ms + timing.epoch_grace_ms),
            Channel.TRAINER: timing.retention_ms,
        }[process.role]
        for round_id, announced in self.witness.announcements.items():
            left = {table for table, key in records if key[:ID_BYTES] == round_id} - {LEDGER, DECLINED}
            who, ago_ms = about(process, round_id), process.now_ms - slack_ms - announced.commit_by_ms
            over = process.now_ms - slack_ms > max(announced.commit_by_ms + kept_ms, self._up_ms.get(process.id, 0))
            self.expect(not (over and left), f"{who}: it keeps {', '.join(sorted(left))}, though its time is over")
            if process.role is Channel.COMPUTE and (node_round.ROUNDS, round_id) in records:
                stored = decoded(node_round.ROUNDS, records[node_round.ROUNDS, round_id], node_round.StoredRound)
                secret = (
                    stored.phase == node_round.RELEASED and stored.word and ago_ms > timing.abort_grace_ms + _GRACE_MS
                )
                self.expect(not secret, f"{who}: it keeps a sum that nobody may ask for any more")
                ended = stored.phase in node_round.ENDS
                self.expect(not (ended and left.intersection(_WORK)), f"{who}: it has ended, and keeps its work")
        late_ms = slack_ms + (timing.hello_spread_ms if process.role is Channel.CLIENT else 0)
        epochs = [int.from_bytes(key, "big") for table, key in records if table == EPOCHS]
        over_epochs = [
            one for one in epochs if (one + 1) * timing.epoch_ms + timing.epoch_grace_ms + late_ms < process.now_ms
        ]
        self.expect(not over_epochs, f"{process.name} keeps the secret of epochs {over_epochs}, which are over")
