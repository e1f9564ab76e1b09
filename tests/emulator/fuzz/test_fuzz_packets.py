"""A short run of scripts/fuzz_packets.py, and that it notices what escapes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from patience import PATIENCE_S

from dca_proto.errors import PeerError
from dca_proto.protocol import actor
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.wire.codec import decode_frame, verify_signed
from dca_proto.protocol.wire.messages import Frame
from dca_proto.testing import TestFederation

SCRIPT = Path(__file__).parents[3] / "scripts" / "fuzz_packets.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_packets", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script: ModuleType, seed: int, inputs: int) -> dict[str, Any]:
    return asyncio.run(asyncio.wait_for(script.fuzz(seed, inputs, lambda done: None), PATIENCE_S))


def test_hardening_no_packet_topic_part_or_message_ends_an_actor(script: ModuleType) -> None:
    figures = run(script, 1, 500)
    assert figures["escaped"] == []
    assert 15 - 16 * figures["sum"] in range(6)  # of rows 1 to 5, without one client's at most
    for who in ("strangers", "insiders"):
        assert {"packet", "topic", "parts", "signed", "sealed", "contribution"} <= figures[who]["kinds"].keys()
        assert {"malformed", "topic", "not subscribed", "retained"} <= figures[who]["dropped"].keys()


def test_the_fuzzers_signatures_are_valid(script: ModuleType) -> None:
    """Else it would never come behind the check of a signature."""
    actors, rng = TestFederation(3, 2), random.Random(1)
    network = actors.network()
    network.deliver()
    log = [("", one.payload) for one in network.sent if one.to.channel is Channel.EPOCH]
    keys = [*actors.compute_identities, *actors.client_identities]
    forger = script.Forger(rng, script.Known(actors.federation.id, [bytes(16)], keys, log))
    named = {one.id: one for one in keys}
    for _ in range(20):
        frame = decode_frame(forger._signed(log[0][1]))
        verified = []
        for identity in named.values():
            with contextlib.suppress(PeerError):
                verify_signed(frame, identity.public_key, actors.federation.id)
                verified.append(identity)
        assert len(verified) == 1


def test_the_fuzzer_notices_an_actor_that_ends(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a decoding error of the library that nobody turns into a peer's error."""
    monkeypatch.setattr(actor, "decode_frame", functools.partial(msgspec.msgpack.decode, type=Frame))
    escaped = run(script, 1, 400)["escaped"]
    assert "ended" in escaped[0]
    assert "Error" in escaped[0]
