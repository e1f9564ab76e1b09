"""Fast inexact noise: the right size, only where an emulator asks for it, and no claim anywhere about what it made."""

from __future__ import annotations

import io
import json
import math
import re
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli import trainer
from dca_proto.cli.reporter import Reporter
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian, Mechanism
from dca_proto.protocol import facts
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.params import Limits
from dca_proto.protocol.play import play
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.validation import validate_announcement
from dca_proto.results.round import round_of
from dca_proto.runtime import config
from dca_proto.runtime.request import RoundSettings, open_round
from dca_proto.testing import Network, NoNoise, TestFederation, seeded
from emulator.ideal import IdealSwarm, noisy_sum
from emulator.inexact import RoundedGaussian
from inference.datasets import diabetes
from inference.models.linear.job import regression_with_projection
from inference.rounds import run

NOW_MS = 1_700_000_000_000
CLAIM = re.compile(r"(epsilon|delta|\bmu\b|ε|δ|μ)\W{0,4}[\d.]", re.IGNORECASE)


def ideal(mechanism: Mechanism, name: str = "ideal", clients: int = 20, **changes: Any) -> NoisyAggregate:
    actors = TestFederation(clients, 3, name=name)
    round_request = actors.request(**{"epsilon": 1.25, "delta": 1e-6, **changes})
    return noisy_sum(round_request, actors.rows, actors.columns, frozenset(), seeded(f"{name}/noise"), mechanism)


# The noise.


@pytest.mark.parametrize("variance", [64, 10**4, 2**48, 2**80])
def test_its_mean_and_variance(variance: int) -> None:
    """200,000 samples, each moment within 4 standard errors, and Kolmogorov-Smirnov against the normal where the grid
    is fine. False alarm: 2.3e-4 for each variance."""
    samples = RoundedGaussian().sample(variance, 200_000, bytes(32))
    assert samples.dtype == np.int64
    z = samples / math.sqrt(variance + 1 / 12)
    assert abs(z.mean()) < 4 / math.sqrt(samples.size)
    assert abs(np.square(z).mean() - 1) < 4 * math.sqrt(2 / samples.size)
    if variance > 10**4:
        assert stats.kstest(z, "norm").pvalue > 1e-4


def test_its_shares_have_the_exact_mechanisms_variance() -> None:
    exact, fast = DistributedDiscreteGaussian(), RoundedGaussian()
    for arguments in ((1e6, 0.3, 10, 4), (2.0**24, 1.0, 1, 1000)):
        assert fast.share_variance(*arguments) == exact.share_variance(*arguments)


def test_the_same_key_gives_the_same_noise_and_another_key_other_noise() -> None:
    one, keys = RoundedGaussian(), [bytes([index]) * 32 for index in range(2)]
    assert np.array_equal(one.sample(100, 50, keys[0]), one.sample(100, 50, keys[0]))
    assert not np.array_equal(one.sample(100, 50, keys[0]), one.sample(100, 50, keys[1]))
    wide = one.sample(10**10, 50, keys[0])
    assert np.abs(one.sample(4 * 10**10, 50, keys[0]) - 2 * wide).max() <= 1, "the same normals, scaled and rounded"


# In an emulation.


def test_the_ideal_functionality_accepts_it_and_marks_the_result() -> None:
    exact, fast = ideal(DistributedDiscreteGaussian()), ideal(RoundedGaussian())
    assert (exact.private, exact.mechanism) == (True, "distributed-discrete-gaussian")
    assert (fast.private, fast.mechanism) == (False, "rounded-gaussian-not-private")
    assert fast.noise_variance == exact.noise_variance
    assert fast.value != exact.value


def test_its_sums_have_the_stated_noise() -> None:
    """300 seeded rounds; mean and variance within 4 standard errors. False alarm: 2e-4."""
    results = [ideal(RoundedGaussian(), f"number-{number}") for number in range(300)]
    z = np.array([one.value[0] - 10 for one in results]) / math.sqrt(results[0].noise_variance)
    assert abs(z.mean()) < 4 / math.sqrt(300)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / 300)


def test_a_mechanism_that_draws_only_one_at_a_time_will_do() -> None:
    assert ideal(NoNoise()).value.tolist() == [10.0]


def test_a_job_with_inexact_noise_is_not_private() -> None:
    problem = diabetes()
    schema, rows = problem.schema, problem.rows[:200, None, :]
    terms = JobTerms(epsilon=2.0, delta=1e-5, clients=200, tolerate=20, computes=(b"a" * 16, b"b" * 16))
    results = []
    for mechanism in (RoundedGaussian(), DistributedDiscreteGaussian()):
        job = regression_with_projection(schema)
        absent = [frozenset({1}), frozenset({2})]
        swarm = IdealSwarm(rows, schema.columns, terms, absent=absent, random=seeded("job"), mechanism=mechanism)
        results.append(run(job, swarm))
    assert [one.private for one in results] == [False, True]
    assert [one.contributors for one in results] == [199, 199]


def test_the_protocol_accepts_it_only_if_all_actors_use_it() -> None:
    actors = TestFederation(20, 3, mechanism=RoundedGaussian())
    computes, clients = [actors.compute(index) for index in range(3)], [actors.client(index) for index in range(20)]
    result = play(actors.trainer(), computes, clients, actors.request(), NOW_MS)
    assert (result.private, result.epsilon, result.delta, result.mu) == (False, None, None, None)
    assert abs(result.value[0] - 10) < 6 * math.sqrt(result.noise_variance)
    charged = clients[0].ledger.charges[0]
    assert charged.epsilon == 1.0, "a client's ledger counts the cost that was announced; no result repeats that figure"


# No claim.


def test_an_aggregate_that_is_not_private_has_no_privacy_figures() -> None:
    exact = ideal(DistributedDiscreteGaussian())
    assert (exact.epsilon, exact.delta) == (1.25, 1e-6)
    for fast in (ideal(RoundedGaussian()), replace(exact, private=False)):
        assert (fast.epsilon, fast.delta, fast.mu) == (None, None, None)
        assert not CLAIM.search(repr(fast))
        assert "1.25" not in repr(fast)
    assert CLAIM.search(repr(exact))


def test_programs_get_null() -> None:
    found = msgspec.to_builtins(round_of(ideal(RoundedGaussian()), alone=True))
    assert (found["private"], found["epsilon"], found["delta"]) == (False, None, None)
    text = json.dumps(found)
    assert not CLAIM.search(text)
    assert "1.25" not in text
    assert CLAIM.search(msgspec.json.encode(round_of(ideal(DistributedDiscreteGaussian()), alone=True)).decode())


def test_the_terminal_shows_that_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for mechanism in (RoundedGaussian(), DistributedDiscreteGaussian()):
        trainer._show(Console(width=100), ideal(mechanism))
        shown[mechanism.private] = capsys.readouterr().out
    assert "no privacy claim: the noise is not private" in shown[False]
    assert "estimate, not private" in shown[False]
    assert not CLAIM.search(shown[False])
    assert "epsilon 1.25" in shown[True]
    assert "private estimate" in shown[True]


def test_a_trainer_and_its_nodes_report_no_figure() -> None:
    """Every fact of a whole round, as sentences and as they print. (A client reports its ledger's charge.)"""
    actors, printed = TestFederation(20, 3, mechanism=RoundedGaussian()), io.StringIO()
    network = actors.network()
    network.command(actors.trainer_identity.id, actors.request(epsilon=1.25))
    network.advance(network.now_ms + 200_000)
    public_facts = [fact for actor, fact in network.facts if actor not in actors.clients]
    assert any(isinstance(fact, facts.RoundCompleted) for fact in public_facts)
    with Reporter(Console(file=printed, width=200), actors.federation.person_name_of) as reporter:
        for fact in public_facts:
            reporter(fact)
    assert "closed with 20 contributions" in printed.getvalue()
    assert not CLAIM.search(printed.getvalue())
    assert not any(CLAIM.search(repr(fact)) for fact in public_facts)


# Nobody gets it by accident.


def test_a_real_client_declines_it_by_its_name() -> None:
    fast, production, network = TestFederation(4, 3, mechanism=RoundedGaussian()), TestFederation(4, 3), Network()
    for index in range(3):
        network.add(Channel.COMPUTE, lambda records, index=index: production.compute(index, records))
    for index in range(4):
        network.add(Channel.CLIENT, lambda records, index=index: production.client(index, records))
    network.add(Channel.TRAINER, fast.trainer)
    network.command(fast.trainer_identity.id, fast.request())
    network.advance(network.now_ms + 1000)
    declined = [fact for actor, fact in network.facts if isinstance(fact, facts.Declined) and actor == fact.client]
    assert len(declined) == 4
    for fact in declined:
        assert "'rounded-gaussian-not-private' is not offered here; use 'distributed-discrete-gaussian'" in fact.found
    assert all(network.actors[client].ledger.charges == () for client in production.clients)


def test_an_exact_actors_plan_refuses_it_and_the_other_way_round() -> None:
    actors = TestFederation(4, 3)
    for offered, requested in ((DistributedDiscreteGaussian(), RoundedGaussian()), (RoundedGaussian(), NoNoise())):
        announcement = actors.request().announcement(bytes(16), (1, bytes(32)), requested, (), bytes(32), 0)
        with pytest.raises(UsageError, match=f"{requested.name}' is not offered here; use '{offered.name}'"):
            validate_announcement(announcement, offered, Limits())


def structs_of(kind: Any) -> Iterator[type]:
    """A struct type and all those in its fields."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in typing.get_type_hints(kind).values():
            yield from structs_of(field)
    for inner in typing.get_args(kind):
        yield from structs_of(inner)


def test_no_configuration_can_choose_it() -> None:
    """No field of an actor's file, wherever in it, speaks of noise; one speaks of reports' mechanisms, all exact."""
    kinds = set(structs_of(config.Config)) | {config.ClientFiles, config.ComputeFiles, config.NodeFiles}
    assert {Policy, RoundSettings} <= kinds
    fields = {(kind, field.name) for kind in kinds for field in msgspec.structs.fields(kind)}
    assert len(fields) > 30
    named = {(kind, name) for kind, name in fields if "mechanism" in name or "noise" in name}
    assert named == {(RoundSettings, "mechanism")}
    for inexact in (RoundedGaussian.name, NoNoise.name):
        settings = RoundSettings(statistic="mean", columns=("x",), bounds={"x": (0, 1)}, epsilon=1, mechanism=inexact)
        with pytest.raises(UsageError, match="needs kind"):
            open_round(settings, TestFederation(2, 2).federation)
