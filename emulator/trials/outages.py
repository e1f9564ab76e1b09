"""Faults of machines, links and the broker, from one time to another: slow, full, wrong, cut off, overloaded."""

from __future__ import annotations

import msgspec

from emulator.sim.link import LinkOptions
from emulator.sim.process import Process, ProcessOptions
from emulator.trials.fault import Injection

BROKER_AWAY_MS = 2_000


class Slow(Injection):
    """Each batch and each transaction take `amount` milliseconds."""

    def begin(self) -> None:
        for process in self.targets:
            slow = int(self.fault.amount)
            process.options = msgspec.structs.replace(process.options, work_ms=slow, commit_ms=slow)
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            fast = ProcessOptions()
            process.options = msgspec.structs.replace(process.options, work_ms=fast.work_ms, commit_ms=fast.commit_ms)


class WrongClock(Injection):
    """The clock steps by `amount` milliseconds, ahead or (`sign` -1) back, and is set right again."""

    sign = 1

    def begin(self) -> None:
        for process in self.targets:
            self._set(process, self.sign * int(self.fault.amount))
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            self._set(process, 0)

    def _set(self, process: Process, skew_ms: int) -> None:
        process.options = msgspec.structs.replace(process.options, skew_ms=skew_ms)
        self.note(f"clock off by {skew_ms} ms", process)


class ClockBehind(WrongClock):
    """The clock is behind by `amount` milliseconds."""

    sign = -1


class DiskFull(Injection):
    """The next transaction fails, and the process with it, until the disk is freed and it is started again."""

    watches = True

    def begin(self) -> None:
        for process in self.targets:
            process.disk.is_full = True

    def on_kill(self, process: Process) -> None:
        if self.is_on and process in self.targets and process.disk.is_full:
            self.reached(process)
            self.simulator.after(self.fault.for_ms or 1_000, self.stop)

    def end(self) -> None:
        for process in self.targets:
            process.disk.is_full = False
            if self.record.reached and not process.is_up:
                self.world.revive(process)


class Partition(Injection):
    """Nothing passes in the given directions, until it is mended."""

    up = down = True

    def begin(self) -> None:
        for process in self.targets:
            self.simulator.broker.cut(process, up=self.up, down=self.down)
            self.note("cut off", process)
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            self.simulator.broker.mend(process)
            self.note("mended", process)


class PartitionUp(Partition):
    """What it sends does not arrive, what is sent to it does."""

    down = False


class PartitionDown(Partition):
    """What is sent to it does not arrive, what it sends does."""

    up = False


class Clogged(Injection):
    """Every packet waits for `amount` milliseconds more."""

    def begin(self) -> None:
        for process in self.targets:
            process.link.clogged_ms = int(self.fault.amount)
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            process.link.clogged_ms = 0


class Lossy(Injection):
    """A share `amount` of all transmissions is lost, and much is repeated and reordered."""

    def begin(self) -> None:
        for process in self.targets:
            options = process.link.options
            bad = {"loss": self.fault.amount, "duplicate": 0.3, "reorder": 0.3, "reorder_ms": 2_000.0}
            process.link.options = msgspec.structs.replace(options, **bad)
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            process.link.options = self.world.scenario.network


class Narrow(Injection):
    """The link takes `amount` bytes a second."""

    def begin(self) -> None:
        for process in self.targets:
            process.link.options = msgspec.structs.replace(
                process.link.options, bandwidth_bytes_s=float(self.fault.amount)
            )
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            process.link.options = self.world.scenario.network


class BrokerRestart(Injection):
    """The broker goes down and comes back with everything that it held."""

    keeps_state = True

    def begin(self) -> None:
        broker = self.simulator.broker
        broker.options = msgspec.structs.replace(broker.options, keeps_state=self.keeps_state)
        broker.stop()
        self.reached(None, "up")
        self.note("the broker goes down")
        self.simulator.after(self.fault.for_ms or BROKER_AWAY_MS, self.stop)

    def end(self) -> None:
        broker = self.simulator.broker
        broker.start()
        broker.options = self.world.scenario.broker
        self.note("the broker is back")


class BrokerLoss(BrokerRestart):
    """It comes back empty: what it had acknowledged and what it retained is gone."""

    keeps_state = False


class Overflow(Injection):
    """A receiver is cut off, and its session holds `amount` messages at most: the others are acknowledged and lost."""

    watches = True

    def begin(self) -> None:
        broker = self.simulator.broker
        self._lost = broker.dropped["queue full"]
        broker.options = msgspec.structs.replace(broker.options, queue_messages_max=max(1, int(self.fault.amount)))
        for process in self.targets:
            broker.cut(process, up=False, down=True)
        self.simulator.after(self.fault.for_ms or 10_000, self.stop)

    def end(self) -> None:
        broker = self.simulator.broker
        if broker.dropped["queue full"] > self._lost:
            self.reached(self.targets[0])
        broker.options = self.world.scenario.broker
        for process in self.targets:
            broker.mend(process)


class ReconnectStorm(Injection):
    """Half of the swarm loses its connection, and all of it comes back in the same instant."""

    def begin(self) -> None:
        clients = [process for process in self.targets if process.is_up]
        self._away = self.stream.sample(clients, k=(len(clients) + 1) // 2)
        for process in self._away:
            self.simulator.broker.cut(process, up=True, down=True)
            self.reached(process)
        self.note(f"{len(self._away)} clients lose their connection")
        self.simulator.after(self.fault.for_ms or 3_000, self.stop)

    def end(self) -> None:
        for process in self._away:
            self.simulator.broker.mend(process)


class EpochTurn(Injection):
    """The clocks were set so that an epoch ends at this time (`world.start_of`): all keys turn in mid-round."""

    def begin(self) -> None:
        self.reached(None, self.world.phase_of(self.world.trainer))
        self.note("an epoch ends")
        self.stop()


def quiet(options: LinkOptions) -> LinkOptions:
    """The link of a scenario without loss, and with no more than a second on the way: when all is mended."""
    return msgspec.structs.replace(
        options,
        delay_ms=min(options.delay_ms, 1_000.0),
        jitter_ms=min(options.jitter_ms, 1_000.0),
        reorder_ms=min(options.reorder_ms, 1_000.0),
        bandwidth_bytes_s=0.0,
        loss=0.0,
    )
