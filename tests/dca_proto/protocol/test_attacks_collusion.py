"""Attacks by those who work together: clients that give their noise away, Sybils, pooled Compute nodes.

All on rounds of the production actors. The sums have 400 coordinates with independent noise each, so that a handful of
rounds measures a variance. Random streams are seeded; "within 4 standard errors" has a false alarm of 6e-5.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from round_helpers import begin, failures, results, sent, until_the_end

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto import masks as core_masks
from dca_proto.crypto.fixedpoint import from_ring
from dca_proto.crypto.masks import TAG_BYTES
from dca_proto.errors import PeerError
from dca_proto.privacy import accounting
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian, Mechanism
from dca_proto.protocol import contribution
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import Declined
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.messages import Contribution
from dca_proto.testing import Network, TestFederation
from emulator.coalition.members import RecordingMechanism
from emulator.coalition.uniformity import byte_counts, byte_p_value

WIDTH = 400
COLUMNS = tuple(f"x{index}" for index in range(WIDTH))
QUESTION = {
    "parameters": {"columns": COLUMNS, "centre": [0.0] * WIDTH, "scale": [1.0] * WIDTH, "bound": [1.0] * WIDTH},
}
CLIENTS, TOLERATED = 6, 2  # n = N - T - 1 = 3 noises must suffice
VICTIM, CURIOUS = 0, 1
ROUNDS = 5
EASY = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=1000)


class Silent(DistributedDiscreteGaussian):
    """What a dishonest client may run: it claims to add noise, and adds none. Nobody can notice."""

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)


def wide_actors(name: str, clients: int = CLIENTS, policy: Policy = EASY) -> TestFederation:
    """Clients with known data on the grid in each of the 400 columns."""
    generator = np.random.default_rng(clients)
    rows = [generator.integers(-512, 513, (1, WIDTH)) / 512 for _ in range(clients)]
    return TestFederation(clients, 3, columns=COLUMNS, rows=rows, name=name, policy=policy)


def network_of(actors: TestFederation, crooked: Mapping[int, Mechanism], lost: Iterable[int] = ()) -> Network:
    """All actors, some clients with a mechanism of their own; the contributions of the `lost` ones never arrive."""
    network, silent = Network(), {actors.clients[index] for index in lost}

    def client(index: int, records: Iterable[tuple[str, bytes, bytes]]) -> Client:
        actors.mechanism = crooked.get(index, DistributedDiscreteGaussian())
        return actors.client(index, records)

    network.tamper = lambda one: [] if one.sender in silent and one.to.id in actors.computes else [one]
    for index in range(len(actors.computes)):
        network.add(Channel.COMPUTE, functools.partial(actors.compute, index))
    for index in range(len(actors.clients)):
        network.add(Channel.CLIENT, functools.partial(client, index))
    network.add(Channel.TRAINER, actors.trainer)
    return network


def left_over(
    actors: TestFederation, crooked: Mapping[int, Mechanism], lost: Iterable[int] = (), **changes: object
) -> tuple[NDArray[np.float64], NoisyAggregate]:
    """What is left of one round's sum when all data and the noise of the crooked clients are subtracted."""
    network, _ = begin(actors, network_of(actors, crooked, lost), **{"tolerate": TOLERATED, **QUESTION, **changes})
    until_the_end(network, 0.1)
    (result,) = results(network)
    data = sum(actors.rows[index][0] for index in range(len(actors.clients)) if index not in lost)
    known = sum(noise for one in crooked.values() if isinstance(one, RecordingMechanism) for noise in one.drawn)
    unit = result.sigma_local / np.sqrt(share_variance(result))
    return result.value - data - known * unit, result


def share_variance(result: NoisyAggregate) -> float:
    """S, in squared grid units of 2^-24."""
    return result.sigma_local**2 * 2.0**48


def floor_of(result: NoisyAggregate) -> float:
    """The variance that the claim needs, (Δ/μ)²."""
    return (result.sensitivity / result.mu) ** 2


def measured(residuals: NDArray[np.float64], variance: float) -> float:
    """How many standard errors their mean square is away from a variance."""
    return float((np.mean(residuals**2) / variance - 1) / np.sqrt(2 / residuals.size))


# 14: colluders omit or reveal their noise


@pytest.mark.parametrize("how", [Silent, RecordingMechanism])
def test_attack_14_t_colluders_without_noise_leave_the_floor(how: type[DistributedDiscreteGaussian]) -> None:
    """The curious client knows its own noise, and T others add none or give it theirs: N - T - 1 noises are left."""
    residuals = []
    for number in range(ROUNDS):
        crooked = {index: how() for index in range(CURIOUS + 1, CURIOUS + 1 + TOLERATED)} | {
            CURIOUS: RecordingMechanism()
        }
        residual, result = left_over(wide_actors(f"collude-{how.__name__}-{number}".lower()), crooked)
        residuals.append(residual)
    assert abs(measured(np.concatenate(residuals), floor_of(result))) < 4


def test_attack_14_with_drops_c_of_the_t_may_collude() -> None:
    """T - c drop and c collude with the curious one: the floor again. One more that drops, and nothing is released."""
    clients, tolerate, colluders = 8, 3, 1
    residuals = []
    for number in range(ROUNDS):
        actors = wide_actors(f"reserved-{number}", clients)
        crooked = {CURIOUS: RecordingMechanism(), CURIOUS + 1: RecordingMechanism()}
        residual, result = left_over(actors, crooked, lost=(6, 7), tolerate=tolerate, colluders=colluders)
        residuals.append(residual)
    assert abs(measured(np.concatenate(residuals), floor_of(result))) < 4
    actors = wide_actors("reserved-too-few", clients)
    network = network_of(actors, {}, lost=(5, 6, 7))
    begin(actors, network, tolerate=tolerate, colluders=colluders, **QUESTION)
    until_the_end(network)
    assert results(network) == []
    assert (failures(network)[0].contributors, failures(network)[0].needed) == (5, 6)


def test_attack_14_one_colluder_more_is_a_documented_break() -> None:
    """T + 1 beside the curious one leave n - 1 = 2 of 3 noises; the test above would see it (10 standard errors)."""
    residuals = []
    for number in range(ROUNDS):
        crooked = {index: RecordingMechanism() for index in range(CURIOUS, CURIOUS + 2 + TOLERATED)}
        residual, result = left_over(wide_actors(f"too-many-{number}"), crooked)
        residuals.append(residual)
    assert abs(measured(np.concatenate(residuals), floor_of(result) * 2 / 3)) < 4
    assert measured(np.concatenate(residuals), floor_of(result)) < -6


# 5: one honest client among Sybils; overlapping cohorts


@pytest.mark.parametrize(
    ("policy", "reason"),
    [({"clients_min": 6}, "clients"), ({"honest_min": 3}, "honest"), ({"colluders_min": 2}, "colluders")],
)
def test_attack_5_a_client_refuses_to_be_singled_out(policy: dict[str, int], reason: str) -> None:
    """With two others only, or with none reserved for colluders, its own floors decline, uncharged."""
    actors = wide_actors("single", policy=msgspec.structs.replace(EASY, **policy))
    network = actors.network()
    network.down |= set(actors.clients[3:])
    begin(actors, network, tolerate=1, clients=3, **QUESTION)
    until_the_end(network)
    assert reason in {fact.reason for fact in network.reported(Declined, actors.clients[VICTIM])}
    assert results(network) == []
    assert network.actors[actors.clients[VICTIM]].ledger.charges == ()


def test_attack_5_a_sybil_needs_a_certificate_of_the_federation() -> None:
    """Whoever is not enrolled joins nothing: the trainer cannot make clients up, only the enrolment key can."""
    actors, others = wide_actors("enrolled"), wide_actors("others")
    assert actors.federation.id != others.federation.id
    with pytest.raises(PeerError):
        actors.federation.check_certificate(others.certificate(0), 0)


def test_attack_5_all_others_sybils_is_a_documented_break() -> None:
    """If everyone else reveals its noise, only a client's own share hides it: 1/(N - T - 1) of the floor. The cost
    is then known: μ grows by √(N - T - 1), and the client's floors on N and N - T - 1 do not help."""
    residuals = []
    for number in range(ROUNDS):
        crooked = {index: RecordingMechanism() for index in range(1, CLIENTS)}
        residual, result = left_over(wide_actors(f"sybils-{number}"), crooked)
        residuals.append(residual)
    assert abs(measured(np.concatenate(residuals), floor_of(result) / (CLIENTS - TOLERATED - 1))) < 4
    assert abs(measured(np.concatenate(residuals), result.sigma_local**2)) < 4


def test_attack_5_overlapping_cohorts_are_charged_to_everyone_in_them() -> None:
    """Rounds over different subsets compose like any others: a client in all of them pays for all and then declines."""
    policy = Policy(
        clients_min=1, honest_min=1, epsilon_per_round_max=20, epsilon_per_period_max=2.0, delta_max=1e-6
    )  # of ε = 1 at δ = 1e-6, exact composition has room for 3.59 rounds
    actors = wide_actors("cohorts", policy=policy)
    network, mu = actors.network(), accounting.mu_of(1.0, 1e-6)
    for left_out in (3, 4, 5):
        network.down = {actors.clients[left_out]}
        begin(actors, network, tolerate=1, clients=CLIENTS - 1, **QUESTION)
    assert len(results(network)) == 3
    ledgers = [network.actors[client].ledger for client in actors.clients]
    assert [len(ledger.charges) for ledger in ledgers] == [3, 3, 3, 2, 2, 2]
    assert ledgers[VICTIM].spent().mu == pytest.approx(3**0.5 * mu)
    network.down = set()
    begin(actors, network, tolerate=1, **QUESTION)
    assert "budget" in {fact.reason for fact in network.reported(Declined, actors.clients[VICTIM])}
    assert len(ledgers[VICTIM].charges) == 3


def test_attack_5_the_difference_of_overlapping_cohorts_carries_the_noise_of_both() -> None:
    """Everybody but the victim is in both rounds, with the same data: its values show through N + (N - 1) noises."""
    residuals = []
    for number in range(ROUNDS):
        actors = wide_actors(f"difference-{number}")
        network, _ = begin(actors, tolerate=TOLERATED, **QUESTION)
        network.down = {actors.clients[VICTIM]}
        begin(actors, network, tolerate=TOLERATED - 1, clients=CLIENTS - 1, **QUESTION)
        first, second = results(network)
        residuals.append(first.value - second.value - actors.rows[VICTIM][0])
    assert (first.contributors, second.contributors) == (CLIENTS, CLIENTS - 1)
    assert abs(measured(np.concatenate(residuals), first.noise_variance + second.noise_variance)) < 4
    assert first.noise_variance + second.noise_variance > 2 * floor_of(first)


# 19: a coordinate that one client alone sets


def test_attack_19_a_coordinate_that_one_client_alone_sets_carries_full_noise() -> None:
    """Half of the columns are zero but for the victim's. Noise is drawn for every coordinate, whoever has data there:
    each client's vector has no gap, and in the sum both halves have the variance of N noises."""
    alone, shared = [], []
    for number in range(ROUNDS):
        actors = wide_actors(f"alone-{number}")
        for index in range(1, CLIENTS):
            actors.rows[index][:, : WIDTH // 2] = 0
        spies = {index: RecordingMechanism() for index in range(CLIENTS)}
        _, result = left_over(actors, spies)
        drawn = np.array([noise for spy in spies.values() for noise in spy.drawn])
        assert drawn.shape == (CLIENTS, WIDTH)
        assert np.count_nonzero(drawn) > 0.999 * drawn.size
        noise = result.value - sum(row[0] for row in actors.rows)
        alone.append(noise[: WIDTH // 2])
        shared.append(noise[WIDTH // 2 :])
    assert abs(measured(np.concatenate(alone), result.noise_variance)) < 4
    assert abs(measured(np.concatenate(shared), result.noise_variance)) < 4
    assert result.noise_variance > floor_of(result)


# 27: M - 1 Compute nodes pool all they have


def small_pads(draws: Iterable[int]) -> Callable[..., NDArray[np.uint64]]:
    """In place of the PRF: tags of zeros, and the numbers as the masks; the small ring's stand-in."""
    return lambda *_: np.array([(0, one) for one in draws], dtype=np.uint64)


@pytest.mark.long
def test_attack_27_any_two_of_three_masks_leave_the_value_independent_in_a_small_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it, in the ring of 2^4: for each value, the production masking with every triple of masks. Reduction
    modulo 16 respects sums. Who holds y and two of the three masks sees each view equally often, for every value."""
    for value in range(16):
        views: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(3)]
        for masks in itertools.product(range(16), repeat=3):
            monkeypatch.setattr(core_masks, "_pads", small_pads(masks))
            _, y = core_masks.masked(np.array([value], dtype=np.uint64), [b""] * 3, b"", b"")
            word = int.from_bytes(y, "little")
            assert (word + sum(masks)) % 16 == value
            for outside, seen in enumerate(views):
                seen[word % 16, *(mask for node, mask in enumerate(masks) if node != outside)] += 1
        for seen in views:
            assert len(seen) == 16**3
            assert set(seen.values()) == {1}


@pytest.fixture
def masked_values(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """What each client masked, y, and the masks of all nodes, shape ``(M, d)``."""
    seen: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []

    def tapped(value: NDArray[np.uint64], keys: list[bytes], ah: bytes, entry: bytes) -> tuple[bytes, bytes]:
        pads = [np.frombuffer(core_masks.tag_and_mask(key, ah, entry, value.size)[TAG_BYTES:], "<u8") for key in keys]
        tags, y = core_masks.masked(value, keys, ah, entry)
        seen.append((np.frombuffer(y, "<u8"), np.array(pads)))
        return tags, y

    monkeypatch.setattr(contribution, "masked", tapped)
    return seen


def test_attack_27_all_nodes_but_one_see_nothing_of_a_real_round(
    masked_values: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]],
) -> None:
    """y plus the masks of two of three nodes, of 6 clients in 5 rounds, and their sum: six seeded χ² tests at 1e-5."""
    for number in range(ROUNDS):
        begin(wide_actors(f"pooled-{number}"), tolerate=TOLERATED, **QUESTION)
    assert len(masked_values) == ROUNDS * CLIENTS
    for outside in range(3):
        pooled = np.array(
            [y + sum(mask for node, mask in enumerate(masks) if node != outside) for y, masks in masked_values]
        )
        for words in (pooled.reshape(-1), pooled.sum(axis=0, dtype=np.uint64)):
            assert byte_p_value(byte_counts(words)) > 1e-5


def test_attack_27_all_nodes_together_are_a_documented_break(
    masked_values: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]],
) -> None:
    """All M masks show one client's value with its own noise and nobody else's: 1/(n_min - 1 - c) of the floor."""
    residuals = []
    for number in range(ROUNDS):
        actors = wide_actors(f"all-{number}")
        network, _ = begin(actors, tolerate=TOLERATED, **QUESTION)
        (result,) = results(network)
        senders = [one.sender for one in sent(network, Contribution)]
        for sender, (y, masks) in zip(senders, masked_values[-CLIENTS:], strict=True):
            opened = from_ring(y + masks.sum(axis=0, dtype=np.uint64)) * 2.0**-24
            residuals.append(opened - actors.rows[actors.clients.index(sender)][0])
    assert abs(measured(np.concatenate(residuals), result.sigma_local**2)) < 4
    assert result.sigma_local**2 == pytest.approx(floor_of(result) / (CLIENTS - TOLERATED - 1), rel=1e-5)
