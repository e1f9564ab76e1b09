"""Ten million clients: noise and ring fit as PRIVACY.md states, computed here from its formulas and nothing else."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import CLIENTS_MAX, check_ring, ring_bits, share_variance
from dca_proto.protocol.params import MESSAGE_BYTES_MAX, Limits
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.testing import TestFederation

N = 10**7


def test_the_limits_are_ten_million() -> None:
    limits = Limits()
    assert N == CLIENTS_MAX == limits.clients_max == limits.sessions_max


@pytest.mark.parametrize("mu", [1e-4, 0.1, 1.0, 20.0])
@pytest.mark.parametrize(("bits", "colluders"), [(24, 0), (24, 10**6), (36, 0)])
def test_the_noise_of_ten_million_shares_is_enough_and_hardly_more(mu: float, bits: int, colluders: int) -> None:
    delta, honest = 2.0 * 2**bits, N - 1 - colluders
    variance = share_variance(delta, mu, honest, 10)
    needed = (Fraction(delta) / Fraction(mu)) ** 2
    assert needed + 9 <= variance * honest <= needed * Fraction(102, 100) + 9
    assert variance >= 64


@pytest.mark.parametrize(("bits", "mu"), [(14, 1.0), (18, 20.0)])
def test_coarser_grids_than_stated_are_refused(bits: int, mu: float) -> None:
    share_variance(2.0 * 2**bits, mu, N, 10)
    with pytest.raises(UsageError, match="more fraction bits"):
        share_variance(2.0 * 2 ** (bits - 1), mu, N, 10)


def test_the_ring_holds_the_sums_of_bounds_up_to_53_000_at_24_bits() -> None:
    delta = 2 * 53_000 * 2**24
    variance = share_variance(float(delta), 1.0, N - 10**6 - 1, 1000)
    check_ring(53_000 << 24, N, variance, 1000)
    assert ring_bits(53_000 << 24, N, variance, 1000) == 64
    with pytest.raises(UsageError, match="fewer fraction bits, or N of at most 9"):
        check_ring(56_000 << 24, N, variance, 1000)


def test_the_noise_at_the_smallest_mu_takes_37_bits() -> None:
    variance = share_variance(2.0 * 2**20, 1e-4, N - 1, 1)
    bound = math.sqrt(N * variance * 2 * math.log(2 * 2**40))
    assert 2**37 < bound < 2**38
    assert abs(ring_bits(0, N, variance, 1) - 1 - math.log2(bound)) < 1.01


@pytest.mark.parametrize(("computes", "clients"), [(3, 1_710_000), (17, 9_650_000)])
def test_a_round_whose_lists_no_message_holds_is_refused_by_its_trainer(computes: int, clients: int) -> None:
    actors = TestFederation(0, computes)

    def ask(number: int) -> None:
        request = actors.request(kind=SecureSum(clients=number, tolerate=number // 10))
        request.check(actors.federation, actors.mechanism, Limits(), actors.timing)

    fitting = computes * (MESSAGE_BYTES_MAX // 44 - 5000)
    ask(fitting)
    assert fitting < clients
    with pytest.raises(UsageError, match=rf"name at least {computes + 1} Compute nodes, or ask for fewer clients"):
        ask(clients)
    TestFederation(0, computes + 1).request(kind=SecureSum(clients=clients, tolerate=1)).check(
        TestFederation(0, computes + 1).federation, actors.mechanism, Limits(), actors.timing
    )
