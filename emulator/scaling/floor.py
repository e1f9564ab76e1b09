"""The floor of a contribution: what hashlib and libsodium alone cost for it, by direct calls in the same process.

    client    M tags and masks: 8 + 8d bytes of SHAKE128, or above 1,024 bytes 40 of SHAKE128 and 8d of ChaCha20;
              BLAKE2b for the contribution's own keys; one XChaCha20-Poly1305 seal of 4 + 8M + 8d bytes
    holder    BLAKE2b for the contribution's own keys; one opening
    nodes     M tags and masks, one at each node
    trainer   nothing

Exact noise, the statistic, messages, records and everything that is done once a round are above it.
"""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Callable

from nacl import bindings

from dca_proto.crypto.sealing import decrypt, encrypt

_CALLS_MAX, _COORDINATES = 1000, 1_000_000


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
