"""Trials of verified sums: the reference by hand, honest rounds, and each false proof."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from trial_helpers import check_trial, small

from dca_proto.protocol.facts import RoundCompleted
from emulator import verified
from emulator.trials import false_proofs
from emulator.trials.scenario import Adversary, Population

LIAR = (Adversary(kind="false-proof", actor="client 1"),)
PASSES = 2
"""The place of the false proof that is none in a sum: the largest number within the bounds."""


def test_the_reference_decodes_words_that_were_written_by_hand() -> None:
    """x from -3 to 3 is x + 3 on 0..6: three bits with the weights 1, 2, 3. One noise number of two bits."""
    statement = verified.Statement((-3,), (6,), 0, 1, 2)
    assert verified.weights_of(6).tolist() == [1, 2, 3]
    assert (statement.bits, statement.words) == (5, 5 + 4 + 6 + 7), "6 divides P - 1, and 5 does not"
    assert (statement.mean, statement.variance) == (1.5, 1.25)
    words = np.array([[0, 1, 1, 1, 0], [1, 0, 0, 0, 1]])  # 5 and 1; the noise numbers 1 and 2
    coins = np.array([[0, 0], [1, 1]])  # 2 becomes 1
    total = verified.summed(statement, words, coins)
    assert total.tolist() == [5 + 1 + 1 + 1]
    assert verified.value_of(statement, total, 2, 1).tolist() == [(8 - 2 * 3 - 2 * 1.5) / 2]
    assert verified.is_proven(statement, words[0])
    assert not verified.is_proven(statement, np.array([0, 2, 0, 0, 0]))


def test_shares_add_up_whatever_the_coins_flip() -> None:
    statement = verified.Statement((0, 0), (4, 4), 4, 2, 1)
    bits = np.array([[1, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1]])
    assert statement.bits == bits.shape[1]
    share = np.arange(10, 10 + bits.shape[1])[np.newaxis]
    coins = np.array([[1, 0, 1, 1]])
    parts = [
        verified.summed(statement, (bits - share) % verified.PRIME, coins, adds_coins=True),
        verified.summed(statement, share, coins, adds_coins=False),
    ]
    assert (sum(parts) % verified.PRIME).tolist() == verified.summed(statement, bits, coins).tolist()


def test_one_dither_rounds_all_coordinates() -> None:
    statement, value = verified.Statement((0, 0), (9, 9), 0, 1, 1), np.array([4 * 3 + 1, 4 * 5 + 2])
    found = {tuple(verified.rounded(statement, value, dither, 2).tolist()) for dither in range(4)}
    assert found == {(3, 5), (3, 6), (4, 6)}
    assert all(verified.is_rounded(statement, value, np.array(numbers), 2) for numbers in found)
    assert not verified.is_rounded(statement, value, np.array([4, 5]), 2)
    assert not verified.is_rounded(statement, value, np.array([5, 6]), 2)


@pytest.mark.parametrize("noise", [True, False])
def test_a_trial_of_verified_sums_breaks_nothing(noise: bool) -> None:
    bins = Population(clients=5, computes=2, statistic="histogram", dimension=2)
    scenario = small(verified=True, noise=noise, rows_max=1, count=2)
    world, outcome = check_trial(msgspec.structs.replace(scenario, population=bins))
    assert [log.ended.aggregate.verified for log in world.rounds] == [True] * 3
    assert {one.number: one.checked for one in outcome.invariants}[3] >= 100


@pytest.mark.parametrize("place", range(len(false_proofs.FALSE_PROOFS)))
def test_a_false_proof_never_counts(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_proofs, "FALSE_PROOFS", false_proofs.FALSE_PROOFS[place : place + 1])
    world, _ = check_trial(small(verified=True, adversaries=LIAR, clients=6, tolerate=2))
    ended = world.rounds[0].ended
    assert isinstance(ended, RoundCompleted)
    assert (ended.aggregate.contributors == 6) is (place == PASSES)
