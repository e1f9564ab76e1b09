"""The law of what leaves a client in a report round: the bytes of real actors against exact probabilities.

A report is the mechanism's, through the client's own path: its row, its contribution, 32 fresh bytes, the sealed
message. Keys are seeded, so that a test that passes keeps passing.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from reporters import Reporters, reported
from round_helpers import results
from scipy import stats

from dca_proto.privacy.local import RandomisedResponse, UnaryEncoding
from dca_proto.privacy.mechanism import ANALYTIC_GAUSSIAN, GRID_LAPLACE, RANDOMISED_RESPONSE, UNARY_ENCODING
from dca_proto.protocol.trainer.round import RELEASES
from dca_proto.protocol.wire.codec import body_of
from dca_proto.protocol.wire.messages import Release, Signed


def report_counts(mechanism: str, value: float | None, epsilon: float, categories: int, clients: int) -> Counter[bytes]:
    """What real client actors that hold the same value send, as the trainer unseals and keeps it."""
    actors = Reporters(mechanism, [value] * clients, categories, name=f"{mechanism}-{value}".lower())
    network = reported(actors, epsilon=epsilon)
    assert len(results(network)) == 1
    store = network.stores[actors.trainer_identity.id]
    frames = [msgspec.msgpack.decode(kept, type=Signed) for (table, _), kept in store.items() if table == RELEASES]
    bodies = [body_of(frame, Release) for frame in frames]
    assert [body.rows for body in bodies] == [1] * clients
    return Counter(body.vector for body in bodies)


def law(mechanism: str, value: float | None, epsilon: float, categories: int) -> dict[bytes, float]:
    """The exact probability of each possible report; of none but those that a device can send."""
    own = None if value is None or math.isnan(value) else int(value)
    if mechanism == RANDOMISED_RESPONSE:
        p, q = map(float, RandomisedResponse(epsilon, categories).probabilities)
        odds = {place: 1 / categories if own is None else p if place == own else q for place in range(categories)}
        return {place.to_bytes(4, "little"): chance for place, chance in odds.items()}
    p, q = map(float, UnaryEncoding(epsilon, categories).probabilities)
    found = {}
    for bits in itertools.product([0, 1], repeat=categories):
        ones = [p if place == own else q for place in range(categories)]
        packed = sum(bit << place for place, bit in enumerate(bits))
        found[bytes([packed])] = math.prod(one if bit else 1 - one for bit, one in zip(bits, ones, strict=True))
    return found


@pytest.mark.long
@pytest.mark.parametrize("mechanism", [RANDOMISED_RESPONSE, UNARY_ENCODING])
def test_reports_have_their_exact_law_and_the_ratio_is_bounded_also_for_a_missing_value(mechanism: str) -> None:
    """χ² of 400 actors' bytes for each of the three categories, a NaN and no row; then every ratio of the laws.

    False alarms: 1e-4 for each of the five tests of a mechanism, 1e-3 in all.
    """
    epsilon, k, clients = 1.0, 3, 400
    laws = {}
    for value in (0, 1, 2, math.nan, None):
        counts, exact = report_counts(mechanism, value, epsilon, k, clients), law(mechanism, value, epsilon, k)
        assert sum(exact.values()) == pytest.approx(1)
        assert set(counts) <= set(exact), "nothing but what the mechanism can give"
        seen = [counts[report] for report in exact]
        assert stats.chisquare(seen, clients * np.array(list(exact.values()))).pvalue > 1e-4, value
        laws[str(value)] = exact
    for one, other in itertools.permutations(laws.values(), 2):
        assert max(one[report] / other[report] for report in one) <= math.exp(epsilon) * (1 + 1e-12)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", [ANALYTIC_GAUSSIAN, GRID_LAPLACE])
def test_a_clients_vector_carries_the_stated_noise_and_no_row_is_zero(mechanism: str) -> None:
    """Mean and variance of 300 actors' reports within 4.5 standard errors (kurtosis at most 6), with a row and without.

    False alarms: 7e-6 for each of the four figures of a mechanism.
    """
    for value, mean in ((4, 1.0), (None, 0.0)):
        actors = Reporters(mechanism, [value] * 300, name=f"{mechanism}-{value}".lower())
        (result,) = results(reported(actors))
        noise, variance = result.reports.values[:, 0] - mean, result.noise_variance / 300
        assert abs(noise.mean()) < 4.5 * math.sqrt(variance / 300)
        assert abs(np.square(noise).mean() / variance - 1) < 4.5 * math.sqrt(5 / 300)
