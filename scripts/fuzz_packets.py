#!/usr/bin/env python
"""Fuzzes topics, packets, parts and messages through transport, runner and actor; exit code 4 if anything escapes.

Production actors (three Compute nodes, five clients, a trainer) run over their MQTT transport on loopback. A small
broker in the same process carries their rounds, and feeds each actor mutations of everything that was sent. The seed
makes all choices. But messages hold times and nonces of the run, so the output also has the inputs of a failed actor.

    strangers   have the key of one enrolled client: a round afterwards must end with the right sum
    insiders    have all keys: rounds may fail, actors may not

Nothing may escape: no exception but those that the actors count, no ended task, no message that kills a connection.

Examples:

    scripts/fuzz_packets.py                            a million inputs
    scripts/fuzz_packets.py --inputs 5000 --seed 7 --json -
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from rich.console import Console

from dca_proto.cli.progress import PatientBar
from dca_proto.crypto import labels
from dca_proto.privacy.mechanism import GRID_LAPLACE
from dca_proto.protocol.announcement import open_announcement, open_answer, open_list
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import RoundCompleted, RoundFailed
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import decode_frame, encode
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Sealed
from dca_proto.protocol.wire.topics import subscriptions
from dca_proto.runtime.files import write_json
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.mqtt import Backoff, MqttTransport
from dca_proto.runtime.runner import Runner
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.store import MemoryStore
from dca_proto.testing import NoNoise, TestFederation
from emulator.fuzz.forger import Forger, Known, Sealable, SealedSecret
from fuzz_broker import PATIENCE_S, Broker

CLIENTS, HOSTILE = 5, 4
BATCH = 50
QUICK = Backoff(first_s=0.001, most_s=0.002)
POLICY = Policy(
    clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=1000, delta_max=1e-3,
    rows_of_many=True, dimension_max=64,
)  # fmt: skip


# --- the federation that is attacked ----------------------------------------------------------------------------------


class Attacked:
    """A live federation on the small broker.

    Attributes:
        escaped: uncaught exceptions, and ended tasks.
        last: the last inputs: receiver, and packets in hexadecimal.
    """

    def __init__(self, name: str, broker: Broker, escaped: list[str]) -> None:
        rows = [np.array([[(index + 1) / 16]]) for index in range(CLIENTS)]
        self.actors = TestFederation(CLIENTS, 3, name=name, rows=rows, mechanism=NoNoise(), policy=POLICY)
        self.broker, self.escaped = broker, escaped
        self.last: list[tuple[str, str]] = []
        self.ended: dict[bytes, RoundCompleted | RoundFailed] = {}
        self._ended = asyncio.Event()
        self.runners: dict[str, Runner] = {}
        self.filters: dict[str, tuple[str, ...]] = {}
        self._transports: dict[str, MqttTransport] = {}
        self.running: dict[bytes, Any] = {}
        roles = (Channel.COMPUTE, Channel.CLIENT, Channel.TRAINER)
        made = (
            [self.actors.compute(i) for i in range(3)],
            [self.actors.client(i) for i in range(CLIENTS)],
            [self.actors.trainer()],
        )
        for role, of_role in zip(roles, made, strict=True):
            for actor in of_role:
                self._add(role, actor)
        self.tasks = {name: asyncio.create_task(runner.run()) for name, runner in self.runners.items()}
        for task in self.tasks.values():
            task.add_done_callback(broker.end)

    def _add(self, role: Channel, actor: Any) -> None:
        name, federation = actor.id.hex(), self.actors.federation.id
        self.running[actor.id] = actor
        self.filters[name] = subscriptions(federation, role, actor.id)
        self._transports[name] = MqttTransport(
            BrokerSettings(url=self.broker.url), name, self.filters[name], rng=random.Random(name), backoff=QUICK
        )
        self.runners[name] = Runner(
            actor, self._transports[name], MemoryStore(), federation=federation, on_report=self._report
        )

    def _report(self, fact: object) -> None:
        if isinstance(fact, RoundCompleted | RoundFailed):
            self.ended[fact.round_id] = fact
            self._ended.set()

    async def run_round(self, wait: bool = True, **changes: Any) -> RoundCompleted | RoundFailed | None:
        """Run a round; return its outcome."""
        request = self.actors.request(**changes)
        self.runners[self.actors.trainer_identity.id.hex()].command(request)
        while wait and request.round_id not in self.ended:
            self._ended.clear()
            await asyncio.wait_for(self._ended.wait(), PATIENCE_S)
        return self.ended.get(request.round_id)

    async def prepare(self) -> None:
        """Run a completed and an aborted round of each kind, and leave one open."""
        hour = {"clients": CLIENTS + 2, "collect_s": 3_000}
        assert isinstance(await self.run_round(tolerate=1), RoundCompleted)
        assert isinstance(await self.run_round(tolerate=0, clients=7, collect_s=0.3), RoundFailed)
        kinds: tuple[dict[str, Any], ...] = (
            {"kind": NodeRelease(), "rows_max": 3},
            {"kind": LdpReport(GRID_LAPLACE), "delta": 0.0},
        )
        for kind in kinds:
            assert isinstance(await self.run_round(**kind), RoundCompleted)
            await self.run_round(wait=False, **kind, **hour)
        await self.run_round(wait=False, tolerate=0, **hour)
        await asyncio.sleep(0.3)

    async def quiet(self, name: str) -> None:
        """Wait until an actor has handled everything that has arrived."""
        inbox = self._transports[name].inbox
        while inbox._waiting and not self.tasks[name].done():  # noqa: ASYNC110 - no such event
            await asyncio.sleep(0)

    def check(self) -> None:
        """Record the actors whose tasks have ended."""
        for name, task in self.tasks.items():
            if task.done():
                self.escaped.append(f"actor {name} ended: {task.exception()!r}")

    def dropped(self) -> Counter[str]:
        """Return the counts of dropped input, at all layers."""
        layers = (*self._transports.values(), *self.runners.values(), *self.running.values())
        return sum((one.dropped for one in layers), Counter())

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.wait(self.tasks.values())

    def forger(self, seed: int, *, insider: bool) -> Forger:
        """Return the maker of inputs, with the keys of the hostile client or of all."""
        actors = self.actors
        log = [(topic, payload[1:]) for topic, payload in self.broker.log if payload[:1] == b"\0"]
        everybody = (*actors.client_identities, *actors.compute_identities, actors.trainer_identity)
        keys = everybody if insider else actors.client_identities[HOSTILE:]
        ids = [*(one.id for one in everybody), bytes(16)]
        known = Known(actors.federation.id, ids, keys, log, list(self._secrets(log)), list(self._sealable(log)))
        return Forger(random.Random(seed), known)

    def _announced(self, log: Iterable[tuple[str, bytes]]) -> dict[bytes, Any]:
        found = {}
        for topic, payload in log:
            if "/announce/" in topic:
                frame = decode_frame(payload)
                opened = open_announcement(getattr(frame, "announcement", frame), self.actors.federation, Limits())
                found[opened.body.round_id] = opened
        return found

    def _secrets(self, log: Iterable[tuple[str, bytes]]) -> Iterable[SealedSecret]:
        rounds = self._announced(log)
        for topic, payload in log:
            frame = decode_frame(payload)
            if not isinstance(frame, Sealed):
                continue
            sender, receiver = (bytes.fromhex(one) for one in reversed(topic.split("/")[3:]))
            opened, actor = rounds[frame.round_id], self.running[receiver]
            if receiver in opened.computes:
                key = actor._keys.key(opened.epochs[opened.computes.index(receiver)].epoch)
                label, inner = labels.PEER_LIST, open_list(frame, key, opened.hash)
            else:
                key = actor._rounds[frame.round_id].reply_key
                label, inner = labels.REPLY, open_answer(frame, key, opened.hash)
            yield SealedSecret(frame.round_id, sender, receiver, label, key.public, opened.hash, encode(inner))

    def _sealable(self, log: Iterable[tuple[str, bytes]]) -> Iterable[Sealable]:
        client = self.running[self.actors.clients[HOSTILE]]
        for round_id, opened in self._announced(log).items():
            if isinstance(opened.body.kind, SecureSum):
                for node, key in zip(opened.computes, client._session.pair_keys(opened.epochs), strict=True):
                    yield Sealable(round_id, opened.hash, client.id, node, key, 4 + 8 * len(opened.computes) + 8)


# --- a run ------------------------------------------------------------------------------------------------------------


async def fuzz(seed: int, inputs: int, advance: Callable[[float], None]) -> dict[str, Any]:
    """Feed `inputs` inputs, half of them of strangers, and report the result."""
    escaped: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: escaped.append(f"{context.get('message')}: {context.get('exception')!r}")
    )
    figures: dict[str, Any] = {"seed": seed, "inputs": inputs}
    for who in ("strangers", "insiders"):
        async with Broker() as broker:
            attacked = Attacked(f"fuzz-{who}-{seed}", broker, escaped)
            await attacked.prepare()
            broker.is_logging = False
            forger = attacked.forger(seed, insider=who == "insiders")
            kinds = await _feed(attacked, forger, inputs // 2, advance)
            if escaped:
                figures["last_inputs"] = attacked.last
            figures[who] = {"kinds": dict(kinds), "dropped": dict(attacked.dropped().most_common())}
            if who == "strangers" and not escaped:
                figures["sum"] = await _last_round(attacked, escaped)
            attacked.check()
            await attacked.close()
    return {**figures, "escaped": escaped[:20], "ok": not escaped}


async def _feed(attacked: Attacked, forger: Forger, inputs: int, advance: Callable[[float], None]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    names = itertools.cycle(attacked.filters)
    while kinds.total() < inputs and not attacked.escaped:
        name = next(names)
        attacked.last = []
        for _ in range(min(BATCH, inputs - kinds.total())):
            kind, packets, spoils = forger.packets(attacked.filters[name])
            kinds[kind] += 1
            attacked.last.append((name, b"".join(packets).hex()))
            await attacked.broker.feed(name, b"".join(packets))
            if spoils:
                await asyncio.sleep(0.001)
                attacked.broker.cut(name)
        await attacked.broker.settle(name)
        await attacked.quiet(name)
        attacked.check()
        advance(BATCH)
    return kinds


async def _last_round(attacked: Attacked, escaped: list[str]) -> float | None:
    """Run a round after the attack: it may miss one client at most, and every number in it must be right.

    The missing one is the client that the strangers impersonated, or one that a busy machine delayed too long.
    """
    end = await attacked.run_round(tolerate=1, clients=CLIENTS, collect_s=10, commit_s=20)
    if not isinstance(end, RoundCompleted):
        escaped.append(f"the round after the strangers failed: {end}")
        return None
    value = float(end.aggregate.value[0])
    everybody = sum(range(1, CLIENTS + 1))
    if value * 16 not in range(everybody - CLIENTS, everybody + 1):
        escaped.append(f"the sum after the strangers is {value}, expected {everybody / 16}, less one client at most")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    asked = parser.parse_args()
    configure_logs(level=50)
    began = time.monotonic()
    with PatientBar(Console(stderr=True), asked.inputs, "inputs") as bar:
        figures = asyncio.run(fuzz(asked.seed, asked.inputs, bar.advance))
    figures["seconds"] = round(time.monotonic() - began, 1)
    write_json(figures, asked.json)
    print(
        f"seed {asked.seed}: {asked.inputs} inputs in {figures['seconds']} s; "
        + ("nothing escaped" if figures["ok"] else f"ESCAPED: {figures['escaped']}"),
        file=sys.stderr,
    )
    return 0 if figures["ok"] else 4


if __name__ == "__main__":
    sys.exit(main())
