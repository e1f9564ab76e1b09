"""Faults of machines, links and the broker, from one time to another: slow, full, wrong, cut off, overloaded."""

from __future__ import annotations

import msgspec

from emulator.sim.broker import Memory
from emulator.sim.link import LinkOptions
from emulator.sim.process import Process, usual_options
from emulator.trials.fault import Injection

BROKER_AWAY_MS = 2_000


class Machine(Injection):
    """A machine is another for a while: some of its options are replaced, and set right again."""

    def begin(self) -> None:
        for process in self.targets:
            process.options = msgspec.structs.replace(process.options, **self.worse(int(self.fault.amount)))
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            usual = {name: getattr(usual_options(process.role), name) for name in self.worse(0)}
            process.options = msgspec.structs.replace(process.options, **usual)

    def worse(self, amount: int) -> dict[str, int]:
        """The options that are replaced: each batch and each transaction take `amount` milliseconds."""
        return {"work_ms": amount, "commit_ms": amount}


class ClockAhead(Machine):
    """The clock steps ahead by `amount` milliseconds."""

    def worse(self, amount: int) -> dict[str, int]:
        return {"skew_ms": amount}


class ClockBehind(Machine):
    """The clock steps back by `amount` milliseconds."""

    def worse(self, amount: int) -> dict[str, int]:
        return {"skew_ms": -amount}


class Cramped(Machine):
    """The machine holds `amount` messages at most that have come, and as many packets that are to leave."""

    def worse(self, amount: int) -> dict[str, int]:
        most = max(1, amount)
        return {"inbox_events_max": most, "publishing_max": most, "unacknowledged_max": most}


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


class Lossy(Injection):
    """A share `amount` of all transmissions is lost, and much is repeated and reordered."""

    def begin(self) -> None:
        for process in self.targets:
            process.link.options = msgspec.structs.replace(process.link.options, **self.worse(self.fault.amount))
            self.reached(process)

    def end(self) -> None:
        for process in self.targets:
            process.link.options = self.world.scenario.network

    def worse(self, amount: float) -> dict[str, float]:
        """What of the link is replaced."""
        return {"loss": amount, "duplicate": 0.3, "reorder": 0.3, "reorder_ms": 2_000.0}


class Congested(Lossy):
    """Every packet waits for `amount` milliseconds more."""

    def worse(self, amount: float) -> dict[str, float]:
        return {"delay_ms": self.world.scenario.network.delay_ms + amount}


class Narrow(Lossy):
    """The link takes `amount` bytes a second."""

    def worse(self, amount: float) -> dict[str, float]:
        return {"bandwidth_bytes_s": amount}


class BrokerRestart(Injection):
    """The broker goes down and comes back with everything that it held."""

    def begin(self) -> None:
        self.go_down(None)

    def go_down(self, left: Memory | None) -> None:
        """It will come back with what is `left`."""
        if self.is_on:
            self.simulator.broker.stop(left)
            self.reached(None, "up")
            self.note("the broker goes down")
            self.simulator.after(self.fault.for_ms or BROKER_AWAY_MS, self.stop)

    def end(self) -> None:
        self.simulator.broker.start()
        self.note("the broker is back")


class BrokerLoss(BrokerRestart):
    """It comes back empty: what it had acknowledged and what it retained is gone."""

    def begin(self) -> None:
        self.go_down(Memory())


class BrokerKill(BrokerRestart):
    """It comes back with its snapshot of `amount` milliseconds before: what it did since is lost, or done again."""

    def begin(self) -> None:
        self.simulator.after(int(self.fault.amount), self.go_down, self.simulator.broker.memory)


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
    """The clocks were set so that an epoch ends at this time (`Scenario.start_ms`): all keys turn in mid-round."""

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
