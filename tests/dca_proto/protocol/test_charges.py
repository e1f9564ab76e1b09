"""A Compute node's memory of charge numbers: none twice, none from long ago, any order in between."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol.charges import PAGE, TABLE, WINDOW, SeenCharges, check_reused
from dca_proto.protocol.effects import Persist
from dca_proto.protocol.wire.messages import ChargeReused

CLIENT, OTHER = 0, 1


def passes(seen: SeenCharges, number: int, slot: int = CLIENT) -> bool:
    """By itself and as one of many, which must agree."""
    alone = not seen.is_used(slot, number)
    (among,) = seen.used(np.array([slot]), np.array([number])).tolist()
    assert alone is not among
    return alone


def note(seen: SeenCharges, *numbers: int, slot: int = CLIENT) -> list[Persist]:
    return [write for number in numbers for write in seen.note(np.array([slot]), np.array([number]))]


def after(*numbers: int) -> SeenCharges:
    seen = SeenCharges(())
    for number in numbers:
        assert passes(seen, number)
        note(seen, number)
    return seen


def restored(writes: list[Persist]) -> SeenCharges:
    return SeenCharges([(write.table, write.key, write.value) for write in writes])


def test_a_number_passes_once_and_another_clients_is_another() -> None:
    seen = after(1)
    assert not passes(seen, 1)
    assert passes(seen, 2)
    assert passes(seen, 1, OTHER)
    assert (seen.highest(CLIENT), seen.highest(OTHER), seen.highest(10**6)) == (1, 0, 0)


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


@pytest.mark.parametrize("leap", [1, 63, 64, 65, 2**32 - 3])
def test_a_leap_forgets_nothing_that_it_should_know(leap: int) -> None:
    """Also where it is as long as the window, or longer: a shift by 64 bits is none on most machines."""
    seen = after(1, 2, 2 + leap)
    assert not passes(seen, 1)
    assert not passes(seen, 2)
    assert not passes(seen, 2 + leap)
    assert passes(seen, 1 + leap) == (leap > 1)
    oldest = 2 + leap - (WINDOW - 1)
    assert oldest < 1 or passes(seen, oldest) == (oldest > 2), "and calls none used that was not"


def test_it_is_the_same_as_remembering_every_number() -> None:
    """2,000 random numbers around the highest, of three clients at once, against plain sets."""
    generator, seen = random.Random(7), SeenCharges(())
    slots, known = [0, PAGE - 1, 3 * PAGE], [set[int](), set[int](), set[int]()]
    for _ in range(2000):
        highest = [max(one, default=0) for one in known]
        numbers = [max(1, one + generator.randint(-WINDOW - 8, 9)) for one in highest]
        expected = [
            number not in one and number > top - WINDOW
            for number, one, top in zip(numbers, known, highest, strict=True)
        ]
        used = seen.used(np.array(slots), np.array(numbers)).tolist()
        assert used == [not passed for passed in expected]
        fresh = [place for place, passed in enumerate(expected) if passed]
        seen.note(np.array([slots[place] for place in fresh], dtype=np.int64), np.array([numbers[p] for p in fresh]))
        for place in fresh:
            known[place].add(numbers[place])


def test_what_is_written_restores_it() -> None:
    seen = after(3, 9)
    (write,) = note(seen, 7)
    assert (write.table, write.key, len(write.value)) == (TABLE, bytes(4), 12 * PAGE)
    again = SeenCharges([(write.table, write.key, write.value), ("session", b"x" * 16, bytes(16))])
    for number in range(1, 12):
        assert passes(again, number) == passes(seen, number) == (number not in (3, 7, 9))
    assert again.highest(OTHER) == 0


def test_only_pages_that_changed_are_written_each_once() -> None:
    """Twelve bytes a client, in pages of 512 slots: clients far apart are in different ones."""
    seen = SeenCharges(())
    slots = np.array([0, 1, PAGE - 1, PAGE, 5 * PAGE + 3])
    numbers = np.array([1, 2, 3, 4, 5])
    assert not seen.used(slots, numbers).any()
    writes = seen.note(slots, numbers)
    assert [int.from_bytes(write.key, "big") for write in writes] == [0, 1, 5]
    again = restored(writes)
    assert [again.highest(slot) for slot in slots.tolist()] == [1, 2, 3, 4, 5]
    assert again.highest(2 * PAGE) == 0
    (only,) = again.note(np.array([PAGE + 1]), np.array([1]))
    assert only.key == (1).to_bytes(4, "big")
    assert seen.note(np.array([], dtype=np.int64), np.array([], dtype=np.int64)) == []


def test_asking_about_a_slot_beyond_all_pages_is_asking_about_nobody() -> None:
    seen = after(1)
    assert seen.used(np.array([10 * PAGE]), np.array([1])).tolist() == [False]
    assert not passes(seen, 1)


@pytest.mark.parametrize("size", [0, 12 * PAGE - 1, 12 * PAGE + 1])
def test_a_damaged_page_stops_the_start(size: int) -> None:
    with pytest.raises(UsageError, match=f"table 'charges' cannot be read \\({size} bytes\\)"):
        SeenCharges([(TABLE, bytes(4), bytes(size))])


# The client's side


def believed(number: int, highest: int, next_number: int, sent: int | None = None) -> bool:
    word = ChargeReused(bytes(16), bytes(32), bytes(16), number, highest)
    try:
        check_reused(word, number if sent is None else sent, next_number)
    except PeerError:
        return False
    return True


def test_a_client_believes_that_its_ledger_is_old_unless_it_was_merely_late() -> None:
    assert believed(5, 5, 6)
    assert believed(5, 200, 6), "it never made 200 charges: they are forgotten ones"
    assert believed(5, 5 + WINDOW - 1, 200)
    assert not believed(5, 5 + WINDOW, 200), "all of these charges it made itself, and this one came late"
    assert believed(5, 5 + WINDOW, 5 + WINDOW), "of a highest number that its own ledger has not reached"
    assert not believed(5, 9, 10, sent=6), "about another charge"
