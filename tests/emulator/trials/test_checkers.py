"""Each of the checkers passes on production actors; that each fails where one is faulty is in `test_planted`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

import dca_proto
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import ComputeRound
from dca_proto.protocol.effects import Channel, Effect, Send
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.topics import root_of
from emulator.sim.process import KillPoint, Process
from emulator.sim.simulator import Simulator
from emulator.sim.streams import Streams
from emulator.sim.world import World
from emulator.trials.checkers import Checker, checkers_of
from emulator.trials.checkers.inputs import CODES
from emulator.trials.checkers.view import Transcript, neighbour
from emulator.trials.federation import ObservedFederation
from emulator.trials.scenario import Scenario
from emulator.trials.world import TrialRound

HOUR_MS = 3600 * 1000
CLIENTS, COMPUTES = 6, 3
TIGHT = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=1.5, delta_max=1e-6)
"""Room for two rounds at epsilon 1."""


class PlantedFederation(ObservedFederation):
    """A federation in which all actors of one role are faulty copies."""

    plant: type | None = None
    account: BudgetLimit | None = None
    ends_ms: Mapping[bytes, int] = MappingProxyType({})
    failing: frozenset[bytes] = frozenset()
    files: Mapping[bytes, Federation] = MappingProxyType({})
    revoked: frozenset[bytes] = frozenset()

    @property
    def newest(self) -> Federation:
        return self.federation

    def policy_of(self, client: bytes) -> Policy:
        return self.policy

    def floors_of(self, compute: bytes) -> Floors:
        return self.floors

    def client(self, index: int, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Client:
        return self._planted(super().client(index, records))

    def compute(self, index: int, records: Iterable[tuple[str, bytes, bytes]] = ()) -> ComputeNode:
        return self._planted(super().compute(index, records))

    def trainer(self, records: Iterable[tuple[str, bytes, bytes]] = ()) -> Trainer:
        return self._planted(super().trainer(records))

    def _planted(self, actor: Any) -> Any:
        if self.plant is not None and issubclass(self.plant, type(actor)):
            actor.__class__ = self.plant
        return actor


class HonestWorld(World):
    """A world as checkers want it, in which all are honest."""

    hostile: frozenset[bytes] = frozenset()
    altering: frozenset[bytes] = frozenset()
    strangers: frozenset[bytes] = frozenset()
    duplicated: frozenset[bytes] = frozenset()
    restored: frozenset[bytes] = frozenset()
    backed_up: frozenset[bytes] = frozenset()
    copied: frozenset[bytes] = frozenset()
    rounds: tuple[TrialRound, ...] = ()
    scenario = Scenario()
    mended_ms: int | None = None

    def follows(self, process: Process) -> Federation:
        return self.actors.federation

    @property
    def enrolled(self) -> frozenset[bytes]:
        return frozenset(self.actors.clients)

    def client_number(self, client: bytes) -> int:
        return self.actors.clients.index(client)

    def tardiness_ms(self, process: Process) -> int:
        return 0


def new_world(plant: type | None = None, seed: int = 0) -> HonestWorld:
    generator = np.random.default_rng(seed)
    rows = [generator.uniform(-1, 1, (2, 1)) for _ in range(CLIENTS)]
    actors = PlantedFederation(CLIENTS, COMPUTES, rows=rows, name=f"checkers-{seed}", policy=TIGHT)
    actors.plant = plant
    return HonestWorld(actors, Simulator(seed, federation=actors.federation.id, raise_crashes=False))


def play(world: HonestWorld, *others: Transcript, **options: Any) -> list[Checker]:
    """Four rounds, in the second of which two clients vanish, with kills; all checkers look on."""
    checkers = checkers_of(world, **options)
    world.simulator.observers += [*checkers, *others]
    windows = dict.fromkeys(("collect_s", "commit_s"), 20)
    for number in range(4):
        world.simulator.after(number * 100_000 + 1000, lambda: world.open_round(**windows))
    world.computes[1].plan_kill(KillPoint(4, "torn"))
    for at_ms in (10_000, 60_000):
        world.simulator.after(at_ms, heal, world)
    world.simulator.after(101_150, lambda: [client.kill("vanished") for client in world.clients[4:]])
    world.simulator.after(190_000, heal, world)
    world.simulator.after(
        1_500,
        world.simulator.broker.inject,
        f"{root_of(world.actors.federation.id)}/compute/{world.computes[0].id.hex()}/{bytes(16).hex()}",
        b"\x00\xc1rubbish",
    )
    world.simulator.run(world.simulator.now_ms + HOUR_MS)
    for checker in checkers:
        checker.finish()
    return checkers


def heal(world: HonestWorld) -> None:
    for process in world.simulator.processes.values():
        if not process.is_up:
            process.restart()


def broken(checkers: Iterable[Checker]) -> set[int]:
    return {checker.number for checker in checkers if checker.broken}


def texts(checkers: Iterable[Checker]) -> list[str]:
    return [text for checker in checkers for text in checker.broken]


def compared(plant: type | None, seed: int = 0) -> list[Checker]:
    """A run held against one on neighbouring data, and against one of the same seed."""
    other = new_world(plant, seed)
    transcript, changed = Transcript(other), neighbour(other)
    play(other, transcript)
    again = new_world(plant, seed)
    play(again)
    return play(new_world(plant, seed), neighbour=(transcript, changed), digest=again.simulator.trace.digest())


def test_all_hold_for_production_actors_and_each_has_checked_something() -> None:
    checkers = compared(None)
    numbers = [checker.number for checker in checkers]
    assert sorted(set(numbers)) == sorted(numbers), "each has a number of its own"
    assert set(range(1, 20)) <= set(numbers)
    assert texts(checkers) == []
    seen = [(one.name, one.checked) for one in checkers if one.number != 11]  # which looks at the rounds of a trial
    assert all(checked > 0 for _, checked in seen), seen


def test_the_codes_of_drops_are_those_of_the_core() -> None:
    sources = Path(dca_proto.__file__).parent.rglob("*.py")
    raised = {code for path in sources for code in re.findall(r'PeerError\(\s*"([a-z-]+)"', path.read_text())}
    assert raised == CODES


def test_what_is_kept_for_reports_is_not_there_for_sums() -> None:
    """The actors know nothing of that part: two rounds at epsilon 1 fit into 1.5, the first does not into 0.9."""
    world = new_world()
    world.actors.policy = msgspec.structs.replace(TIGHT, epsilon_for_reports=0.6)
    checkers = play(world)
    assert broken(checkers) == {4}
    assert "has spent epsilon" in texts(checkers)[0]


def test_a_stream_that_is_not_of_the_seed_breaks_the_ninth() -> None:
    before = new_world()
    play(before)
    world = new_world()
    world.simulator.streams = Streams(random.getrandbits(64))  # what a draw from elsewhere would do
    for process in world.simulator.processes.values():
        process.link._streams = world.simulator.streams
    checkers = play(world, digest=before.simulator.trace.digest())
    assert broken(checkers) == {9}, texts(checkers)


class SendsOutsideRounds(ComputeNode):
    """It sends the trainer its partial sum once more, under the id of a round that nobody has announced."""

    def _release_when_complete(self, current: ComputeRound, now_ms: int) -> list[Effect]:
        effects = super()._release_when_complete(current, now_ms)
        sums = [one for one in effects if isinstance(one, Send) and one.to.channel is Channel.TRAINER]
        return [*effects, *(msgspec.structs.replace(one, round_id=bytes(16)) for one in sums)]


def test_a_sealed_message_of_a_round_that_was_never_announced_breaks_the_second() -> None:
    checkers = play(new_world(SendsOutsideRounds))
    assert broken(checkers) == {2, 13}, texts(checkers)  # and it sends one message twice
    assert "a round that was never announced" in texts(checkers)[0]
