"""Invariant 18: epochs and keys go forwards, by each member's own clock, however the clocks are set.

A member publishes keys of the epoch at its own clock. It remembers the highest epoch of each Compute node, and takes
part in no round with a lower one (but the one before, during its grace), nor with one that is far ahead. A round is
neither over when a member takes part, nor does it outlast its keys or the client's certificate. A Hello replaces only
an older one. No secret serves two epochs (DESIGN §2.2, §2.3, §4.1, §4.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dca_proto.crypto.sealing import digest
from dca_proto.protocol.effects import Channel, Persist, Send, Write
from dca_proto.protocol.keyring import SEEN
from dca_proto.protocol.keyring import TABLE as SECRETS
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.wire.messages import EpochKey, Hello
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, RunLog, about
from emulator.trials.federation import FOREVER_MS
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, body_of

_SLACK_MS = 1_000


class Clocks(Checker):
    """Checks published keys, remembered epochs, and the times of rounds in which honest members take part."""

    number, name = 18, "epochs and clocks"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._timing = world.actors.timing
        self._slow = {  # at some time: a batch that is handled slowly may end when the machine is fast again
            process.id
            for fault in world.scenario.faults
            if fault.kind == "slow"
            for process in world.processes_of(fault.actor)
        }
        self._seen: defaultdict[Process, dict[bytes, int]] = defaultdict(dict)  # remembered epochs, by Compute node
        self._serials: dict[bytes, tuple[int, bytes]] = {}  # client -> its newest Hello's serial, and the Hello
        self._secrets: dict[bytes, tuple[bytes, bytes]] = {}  # digest of a secret -> its actor and epoch

    def _epoch(self, ms: int) -> int:
        return ms // self._timing.epoch_ms

    # --- what members publish ----------------------------------------------------------------------------------------

    def on_send(self, process: Process, send: Send) -> None:
        """A published key belongs to an epoch that its sender's clock shows."""
        if send.to.channel not in (Channel.EPOCH, Channel.HELLO) or not self.is_honest(process):
            return
        body = body_of(send.payload)
        if isinstance(body, EpochKey | Hello):
            now_ms, late_ms = process.now_ms, self._late_ms(process)
            right = self._epoch(now_ms - late_ms) <= body.epoch <= self._epoch(now_ms + late_ms) + 1
            self.expect(right, f"{process.name} publishes a key of epoch {body.epoch} in epoch {self._epoch(now_ms)}")
            ends = body.expires_ms == (body.epoch + 1) * self._timing.epoch_ms
            self.expect(ends, f"{process.name} publishes a key that ends at {body.expires_ms} ms")
        if isinstance(body, Hello):
            before, hello = self._serials.get(process.id, (0, b""))
            newer = send.payload == hello or body.serial > before
            self.expect(newer, f"{process.name} replaces its Hello by one that is not newer")
            self._serials[process.id] = body.serial, send.payload

    def on_restore(self, process: Process) -> None:
        """An old copy of a store has the old Hello and the old epochs."""
        self._serials.pop(process.id, None)
        records = process.disk.records.items()
        self._seen[process] = {key: int.from_bytes(value, "big") for (table, key), value in records if table == SEEN}

    # --- what members remember ---------------------------------------------------------------------------------------

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """A remembered epoch rises, unless it was in the future; a new secret is of the present epoch and fresh."""
        if not self.is_honest(process):
            return
        now_ms, late_ms = process.now_ms, self._late_ms(process)
        for write in writes:
            if isinstance(write, Persist) and write.table == SEEN:
                epoch, seen = int.from_bytes(write.value, "big"), self._seen[process]
                ahead = seen.get(write.key, 0) > self._epoch(now_ms - late_ms) + 1  # while this clock ran ahead
                rises = epoch > seen.get(write.key, -1) or ahead
                self.expect(rises, f"{process.name} remembers epoch {epoch} after {seen.get(write.key)}")
                future = epoch > self._epoch(now_ms + late_ms) + 1
                self.expect(not future, f"{process.name} remembers epoch {epoch}, which is far ahead of its clock")
                seen[write.key] = epoch
            elif isinstance(write, Persist) and write.table == SECRETS:
                epoch = int.from_bytes(write.key, "big")
                present = self._epoch(now_ms - late_ms) <= epoch <= self._epoch(now_ms + late_ms)
                self.expect(present, f"{process.name} makes a key of epoch {epoch} in epoch {self._epoch(now_ms)}")
                named = process.id, write.key
                first = self._secrets.setdefault(digest(b"emulator-secret", write.value), named)
                self.expect(first == named, f"{process.name} uses the secret of another epoch or actor")

    # --- rounds ------------------------------------------------------------------------------------------------------

    def on_begun(self, node: Process, accepted: Accepted) -> None:
        """A node begins no round that is over, or with epochs that it must refuse."""
        self._check_round(node, accepted, node.now_ms, self._late_ms(node), accepted.body.commit_by_ms)

    def on_charge(self, process: Process, charge: Charge) -> None:
        """A client pays for no round that has closed, that outlasts its certificate, or with wrong epochs."""
        accepted = self.log.accepted.get((process.id, charge.round_id))
        if process.role is not Channel.CLIENT or accepted is None or charge.returned:
            return
        who, late_ms = about(process, charge.round_id), self._late_ms(process)
        dated = abs(charge.at_ms - process.now_ms) <= late_ms
        self.expect(dated, f"{who}: a charge is dated {charge.at_ms}, but its clock shows {process.now_ms}")
        self._check_round(process, accepted, charge.at_ms, 0, accepted.body.close_by_ms)
        ends_ms = self.world.actors.ends_ms.get(process.id, FOREVER_MS)
        self.expect(ends_ms > accepted.body.commit_by_ms, f"{who}: it pays, but its certificate ends before the round")

    def _check_round(self, process: Process, accepted: Accepted, now_ms: int, late_ms: int, until_ms: int) -> None:
        body, timing, seen = accepted.body, self._timing, self._seen[process]
        who = f"{process.name} takes part in round {body.round_id.hex()[:8]}"
        self.expect(now_ms - late_ms < until_ms, f"{who} after its end")
        far_ms = body.commit_by_ms - now_ms - late_ms
        self.expect(far_ms <= timing.deadline_ahead_ms_max, f"{who}, which ends in {far_ms} ms")
        self.expect(body.close_by_ms < body.commit_by_ms, f"{who}, which ends before it closes")
        for key in accepted.epochs:
            keyed_ms = (key.epoch + 1) * timing.epoch_ms + timing.epoch_grace_ms
            lasts = key.expires_ms == (key.epoch + 1) * timing.epoch_ms
            self.expect(lasts, f"{who} with a key that ends at {key.expires_ms} ms")
            outlasts = body.commit_by_ms + timing.abort_grace_ms > keyed_ms
            self.expect(not outlasts, f"{who}, which outlasts the key of epoch {key.epoch}")
            future = key.epoch > self._epoch(now_ms + late_ms) + 1
            self.expect(not future, f"{who} with epoch {key.epoch}, which is far ahead of its clock")
            least = min(seen.get(key.compute, 0), self._epoch(now_ms - late_ms) + 1)
            in_grace = key.epoch == least - 1 and now_ms - late_ms < keyed_ms
            self.expect(key.epoch >= least or in_grace, f"{who} with epoch {key.epoch}, after {least}")

    def _late_ms(self, process: Process) -> int:
        """Return by how much a machine may be late, or its clock may have been set since it handled an event."""
        return _SLACK_MS + (self.world.tardiness_ms(process) if process.id in self._slow else 0)
