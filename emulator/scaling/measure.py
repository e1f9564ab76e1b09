"""Measures one cell in processes of its own, whose peak of memory is then the cell's.

The live backend holds the same rounds by a fleet of client processes over mosquitto, with sockets and durable records.
Its wall times are those of real time, and the broker's core seconds stand beside the roles'. It holds the drop rate
exactly: as many clients as it comes to vanish in each round. A fleet ends with its first abort, so fewer rounds may be
seen.

The floor of a contribution: what hashlib and libsodium alone cost for it, by direct calls in the same process.

    client    M tags and masks: 8 + 8d bytes of SHAKE128, or above 1,024 bytes 40 of SHAKE128 and 8d of ChaCha20;
              BLAKE2b for the contribution's own keys; one XChaCha20-Poly1305 seal of 4 + 8M + 8d bytes
    holder    BLAKE2b for the contribution's own keys; one opening
    nodes     M tags and masks, one at each node
    trainer   nothing

Exact noise, the statistic, messages, records and everything that is done once a round are above it.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import time
from collections.abc import Callable

from nacl import bindings

from dca_proto.crypto.sealing import decrypt, encrypt
from emulator.engine import Engine
from emulator.results import Round
from emulator.scaling.cell import MOSQUITTO, Cell
from emulator.scaling.emulated import hold_emulated
from emulator.scaling.held import Figures, Held, Observed, cell_figures
from emulator.sim.team import run_together

_ADVICE = "leave this size out"
_CALLS_MAX, _COORDINATES = 1000, 1_000_000


class Measuring:
    """Measures in its own process and in those that it starts, as a worker of an engine."""

    def measure(self, cell: Cell) -> Figures:
        """The figures of one cell."""
        if cell.backend == MOSQUITTO:
            seen = hold_live(cell)
        else:
            seen = run_together(functools.partial(hold_emulated, cell), cell.processes, _ADVICE)
        return cell_figures(cell, seen, floor_by_role_us(cell.computes, cell.dimension))


def measure_apart(cell: Cell, engine: Engine) -> Figures:
    """The figures of one cell, measured in a fresh process.

    Raises:
        UsageError: it could not be held. WorkerDiedError: the process was killed, for want of memory most likely.
        RuntimeError: the process failed; with why.
    """
    with engine.worker(Measuring, str(cell), _ADVICE) as process:
        figures: Figures = process.call("measure", cell)
        return figures


def hold_live(cell: Cell) -> Observed:
    """Hold a cell's rounds over mosquitto: the first stands for all where it was aborted; nobody weighs actors."""
    from emulator.swarm.options import SwarmOptions  # here, for it needs what a device and a broker need
    from emulator.swarm.synthetic import run_rounds

    done = run_rounds(
        SwarmOptions(
            clients=cell.clients,
            dimension=cell.dimension,
            computes=cell.computes,
            rounds=cell.repeats + 1,
            tolerated=cell.tolerated,
            dropped=round(cell.drop_rate * cell.clients),
            processes=cell.processes,
            broker=MOSQUITTO,
        )
    )
    first, *others = [_held_of(one) for one in done.rounds]
    assert done.sessions is not None, "a fleet tells"
    return Observed(
        sessions_s=done.sessions.core_s or 0.0,
        sessions_wall_s=done.sessions.wall_s,
        first=first,
        rounds=others or [first],
        memory=None,
        peak_rss_mb=done.peak_rss_mb or 0.0,
    )


def _held_of(one: Round) -> Held:
    is_done = one.ok and one.mu is not None
    assert one.wall_s is not None, "a fleet times its rounds"
    return Held(
        wall_s=one.wall_s,
        phases=one.phases,
        core_s=one.core_s_by_role,
        messages={role: sent.messages for role, sent in one.roles.items()},
        bytes={role: round(sent.bytes) for role, sent in one.roles.items()},
        completed=one.ok,
        contributors=one.contributors or 0,
        noise_sd=one.noise_sd if is_done else None,
        noise_sd_ideal=one.floor_sd if is_done else None,
    )


def timed_us(call: Callable[[], object], calls: int) -> float:
    """Microseconds of this thread for one of the calls that a function makes: the least of five times."""
    taken = []
    was_on = gc.isenabled()
    for _ in range(5):
        gc.collect(0)
        gc.disable()
        began_ns = time.thread_time_ns()
        call()
        taken.append((time.thread_time_ns() - began_ns) / 1000 / calls)
        if was_on:
            gc.enable()
    return min(taken)


def floor_us(computes: int, dimension: int) -> dict[str, float]:
    """Microseconds of the bare calls for one contribution, by role.

    Args:
        computes: M. dimension: d.
    """
    calls = max(20, min(_CALLS_MAX, _COORDINATES // dimension))
    keys = [os.urandom(32) for _ in range(calls)]
    bound, associated, nonce = os.urandom(68), os.urandom(80), bytes(24)
    text = os.urandom(4 + 8 * computes + 8 * dimension)
    size, expand = 8 + 8 * dimension, bindings.randombytes_buf_deterministic
    blake2b, shake_128 = hashlib.blake2b, hashlib.shake_128
    sealed = [encrypt(key, nonce, text, associated) for key in keys]

    def each(call: Callable[[], object]) -> float:
        return timed_us(call, calls)

    if size <= 1024:
        pads = each(lambda: [shake_128(b"".join((key, bound))).digest(size) for key in keys])
    else:
        pads = each(lambda: [expand(size - 8, shake_128(b"".join((key, bound))).digest(40)[8:]) for key in keys])
    derived = each(lambda: [blake2b(bound, digest_size=64, key=key, person=b"dca4-one").digest() for key in keys])
    sealing = each(lambda: [encrypt(key, nonce, text, associated) for key in keys])
    opening = each(lambda: [decrypt(key, nonce, one, associated) for one, key in zip(sealed, keys, strict=True)])
    return {
        "client": computes * pads + derived + sealing,
        "holder": derived + opening,
        "nodes": computes * pads,
        "trainer": 0.0,
    }


def floor_by_role_us(computes: int, dimension: int) -> dict[str, float]:
    """`floor_us` of the roles as they are metered: a Compute node is a holder, too."""
    floor = floor_us(computes, dimension)
    return {"client": floor["client"], "compute": floor["holder"] + floor["nodes"], "trainer": floor["trainer"]}
