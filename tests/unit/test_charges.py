"""A Compute node's memory of charge numbers: none twice, none from long ago, any order in between."""

from __future__ import annotations

import random

import pytest

from dca_proto.core.charges import TABLE, WINDOW, SeenCharges
from dca_proto.core.errors import PeerError

CLIENT, OTHER = bytes(16), bytes(15) + b"\1"


def passes(seen: SeenCharges, number: int, client: bytes = CLIENT) -> bool:
    try:
        seen.check(client, number)
    except PeerError:
        return False
    return True


def after(*numbers: int) -> SeenCharges:
    seen = SeenCharges(())
    for number in numbers:
        seen.check(CLIENT, number)
        seen.note(CLIENT, number)
    return seen


def test_a_number_passes_once_and_another_clients_is_another() -> None:
    seen = after(1)
    with pytest.raises(PeerError, match="ledger-rollback: found charge 1 again, expected one above 1"):
        seen.check(CLIENT, 1)
    assert passes(seen, 2)
    assert passes(seen, 1, OTHER)
    assert (seen.highest(CLIENT), seen.highest(OTHER)) == (1, 0)


def test_numbers_of_concurrent_rounds_pass_in_any_order() -> None:
    numbers = list(range(1, WINDOW + 1))
    random.Random(3).shuffle(numbers)
    seen = after(*numbers)
    assert not any(passes(seen, number) for number in numbers)


@pytest.mark.parametrize("highest", [WINDOW, 1000, (1 << 32) - 1])
def test_the_window_ends_where_it_should(highest: int) -> None:
    seen = after(highest)
    assert passes(seen, highest - WINDOW + 1)
    assert not passes(seen, highest - WINDOW)
    assert not passes(seen, highest)


def test_a_leap_over_the_whole_window_forgets_nothing_that_it_should_know() -> None:
    """2^32 numbers at once cost no more than one: the mask is no larger than the window."""
    seen = after(1, 2, (1 << 32) - 1)
    assert not passes(seen, 1)
    assert not passes(seen, (1 << 32) - 1)
    assert len(seen.note(CLIENT, (1 << 32) - 2).value) == 16


def test_it_is_the_same_as_remembering_every_number() -> None:
    """2,000 random numbers around the highest, against a plain set."""
    generator, seen, known = random.Random(7), SeenCharges(()), set[int]()
    for _ in range(2000):
        highest = max(known, default=0)
        number = max(1, highest + generator.randint(-WINDOW - 8, 9))
        expected = number not in known and number > highest - WINDOW
        assert passes(seen, number) == expected
        if expected:
            seen.note(CLIENT, number)
            known.add(number)


def test_what_is_written_restores_it() -> None:
    seen = after(3, 9)
    record = seen.note(CLIENT, 7)
    assert (record.table, record.key, len(record.value)) == (TABLE, CLIENT, 16)
    restored = SeenCharges([(record.table, record.key, record.value), ("share", OTHER, bytes(16))])
    for number in range(1, 12):
        assert passes(restored, number) == passes(seen, number) == (number not in (3, 7, 9))
    assert restored.highest(OTHER) == 0
