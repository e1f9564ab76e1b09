#!/usr/bin/env python
"""Measures the microseconds of the pure core per contribution and role, beside the floor of the bare cryptography.

One swarm in one process runs secure sums with production actors, by `handle` alone: no network, no store, no event
loop. Only `handle` is timed, in this thread's CPU time, with the garbage collector off. The first round, in which every
pair agrees on its key, is not counted. The fixed cost of a round (mainly the M nodes' signed and sealed lists) is
reported separately; comparing two swarms, of N and of 50 clients, gives it.

    client    from the announcement to its contribution, and the receipt: consent, row, noise, masks, sealing, records
    holder    from the contribution to its receipt
    nodes     all M nodes together: the close, their lists, their answers (every tag and mask), their sums
    trainer   the announcement, arrivals, and the partial sums

A process that holds many clients verifies an announcement, and holds it against one policy, once: that is in the
client's share only once in a round. Key agreement, once per pair and epoch, is printed apart.

The floor is what one contribution cannot do without, by direct calls of hashlib and libsodium in the same process
(`emulator/scaling/measure.py` lists them): M tags and masks at the client and one at each node, one seal and one
opening, and the receipt's MAC at both ends. Exact noise stands apart: it is taken off both sides of `ratio`, and stands
on both sides of `ratio_with_noise`.

A verified sum (DESIGN §12) of the same clients and numbers stands beside it: all of a round divided by N, what a round
costs once included, on both sides.

    scripts/bench_core.py                          M in {3, 10}, d in {10, 1000}
    scripts/bench_core.py --json bench.json
    scripts/bench_core.py --computes 10 --dimension 10 --profile
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import platform
import pstats
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import nacl
import numpy as np

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import AgreementKey
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.actor import Actor
from dca_proto.protocol.compute.round import PROGRESS
from dca_proto.protocol.effects import Effect, Report, Send
from dca_proto.protocol.events import Command, Event, Received, Started, Timer, TimerFired
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.kinds import SecureSum, VerifiedSum
from dca_proto.runtime.files import STDOUT, write_json
from dca_proto.testing import TestFederation
from emulator.scaling.measure import floor_us, timed_us

PLAIN, VERIFIED = SecureSum(tolerate=5), VerifiedSum(tolerate=5)
ROLES = ("client", "holder", "nodes", "trainer")
NOW_MS = 1_700_000_000_000
FEW = 50


class Clock:
    """CPU time by role; with a profile, also by function."""

    def __init__(self, profiled: bool = False) -> None:
        self.us = dict.fromkeys(ROLES, 0.0)
        self.profiles = {role: cProfile.Profile() for role in ROLES} if profiled else {}

    @contextmanager
    def of(self, role: str) -> Iterator[None]:
        gc.collect()
        gc.disable()
        profile = self.profiles.get(role)
        if profile:
            profile.enable()
        began = time.thread_time_ns()
        yield
        self.us[role] += (time.thread_time_ns() - began) / 1000
        if profile:
            profile.disable()
        gc.enable()


class Swarm:
    """N clients, M Compute nodes and a trainer, which run rounds of d numbers."""

    def __init__(self, clients: int, computes: int, dimension: int) -> None:
        columns = tuple(f"x{index}" for index in range(dimension))
        values = np.random.default_rng(1).uniform(-1, 1, (clients, 1, dimension))
        policy = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1, epsilon_per_period_max=40)
        self.actors = TestFederation(clients, computes, columns=columns, rows=values, policy=policy)
        self.clients = clients
        flat = {"centre": [0.0] * dimension, "scale": [1.0] * dimension, "bound": [1.0] * dimension}
        self.parameters = {"columns": list(columns), **flat}
        self._nodes = [self.actors.compute(index) for index in range(computes)]
        self._clients = [self.actors.client(index) for index in range(clients)]
        self._trainer = self.actors.trainer()
        self._by_id: dict[bytes, Actor] = {one.id: one for one in (*self._nodes, *self._clients, self._trainer)}
        for node in self._nodes:
            for send in _sends(node.handle(Started(), NOW_MS)):
                self._trainer.handle(Received(node.id, send.payload), NOW_MS)
        for client in self._clients:
            (hello,) = _sends(client.handle(Started(), NOW_MS))
            for node in self._nodes:
                node.handle(Received(client.id, hello.payload), NOW_MS)

    def _all(self, events: Sequence[tuple[bytes, Event]]) -> list[tuple[bytes, list[Effect]]]:
        """Give each actor its event and do nothing else, because this is timed."""
        actors = self._by_id
        return [(actor, actors[actor].handle(event, NOW_MS)) for actor, event in events]

    def round(self, clock: Clock | None = None, kind: SecureSum = PLAIN) -> dict[str, float]:
        """Run one round, from the announcement to its result; return microseconds by role."""
        clock = clock or Clock()
        request = self.actors.request(parameters=self.parameters, kind=kind, epsilon=0.3)
        trainer = self._trainer.id
        with clock.of("trainer"):
            asked = self._trainer.handle(Command(request), NOW_MS)
        *for_nodes, announcement = _sends(asked)
        began = [(send.to.id, Received(trainer, send.payload)) for send in for_nodes]
        with clock.of("nodes"):
            kept = self._all(began)
        words = _received(kept)
        with clock.of("trainer"):
            self._all(words)
        heard = [(client.id, Received(trainer, announcement.payload)) for client in self._clients]
        with clock.of("client"):
            sent = self._all(heard)
        contributions = _received(sent)
        with clock.of("holder"):
            receipts = self._all(contributions)
        answers = _received(receipts)
        with clock.of("client"):
            self._all(answers)
        self._commit(clock, Timer(PROGRESS, request.round_id))
        return clock.us

    def _commit(self, clock: Clock, tick: Timer) -> None:
        due: list[tuple[bytes, Event]] = [(node.id, TimerFired(tick)) for node in self._nodes]
        with clock.of("nodes"):
            progress = self._all(due)
        words = _received(progress)
        with clock.of("trainer"):
            closed = self._all(words)
        waiting, released = _received(closed), []
        while waiting:
            with clock.of("nodes"):
                done = self._all(waiting)
            replies = _received(done)
            released += [one for one in replies if one[0] == self._trainer.id]
            waiting = [one for one in replies if one[0] != self._trainer.id]
        with clock.of("trainer"):
            ended = self._all(released)
        facts = [effect.fact for _, effects in ended for effect in effects if isinstance(effect, Report)]
        (result,) = [fact for fact in facts if isinstance(fact, RoundCompleted)]
        assert result.aggregate.contributors == self.clients, "everybody is in the sum"

    def noise_us(self) -> float:
        """Return the microseconds of one client's exact noise."""
        mechanism = DistributedDiscreteGaussian()
        request = self.actors.request(parameters=self.parameters, tolerate=5, epsilon=0.3)
        _, validated = request.draft(mechanism, Limits())
        keys = [os.urandom(32) for _ in range(200)]
        variance, dimension = validated.noise_variance, validated.dimension
        return timed_us(lambda: [mechanism.sample(variance, dimension, key) for key in keys], len(keys))


def _sends(effects: list[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def _received(done: list[tuple[bytes, list[Effect]]]) -> list[tuple[bytes, Event]]:
    """Return the receivers of all sent messages, with their events."""
    return [(send.to.id, Received(sender, send.payload)) for sender, effects in done for send in _sends(effects)]


def cell(clients: int, computes: int, dimension: int, repeats: int) -> dict[str, Any]:
    """Return the figures of one (M, d): medians, and the smallest and largest ratio of the repeats."""
    swarm, few = Swarm(clients, computes, dimension), Swarm(FEW, computes, dimension)
    measured: list[tuple[dict[str, float], dict[str, float], float]] = []
    once, whole = [], []
    for repeat in range(repeats + 1):
        all_us, few_us = swarm.round(), few.round()
        whole.append((all_us, swarm.round(kind=VERIFIED)))
        if not repeat:
            continue  # every pair has agreed on its key now
        each = {role: (all_us[role] - few_us[role]) / (clients - FEW) for role in ROLES}
        once.append(sum(few_us.values()) - FEW * sum(each.values()))
        measured.append((each, floor_us(computes, dimension), swarm.noise_us()))
    pairs = [(sum(us.values()), sum(floor.values()), noise) for us, floor, noise in measured]
    return {
        "clients": clients,
        "computes": computes,
        "dimension": dimension,
        "core_us": {role: statistics.median(us[role] for us, _, _ in measured) for role in ROLES},
        "floor_us": {role: statistics.median(floor[role] for _, floor, _ in measured) for role in ROLES},
        "noise_us": statistics.median(noise for _, _, noise in measured),
        "core_total_us": statistics.median(core for core, _, _ in pairs),
        "floor_total_us": statistics.median(floor for _, floor, _ in pairs),
        "once_a_round_us": statistics.median(once),
        "plain_round_us": _by_role([plain for plain, _ in whole[1:]], clients),
        "verified_round_us": _by_role([verified for _, verified in whole[1:]], clients),
        "verified_to_plain": _spread([sum(verified.values()) / sum(plain.values()) for plain, verified in whole[1:]]),
        "ratio": _spread([(core - noise) / floor for core, floor, noise in pairs]),
        "ratio_with_noise": _spread([core / (floor + noise) for core, floor, noise in pairs]),
    }


def _by_role(rounds: Sequence[dict[str, float]], clients: int) -> dict[str, float]:
    return {role: statistics.median(us[role] for us in rounds) / clients for role in ROLES}


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(result: dict[str, Any]) -> None:
    """Print one cell."""
    print(
        f"\nN = {result['clients']}, M = {result['computes']}, d = {result['dimension']}: us per further contribution"
    )
    for role in ROLES:
        core, floor = result["core_us"][role], result["floor_us"][role]
        print(f"  {role:<8} {core:8.1f}   floor {floor:7.1f}" + (f"   {core / floor:5.2f}" if floor else ""))
    print(f"  {'all':<8} {result['core_total_us']:8.1f}   floor {result['floor_total_us']:7.1f}", end="")
    print(f"   exact noise {result['noise_us']:.1f}   once a round {result['once_a_round_us'] / 1000:.1f} ms")
    plain, verified = result["plain_round_us"], result["verified_round_us"]
    low, middle, high = (result["verified_to_plain"][key] for key in ("min", "median", "max"))
    print("  a whole round over N: " + ", ".join(f"{role} {plain[role]:.1f}" for role in ROLES))
    print("  verified:             " + ", ".join(f"{role} {verified[role]:.1f}" for role in ROLES), end="")
    print(f"; {middle:.2f} times ({low:.2f} to {high:.2f})")
    for name, words in (("ratio", "without exact noise"), ("ratio_with_noise", "with exact noise on both sides")):
        low, middle, high = (result[name][key] for key in ("min", "median", "max"))
        print(f"  ratio {middle:.2f} ({low:.2f} to {high:.2f}), {words}")


def show_profile(clients: int, computes: int, dimension: int) -> None:
    """Print each role's time by function; the profiler inflates small functions."""
    swarm = Swarm(clients, computes, dimension)
    swarm.round()
    clock = Clock(profiled=True)
    swarm.round(clock)
    for role, profile in clock.profiles.items():
        print(f"\n{role}, {clients} contributions, M = {computes}, d = {dimension}")
        pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats("tottime").print_stats(18)


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "PyNaCl": nacl.__version__,
        "msgspec": msgspec.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds in each cell")
    parser.add_argument("--clients", type=int, default=1000, help="N")
    parser.add_argument("--computes", type=int, nargs="+", default=[3, 10], help="M of the cells")
    parser.add_argument("--dimension", type=int, nargs="+", default=[10, 1000], help="d of the cells")
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    parser.add_argument("--profile", action="store_true", help="print the time by function instead")
    options = parser.parse_args()
    cells = [(computes, dimension) for computes in options.computes for dimension in options.dimension]
    if options.profile:
        for one in cells:
            show_profile(options.clients, *one)
        return
    own, peer = AgreementKey(os.urandom(32)), AgreementKey(os.urandom(32)).public
    agreement = timed_us(lambda: [own.agree(labels.REPLY, peer) for _ in range(200)], 200)
    results = [cell(options.clients, *one, options.rounds) for one in cells]
    write_json({"versions": versions(), "agreement_us": agreement, "cells": results}, options.json)
    if options.json == STDOUT:
        return
    environment = ", ".join(f"{name} {version}" for name, version in versions().items())
    print(f"{environment} · {options.rounds} rounds of each, medians")
    print(f"key agreement, once per pair and epoch, at each side: {agreement:.0f} us")
    for result in results:
        show(result)


if __name__ == "__main__":
    main()
