#!/usr/bin/env python
"""Microseconds per contribution in the pure core, client side and Compute side, beside the floor of the bare calls.

The floor is what libsodium, BLAKE2b and MessagePack alone cost in the same process: one key derivation, one AEAD call
and one message per Compute node, and the expansion of the seeds.

The client's contribution goes from its row to its M sealed messages: statistic, exact noise, split, keys, AEAD,
messages. What it does beside it once a round (verify the start, hold it against policy and ledger, store) is printed
apart, and so is the key agreement, once per pair and epoch. The Compute side is the production actors' `handle` of all
M shares, with receipts, records and the final sum, in the second round of an epoch.

    scripts/bench_core.py                     M in {3, 10}, d in {10, 1000}, share encoding seed
    scripts/bench_core.py --json bench.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import nacl
import numpy as np

from dca_proto.core.codec import decode_body, decode_frame, encode, open_signed
from dca_proto.core.effects import Channel, Send
from dca_proto.core.events import Received
from dca_proto.core.mechanism import DistributedDiscreteGaussian
from dca_proto.core.messages import Share, Signed, Start
from dca_proto.core.params import Limits
from dca_proto.core.plan import ask, plan_round
from dca_proto.core.sealing import AgreementKey, decrypt, derive, encrypt, expand
from dca_proto.core.shares import share_bodies, sum_shares
from dca_proto.core.upload import CHARGE_BYTES, add_noise, make_contribution
from dca_proto.statistics.contribution import contribution
from dca_proto.testing import Cast, Network

CLIENTS = 100
DETAIL_CALLS = 200


def timed_us(call: Callable[[], object], calls: int) -> float:
    """Mean microseconds of one call."""
    gc.collect()
    gc.disable()
    began = time.perf_counter_ns()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter_ns() - began
    gc.enable()
    return elapsed / calls / 1000


def floor_us(computes: int, dimension: int) -> dict[str, float]:
    """The bare calls, for one contribution: client side, and all M Compute nodes together."""
    key, nonce, associated = os.urandom(32), os.urandom(24), os.urandom(52)
    seed, short, full = os.urandom(32), os.urandom(CHARGE_BYTES + 32), os.urandom(CHARGE_BYTES + 8 * dimension)
    message = Share(os.urandom(16), os.urandom(16), nonce, encrypt(key, nonce, short, associated))
    large = Share(message.round_id, message.contribution, nonce, encrypt(key, nonce, full, associated))

    def one(call: Callable[[], object]) -> float:
        return timed_us(call, 2000 if dimension <= 100 else 500)

    derivation = computes * one(lambda: derive(key, b"dca1-round", associated + associated[:28]))
    expansion = (computes - 1) * one(lambda: expand(seed, 8 * dimension))
    sealing = (computes - 1) * one(lambda: encrypt(key, nonce, short, associated))
    sealing += one(lambda: encrypt(key, nonce, full, associated))
    opening = (computes - 1) * one(lambda: decrypt(key, nonce, message.ciphertext, associated))
    opening += one(lambda: decrypt(key, nonce, large.ciphertext, associated))
    raw, raw_large = encode(message), encode(large)
    encoding = (computes - 1) * one(lambda: encode(message)) + one(lambda: encode(large))
    decoder = msgspec.msgpack.Decoder(Share)
    decoding = (computes - 1) * one(lambda: decoder.decode(raw)) + one(lambda: decoder.decode(raw_large))
    return {
        "client": derivation + sealing + expansion + encoding,
        "compute": derivation + opening + expansion + decoding,
    }


class Bench:
    """One swarm at its second round of an epoch, so that every pair's key is agreed."""

    def __init__(self, computes: int, dimension: int) -> None:
        columns = tuple(f"x{index}" for index in range(dimension))
        rng = np.random.default_rng(1)
        rows = [rng.uniform(-1, 1, (1, dimension)) for _ in range(CLIENTS)]
        self.cast = Cast(CLIENTS, computes, columns=columns, rows=rows)
        self.network: Network = self.cast.network()
        self.computes = computes
        self.parameters = {
            "columns": list(columns),
            "centre": [0.0] * dimension,
            "scale": [1.0] * dimension,
            "bound": [1.0] * dimension,
        }
        self._round()
        self.network.deliver()

    def _round(self) -> None:
        request = self.cast.request(parameters=self.parameters, tolerated=5, epsilon=0.5)
        self.request = request
        self.network.command(self.cast.trainer_identity.id, request)

    def measure(self) -> dict[str, float]:
        """Microseconds of one contribution, in the actors and of their parts."""
        starts: list[tuple[bytes, bytes]] = []
        trainer = self.cast.trainer_identity.id

        def hold_back(envelope: Any) -> tuple[Any, ...]:
            if envelope.to.channel is Channel.CLIENT and envelope.sender == trainer:
                starts.append((envelope.to.id, envelope.payload))
                return ()
            return (envelope,)

        self.network.tamper = hold_back
        self._round()
        self.network.deliver()
        shares: list[tuple[bytes, Send]] = []
        gc.collect()
        gc.disable()
        began = time.perf_counter_ns()
        produced = [
            (client, self.network.actors[client].handle(Received(trainer, payload), self.network.now_ms))
            for client, payload in starts
        ]
        client_us = (time.perf_counter_ns() - began) / CLIENTS / 1000
        shares = [(client, e) for client, effects in produced for e in effects if isinstance(e, Send)]
        began = time.perf_counter_ns()
        for client, share in shares:
            self.network.actors[share.to.id].handle(Received(client, share.payload), self.network.now_ms)
        receive_us = (time.perf_counter_ns() - began) / CLIENTS / 1000
        gc.enable()
        return {"client": client_us, "compute": receive_us + self._sum_us(), "start_control": self._control_us(starts)}

    def _control_us(self, starts: list[tuple[bytes, bytes]]) -> float:
        """Opening a start: strict decoding and its signature, once a round and client."""
        key, federation = self.cast.trainer_identity.public_key, self.cast.federation.hash

        def call() -> None:
            frame = decode_frame(starts[0][1])
            decode_body(frame.body)
            open_signed(frame, key, federation, Start)

        return timed_us(call, DETAIL_CALLS)

    def _sum_us(self) -> float:
        """The final sum, per contribution and over all M nodes."""
        dimension = len(self.cast.columns)
        full, seeds = [os.urandom(8 * dimension)] * CLIENTS, [os.urandom(32)] * CLIENTS
        vectors = timed_us(lambda: sum_shares(full, (), dimension), 5) / CLIENTS
        return vectors + (self.computes - 1) * timed_us(lambda: sum_shares((), seeds, dimension), 5) / CLIENTS

    def parts(self) -> dict[str, float]:
        """The client's parts, each alone."""
        mechanism = DistributedDiscreteGaussian()
        computes = self.cast.computes
        nobody = tuple(Signed(b"", bytes(64)) for _ in computes)
        announcement = self.request.announcement(bytes(16), mechanism.name, nobody, bytes(32), 0)
        plan = plan_round(announcement, ask(announcement, mechanism, Limits()), CLIENTS, mechanism)
        row, bits = self.cast.rows[0], self.request.fraction_bits
        value = contribution(plan.question.statistic, row, 0, bits)
        root = os.urandom(32)
        noisy = add_noise(value, plan, mechanism, root)
        keys = [os.urandom(32) for _ in computes]

        def whole() -> object:
            return make_contribution(
                value,
                plan=plan,
                mechanism=mechanism,
                encoding="seed",
                round_id=bytes(16),
                session_hash=bytes(32),
                client=bytes(16),
                position=0,
                charge=1,
                computes=computes,
                pair_keys=keys,
                random=os.urandom,
            )

        statistic = timed_us(lambda: contribution(plan.question.statistic, row, 0, bits), DETAIL_CALLS)
        noise = timed_us(lambda: add_noise(value, plan, mechanism, os.urandom(32)), DETAIL_CALLS)
        split = timed_us(lambda: share_bodies(noisy, root, len(computes), 0, "seed"), DETAIL_CALLS)
        sealing = timed_us(whole, DETAIL_CALLS) - noise - split
        return {"statistic": statistic, "exact noise": noise, "split": split, "keys, AEAD, messages": sealing}


def cell(computes: int, dimension: int, repeats: int) -> dict[str, Any]:
    """All figures of one (M, d): medians, and the smallest and largest ratio of one repeat."""
    bench = Bench(computes, dimension)
    repeated = [(bench.measure(), bench.parts(), floor_us(computes, dimension)) for _ in range(repeats)]
    parts = {name: statistics.median(one[name] for _, one, _ in repeated) for name in repeated[0][1]}
    client = _side([(sum(one.values()), floor["client"]) for _, one, floor in repeated])
    compute = _side([(actors["compute"], floor["compute"]) for actors, _, floor in repeated])
    client["ratio_with_noise_in_floor"] = client["us"] / (client["floor_us"] + parts["exact noise"])
    opening = statistics.median(actors["start_control"] for actors, _, _ in repeated)
    whole = statistics.median(actors["client"] for actors, _, _ in repeated)
    beside = {"open and verify the start": opening, "policy, ledger, records": whole - client["us"] - opening}
    return {
        "computes": computes,
        "dimension": dimension,
        "client": client,
        "compute": compute,
        "parts_us": parts,
        "once_a_round_us": beside,
    }


def _side(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    us, floor = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratios = sorted(total / bare for total, bare in pairs)
    return {"us": us, "floor_us": floor, "ratio": us / floor, "ratio_spread": [ratios[0], ratios[-1]]}


def show(result: dict[str, Any]) -> None:
    """One cell for people."""
    print(f"\nM = {result['computes']}, d = {result['dimension']}")
    for side in ("client", "compute"):
        row = result[side]
        low, high = row["ratio_spread"]
        print(
            f"  {side:<8} {row['us']:8.1f} us   floor {row['floor_us']:7.1f} us   "
            f"ratio {row['ratio']:.2f} ({low:.2f} to {high:.2f})"
        )
    client = result["client"]
    print(f"  client's ratio with the exact noise counted in the floor: {client['ratio_with_noise_in_floor']:.2f}")
    for name, us in result["parts_us"].items():
        print(f"    {name:<28} {us:8.1f} us  {100 * us / client['us']:5.1f} %")
    for name, us in result["once_a_round_us"].items():
        print(f"    once a round: {name:<28} {us:8.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    options = parser.parse_args()
    agreement = AgreementKey(os.urandom(32))
    peer = AgreementKey(os.urandom(32)).public
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "PyNaCl": nacl.__version__,
        "msgspec": msgspec.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    cells = [cell(m, d, options.repeats) for m in (3, 10) for d in (10, 1000)]
    summary = {"versions": versions, "agreement_us": timed_us(lambda: agreement.agree(peer), 500), "cells": cells}
    if options.json == "-":
        json.dump(summary, sys.stdout, indent=2)
        return
    print(", ".join(f"{name} {version}" for name, version in versions.items()), f"· {options.repeats} repeats, medians")
    print(f"key agreement, once per pair and epoch: {summary['agreement_us']:.0f} us")
    for one in cells:
        show(one)
    if options.json:
        Path(options.json).write_text(json.dumps(summary, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
