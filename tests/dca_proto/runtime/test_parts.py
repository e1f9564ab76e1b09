"""Splitting and putting together: exact for honest senders in any order, bounded for all others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dca_proto.errors import UsageError
from dca_proto.runtime.parts import Assembler, PartLimits, split

SMALL = 1024


@given(st.binary(max_size=20_000), st.integers(64, 4096), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_any_order_and_duplicates_give_the_message(payload: bytes, size: int, rng: random.Random) -> None:
    wires = split(payload, size)
    assert all(len(wire) <= size for wire in wires)
    shuffled = wires + rng.sample(wires, k=rng.randrange(len(wires)))
    rng.shuffle(shuffled)
    assembler = Assembler()
    whole = [out for wire in shuffled if (out := assembler.add("s", wire)) is not None]
    assert whole
    assert set(whole) == {payload}


def test_a_message_that_fits_costs_one_byte() -> None:
    assert [len(wire) for wire in split(bytes(1000), SMALL)] == [1001]


def test_a_message_of_too_many_parts_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="needs 4146 parts of 1024 bytes, receivers accept 4096"):
        split(bytes(4146 * (SMALL - 21) - 1), SMALL)


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"\x01",
        b"\x02" + bytes(40),
        b"\x01" + bytes(16) + b"\x00\x00\x00\x01" + b"one of one",
        b"\x01" + bytes(16) + b"\x00\x02\x00\x02" + b"index out of range",
        b"\x01" + bytes(16) + b"\x00\x00\xff\xff" + b"too many",
        b"\x01" + bytes(16) + b"\x00\x00\x00\x02",
    ],
)
def test_malformed_parts_are_dropped_and_counted(wire: bytes) -> None:
    assembler = Assembler()
    assert assembler.add("s", wire) is None
    assert assembler.dropped == {"malformed": 1}
    assert assembler.bytes_held == 0


def test_a_damaged_part_spoils_its_message_and_no_other() -> None:
    payload = random.Random(1).randbytes(3000)
    first, second, third, *rest = split(payload, SMALL)
    assembler = Assembler()
    for wire in (first, second[:-1] + bytes([second[-1] ^ 1]), third, *rest):
        assert assembler.add("s", wire) is None
    assert assembler.dropped == {"damaged": 1}
    assert [assembler.add("s", wire) for wire in (first, second, third, *rest)][-1] == payload
    assert assembler.bytes_held == 0


def test_parts_that_disagree_on_their_number_drop_the_message() -> None:
    wire = split(bytes(3000), SMALL)[0]
    assembler = Assembler()
    assembler.add("s", wire)
    assembler.add("s", wire[:19] + b"\x00\x09" + wire[21:])
    assert assembler.dropped == {"inconsistent": 1}
    assert assembler.bytes_held == 0


def test_senders_do_not_complete_each_others_messages() -> None:
    wires = split(bytes(3000), SMALL)
    assembler = Assembler()
    assert [assembler.add(sender, wire) for sender, wire in zip("abab", wires, strict=False)] == [None] * len(wires)


def test_a_flood_of_partial_messages_holds_bounded_memory_and_lets_the_honest_through() -> None:
    limits = PartLimits(partial_per_sender_max=4, partial_max=64, held_bytes_max=30_000)
    assembler = Assembler(limits)
    rng = random.Random(2)
    for number in range(5000):
        head = b"\x01" + rng.randbytes(16) + rng.randrange(4).to_bytes(2, "big") + b"\x00\x04"
        assembler.add(f"flooder{number % 100}", head + bytes(900))
        assert assembler.bytes_held <= limits.held_bytes_max
        assert len(assembler._partials) <= limits.partial_max
        assert max(assembler._per_sender.values()) <= limits.partial_per_sender_max
    assert assembler.dropped["crowded out"] >= 5000 - limits.partial_max
    payload = rng.randbytes(5000)
    assert [assembler.add("honest", wire) for wire in split(payload, SMALL)][-1] == payload


def test_one_flooder_crowds_out_only_itself() -> None:
    assembler = Assembler(PartLimits(partial_per_sender_max=2, partial_max=10))
    payload = random.Random(3).randbytes(3000)
    *most, last = split(payload, SMALL)
    for wire in most:
        assembler.add("honest", wire)
    for number in range(100):
        assembler.add("flooder", split(bytes([number]) * 3000, SMALL)[0])
    assert assembler.add("honest", last) == payload


def test_partial_messages_age_out_by_count() -> None:
    assembler = Assembler(PartLimits(age_parts_max=10))
    assembler.add("early", split(bytes(3000), SMALL)[0])
    for number in range(20):
        for wire in split(bytes([number + 1]) * 3000, SMALL):
            assembler.add("later", wire)
    assert assembler.dropped == {"aged out": 1}
    assert assembler.bytes_held == 0


def test_messages_over_the_limit_are_dropped_whole_or_in_parts() -> None:
    assembler = Assembler(PartLimits(message_bytes_max=2000))
    assert assembler.add("s", b"\x00" + bytes(2000)) is None
    for wire in split(bytes(5000), SMALL):
        assert assembler.add("s", wire) is None
    assert assembler.dropped["too large"] >= 2
