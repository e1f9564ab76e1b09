"""The ledger: charges, what they add up to, and what comes back."""

from __future__ import annotations

import math
import subprocess
import sys
import tracemalloc

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.ledger import TABLE, Charge, CostToClients, Ledger, max_client_cost
from dca_proto.protocol.wire.codec import encode


def charge(number: int, mu: float = 0.5, at_ms: int = 0) -> Charge:
    return Charge(bytes((number,)) * 16, "sum", bytes(16), mu, 1.0, 1e-6, at_ms, number)


def test_charges_compose_as_the_root_of_squares() -> None:
    ledger = Ledger([charge(1, 3.0), charge(2, 4.0)])
    assert ledger.spent().mu == 5.0
    assert Ledger().spent().mu == 0


def report(number: int, epsilon: float, clients: tuple[bytes, ...] = ()) -> Charge:
    """Of ε-private reports."""
    return msgspec.structs.replace(
        charge(number, accounting.mu_of_pure(epsilon)), epsilon=epsilon, delta=0.0, clients=clients
    )


def test_reports_add_up_in_epsilon_beside_gaussian_rounds() -> None:
    ledger = Ledger([charge(1, 3.0), report(2, 0.5), charge(3, 4.0), report(4, 1.5)])
    converted = accounting.mu_of_pure(0.5) ** 2 + accounting.mu_of_pure(1.5) ** 2
    assert ledger.spent() == PrivacyCost(25.0, 2.0, pytest.approx(converted))
    ledger.give_back(report(4, 1.5).round_id)
    assert ledger.spent() == PrivacyCost.of_pure(0.5) + PrivacyCost.of_mu(5.0)
    assert Ledger([report(1, 0.1), report(2, 0.2)]).spent().within(0.3, 1e-6)


def test_a_mini_batch_is_weighed_by_the_most_that_one_of_it_has_spent_in_each_kind() -> None:
    """Client a in Gaussian rounds and b in reports: together an upper bound for both, each alone what it has spent."""
    a, b, c = (bytes([number]) * 16 for number in range(3))
    gaussian = [msgspec.structs.replace(charge(number, 2.0), clients=(a,)) for number in (1, 2, 3, 4)]
    ledger = Ledger([*gaussian, charge(5, 3.0), report(6, 1.0, (b,)), report(7, 0.5, (b, c)), report(8, 0.25)])
    alone = {a: (25.0, 0.25), b: (9.0, 1.75), c: (9.0, 0.75)}
    for client, (square, epsilon) in alone.items():
        spent = ledger.spent(of=[client])
        assert (spent.gaussian, spent.pure) == (square, epsilon)
    for among in ((), (a, b), (a, b, c)):
        worst = ledger.spent(of=among)
        assert (worst.gaussian, worst.pure) == (25.0, 1.75)
        assert all(worst.epsilon(1e-6) >= ledger.spent(of=[one]).epsilon(1e-6) for one in among or alone)
    assert ledger.spent(of=[b, c]) == ledger.spent(of=[b])


def verified(number: int, mu: float, slack: float, clients: tuple[bytes, ...] = ()) -> Charge:
    """Of a verified sum."""
    return msgspec.structs.replace(charge(number, mu), slack=slack, clients=clients)


def test_slack_adds_up_and_comes_back_with_the_charge() -> None:
    ledger = Ledger([charge(1, 3.0), verified(2, 4.0, 2.0**-60)])
    assert ledger.spent() == PrivacyCost(25.0, slack=2.0**-60)
    stored = ledger.charge(verified(3, 12.0, 2.0**-61))
    assert ledger.spent() == PrivacyCost(169.0, slack=3 * 2.0**-61)
    assert msgspec.msgpack.decode(stored.value, type=Charge) == verified(3, 12.0, 2.0**-61)
    ledger.give_back(verified(3, 12.0, 0).round_id)
    assert ledger.spent() == PrivacyCost(25.0, slack=2.0**-60)
    ledger.count_again(verified(3, 12.0, 0).round_id)
    assert ledger.spent() == PrivacyCost(169.0, slack=3 * 2.0**-61)
    assert Ledger(ledger.charges).spent() == ledger.spent()


def test_a_mini_batch_is_weighed_by_the_most_slack_of_one_of_it() -> None:
    a, b = (bytes([number]) * 16 for number in range(2))
    ledger = Ledger([verified(1, 3.0, 1e-9), verified(2, 4.0, 2e-9, (a,)), verified(3, 4.0, 3e-9, (b,))])
    assert ledger.spent(of=[a]) == PrivacyCost(25.0, slack=1e-9 + 2e-9)
    assert ledger.spent() == ledger.spent(of=[b]) == PrivacyCost(25.0, slack=1e-9 + 3e-9)
    more = ledger.spent(of=[a], reserved=[CostToClients(PrivacyCost.of_mu(12.0, 1e-9), frozenset([a]))])
    assert more == PrivacyCost(169.0, slack=pytest.approx(4e-9))


def test_what_is_written_restores_the_ledger() -> None:
    ledger = Ledger()
    writes = [
        ledger.charge(charge(1, at_ms=5)),
        ledger.charge(charge(2, at_ms=3)),
        ledger.give_back(charge(1).round_id),
        ledger.charge(report(3, 0.5)),
    ]
    assert {write.table for write in writes} == {TABLE}
    stored = {write.key: write.value for write in writes}
    restored = Ledger(msgspec.msgpack.decode(value, type=Charge) for value in stored.values())
    assert restored.charges == ledger.charges
    assert restored.spent() == ledger.spent()
    assert [one.number for one in restored.charges] == [1, 2, 3], "in the order of charging, whatever the clock said"
    assert restored.next_number == ledger.next_number == 4


def test_charges_are_numbered_in_order_and_a_number_never_comes_twice() -> None:
    ledger = Ledger()
    assert ledger.next_number == 1
    ledger.charge(charge(1))
    ledger.give_back(charge(1).round_id)
    assert ledger.next_number == 2, "also after a return"
    for wrong in (1, 3):
        with pytest.raises(RuntimeError, match="numbered in order"):
            ledger.charge(msgspec.structs.replace(charge(2), number=wrong))
    assert Ledger([charge(7), charge(3)]).next_number == 8


def test_only_charges_of_the_period_count() -> None:
    ledger = Ledger([charge(1, 3.0, at_ms=10), charge(2, 4.0, at_ms=20)])
    assert [ledger.spent(since).mu for since in (0, 10, 11, 20, 21)] == [5.0, 5.0, 4.0, 4.0, 0.0]


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("charge"),
            st.floats(0.01, 4.0),
            st.booleans(),
            st.integers(0, 4),
            st.sampled_from((0, 0, 0, 1, 2, 6)),
        ),
        st.tuples(st.just("return"), st.integers(0, 20)),
        st.tuples(st.just("spent"), st.integers(0, 5)),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(steps)
@example([("charge", 1.0, False, 4, 0), ("charge", 1.0, False, 1, 0), ("spent", 3)])  # a clock that went back
@example([("charge", 1.0, False, 0, 1), ("charge", 1.0, False, 0, 2), ("return", 0)])  # one client's, then another's
def test_what_is_spent_is_what_a_ledger_that_adds_up_afresh_says(done: list[tuple]) -> None:
    """The running total follows charges of both kinds and of some clients alone, returns, and clocks that go back."""
    ledger, people = Ledger(), [bytes((number,)) * 16 for number in range(3)]
    for what, *arguments in done:
        if what == "charge":
            amount, pure, at_ms, chosen = arguments
            clients = tuple(one for place, one in enumerate(people) if chosen >> place & 1)
            made = report(1, amount) if pure else charge(1, amount)
            number = ledger.next_number
            ledger.charge(msgspec.structs.replace(
                made, round_id=bytes((number,)) * 16, number=number, at_ms=at_ms, clients=clients))  # fmt: skip
        elif what == "return":
            open_ones = [one for one in ledger.charges if not one.returned]
            if open_ones:
                ledger.give_back(open_ones[arguments[0] % len(open_ones)].round_id)
        for since_ms in (0, arguments[0]) if what == "spent" else (0,):
            assert_same(ledger.spent(since_ms), Ledger(ledger.charges).spent(since_ms))
            counted = [one for one in ledger.charges if not one.returned and one.at_ms >= since_ms]
            assert_same(
                ledger.spent(since_ms),
                max_client_cost(CostToClients(one.cost, frozenset(one.clients)) for one in counted),
            )


def assert_same(found: PrivacyCost, expected: PrivacyCost) -> None:
    for part in ("gaussian", "pure", "converted"):
        assert getattr(found, part) == pytest.approx(getattr(expected, part), rel=1e-12, abs=1e-15)


def test_a_charge_from_the_future_counts_after_a_clock_went_back() -> None:
    assert Ledger([charge(1, 3.0, at_ms=10**15)]).spent(since_ms=5).mu == 3.0


def test_a_returned_charge_costs_nothing_and_is_remembered() -> None:
    ledger = Ledger([charge(1), charge(2)])
    ledger.give_back(charge(1).round_id)
    assert ledger.spent().mu == 0.5
    assert charge(1).round_id in ledger
    assert bytes(16) not in ledger


def test_a_round_is_charged_once_and_returned_once() -> None:
    ledger = Ledger([charge(1)])
    with pytest.raises(RuntimeError, match="charged once"):
        ledger.charge(charge(1, 0.1))
    ledger.give_back(charge(1).round_id)
    with pytest.raises(RuntimeError, match="returned once"):
        ledger.give_back(charge(1).round_id)
    with pytest.raises(RuntimeError, match="charged once"):
        ledger.charge(charge(1, 0.1))


def test_an_optimised_interpreter_charges_once_too() -> None:
    """`python -O` strips assertions; a charge that is written over would be spent twice."""
    program = (
        "from dca_proto.protocol.ledger import Charge, Ledger\n"
        "charge = Charge(bytes(16), 'sum', bytes(16), 0.5, 1.0, 1e-6, 0, 1)\n"
        "Ledger([charge]).charge(charge)"
    )
    ran = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "a round is charged once" in ran.stderr


def test_many_small_charges_do_not_get_lost_in_rounding() -> None:
    small = [Charge(index.to_bytes(16, "big"), "s", b"", 1e-9, 1.0, 1e-6, 0, index + 1) for index in range(10_000)]
    ledger = Ledger(small)
    ledger.charge(msgspec.structs.replace(charge(255, 1.0), number=ledger.next_number))
    assert ledger.spent().mu == math.sqrt(math.fsum([1.0, *[1e-18] * 10_000]))


def test_a_charge_of_a_standing_job_takes_little_memory() -> None:
    """A year of rounds each minute has 525,600 charges. Equal values are kept once."""
    terms = ("a mean", bytes(16), 0.12, 0.5, 1e-6)
    stored = [encode(Charge(number.to_bytes(16), *terms, 1 << 40, number)) for number in range(1, 4001)]
    tracemalloc.start()
    ledger = Ledger()
    try:
        for one in stored:
            ledger.charge(msgspec.msgpack.decode(one, type=Charge))
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown / len(stored) < 500
    assert ledger.spent() == Ledger(ledger.charges).spent()
