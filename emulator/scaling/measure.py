"""Measures one cell in processes of its own, so that their peak memory is the cell's.

The live backend runs the same rounds in a swarm over mosquitto, with sockets and durable records. Its wall times are
real time, and it also measures the broker's core seconds. It applies the drop rate exactly: in each round the rounded
number of clients vanishes. A swarm ends with its first abort, so there may be fewer rounds.

The floor of a contribution is the cost of its hashlib and libsodium calls alone, timed in the same process:

    client    M tags and masks: 8 + 8d bytes of SHAKE128, or above 1,024 bytes 40 of SHAKE128 and 8d of ChaCha20;
              BLAKE2b for the contribution's own keys; one XChaCha20-Poly1305 seal of 4 + 8M + 8d bytes
    holder    BLAKE2b for the contribution's own keys; one opening
    nodes     M tags and masks, one at each node
    trainer   nothing

Exact noise, the statistic, messages, records and everything done once a round come on top.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import time
from collections.abc import Callable

from nacl import bindings

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import decrypt, encrypt
from dca_proto.engine import Engine
from dca_proto.results.round import Round
from emulator.scaling.cell import MOSQUITTO, Cell
from emulator.scaling.emulated import measure_emulated
from emulator.scaling.figures import CellMeasurement, Figures, RoundMeasurement, cell_figures
from emulator.sim.team import run_together

_ADVICE = "leave this size out"
_CALLS_MAX, _COORDINATES = 1000, 1_000_000


class Measuring:
    """A worker that measures in its own process and in those that it starts."""

    def measure(self, cell: Cell) -> Figures:
        """Return the figures of one cell."""
        if cell.backend == MOSQUITTO:
            measurement = measure_live(cell)
        else:
            measurement = run_together(functools.partial(measure_emulated, cell), cell.processes, _ADVICE)
        return cell_figures(cell, measurement, floor_by_role_us(cell.computes, cell.dimension))


def measure_apart(cell: Cell, engine: Engine) -> Figures:
    """Return the figures of one cell, measured in a fresh process.

    Raises:
        UsageError: the cell cannot be measured. WorkerDiedError: the process was killed, probably for lack of memory.
        RuntimeError: the process failed; the message has the cause.
    """
    with engine.worker(Measuring, str(cell), _ADVICE) as process:
        figures: Figures = process.call("measure", cell)
        return figures


def measure_live(cell: Cell) -> CellMeasurement:
    """Measure a cell's rounds over mosquitto. If the first is aborted, it is the only one."""
    from emulator.swarm.options import SwarmOptions  # here, because it imports what a device and a broker need
    from emulator.swarm.synthetic import run_rounds

    run = run_rounds(
        SwarmOptions(
            clients=cell.clients,
            dimension=cell.dimension,
            computes=cell.computes,
            rounds=cell.repeats + 1,
            tolerate=cell.tolerate,
            dropped=round(cell.drop_rate * cell.clients),
            processes=cell.processes,
            verified=cell.verified,
            broker=MOSQUITTO,
        )
    )
    first, *others = map(_measurement_of, run.rounds)
    assert run.sessions_s is not None, "a swarm measures it"
    return CellMeasurement(
        sessions_s=run.sessions_core_s or 0.0,
        sessions_wall_s=run.sessions_s,
        first=first,
        rounds=others or [first],
        memory=None,
        peak_rss_mb=run.peak_rss_mb or 0.0,
    )


def _measurement_of(record: Round) -> RoundMeasurement:
    is_done = record.ok and record.mu is not None
    assert record.wall_s is not None, "a swarm times its rounds"
    return RoundMeasurement(
        wall_s=record.wall_s,
        phases=record.phases,
        core_s=record.core_s_by_role,
        messages={role: sent.messages for role, sent in record.roles.items()},
        bytes={role: round(sent.bytes) for role, sent in record.roles.items()},
        completed=record.ok,
        contributors=record.contributors or 0,
        noise_sd=record.noise_sd if is_done else None,
        noise_sd_ideal=record.floor_sd if is_done else None,
    )


def timed_us(call: Callable[[], object], calls: int) -> float:
    """Run a function that makes `calls` calls five times; return the thread's microseconds per call in the fastest."""
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
    """Return the microseconds of the bare cryptography of one contribution, by role.

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
    derived = each(lambda: [blake2b(bound, digest_size=64, key=key, person=labels.ONE_KEYS).digest() for key in keys])
    sealing = each(lambda: [encrypt(key, nonce, text, associated) for key in keys])
    opening = each(lambda: [decrypt(key, nonce, box, associated) for box, key in zip(sealed, keys, strict=True)])
    return {
        "client": computes * pads + derived + sealing,
        "holder": derived + opening,
        "nodes": computes * pads,
        "trainer": 0.0,
    }


def floor_by_role_us(computes: int, dimension: int) -> dict[str, float]:
    """Return `floor_us` for the measured roles: a Compute node is both a node and a holder."""
    floor = floor_us(computes, dimension)
    return {"client": floor["client"], "compute": floor["holder"] + floor["nodes"], "trainer": floor["trainer"]}
