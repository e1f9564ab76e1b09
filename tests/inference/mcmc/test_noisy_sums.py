"""A NumPyro model over noisy sums: the law that it states, and its posterior beside a closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from exact_rounds import aggregate
from numpyro.infer.util import log_density
from scipy import stats

from dca_proto.aggregate import LocalReports, NoisyAggregate, RoundRequest
from dca_proto.jobs.job import JobTerms
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from emulator.ideal import IdealSwarm
from inference.errors import DataError
from inference.mcmc import NoisySums, observe, sample
from inference.posterior import Posterior

PARAMETERS = {"columns": ["x", "y"], "centre": [0.0, 0.0], "scale": [1.0, 1.0], "bound": [4.0, 4.0]}


def release(seed: int = 1, **changes: Any) -> NoisyAggregate:
    """A noisy sum of two columns over 50 clients."""
    value = np.random.default_rng(seed).normal(20, 5, 2)
    made = aggregate(value, 9.0, RoundRequest("sum", PARAMETERS), 50)
    return replace(made, round_id=bytes([seed]) * 16, **changes)


def test_sums_of_several_rounds_add_up_values_variances_and_clients() -> None:
    first, second = release(1), release(2)
    found = NoisySums.of([first, second])
    assert np.array_equal(found.value, first.value + second.value)
    assert np.array_equal(found.noise_variance, [18.0, 18.0])
    assert (found.n, found.statistic, found.parameters) == (100, "sum", PARAMETERS)
    assert found.attrs["contributors"] == 50
    assert found.attrs["n"] == 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no aggregate; give at least one"),
        ([release(1), release(1)], "aggregate 2 is aggregate 1 again"),
        ([release(1), release(2, statistic="mean")], "aggregate 2 has another statistic"),
        (
            [release(1), release(2, parameters={**PARAMETERS, "bound": [4.0, 5.0]})],
            "other parameters than the first",
        ),
        ([release(1, value=np.array([1.0, np.nan]))], "a sum is not finite"),
        (
            [release(1, reports=LocalReports(np.zeros(3), "randomised-response", 1.0, 0.0, 0.0, (0.7, 0.3), 2))],
            "aggregate 1 has categories reported by 'test'",
        ),
    ],
)
def test_incompatible_aggregates_are_refused(given: list[NoisyAggregate], message: str) -> None:
    with pytest.raises(DataError, match=message):
        NoisySums.of(given)


def test_all_kinds_of_rounds_become_sums_with_the_noise_that_they_carry() -> None:
    """Of the same 60 rows: the noise of LDP reports is by far the largest, and n always counts rows."""
    rows = np.random.default_rng(3).normal(0, 1, (60, 2))
    clients = JobTerms(epsilon=1, delta=1e-5, clients=60, tolerate=0, computes=(bytes(16), bytes([1]) * 16))
    nodes = JobTerms(epsilon=1, delta=1e-5, clients=3, tolerate=0, computes=())
    random = np.random.default_rng(4).bytes
    swarm = IdealSwarm(rows, ["x", "y"], clients, random=random)
    aggregates = [
        swarm.run_round(RoundRequest("sum", PARAMETERS)),
        IdealSwarm(np.split(rows, 3), ["x", "y"], nodes, random=random).run_round(
            RoundRequest("sum", PARAMETERS, rows_max=20, kind=NodeRelease())
        ),
        swarm.run_round(RoundRequest("sum", PARAMETERS, kind=LdpReport("analytic-gaussian"))),
    ]
    secure, node, local = (NoisySums.of(one) for one in aggregates)
    assert secure.n == node.n == local.n == 60
    assert node.noise_variance[0] == pytest.approx(3 * secure.noise_variance[0], rel=0.1)  # one noise for each node
    assert local.noise_variance[0] == pytest.approx(60 * secure.noise_variance[0], rel=0.1)
    for found in (secure, node, local):
        assert np.all(np.abs(found.value - rows.sum(axis=0)) < 6 * np.sqrt(found.noise_variance))  # false alarm 1e-8


def test_sums_in_other_units_and_parts_of_them() -> None:
    found = NoisySums.of(release())
    twice = found.scaled([2.0, 1.0])
    assert np.array_equal(twice.value, found.value * [2, 1])
    assert np.array_equal(twice.noise_variance, [36.0, 9.0])
    assert twice[1:].value == found.value[1:]
    assert np.array_equal(found.without_noise().noise_variance, [0, 0])
    with jax.enable_x64(True):
        leaves, tree = jax.tree.flatten(found)
        again = jax.tree.unflatten(tree, leaves)
    assert again.parameters == found.parameters
    assert hash(tree) == hash(
        jax.tree.structure(NoisySums.of(release(2)))
    )  # so that rounds of one shape share a compiled program


COVARIANCE = np.array([[2.0, 0.7], [0.7, 1.0]])
FACTOR = np.array([[1.0], [0.5]])


@pytest.mark.long
@pytest.mark.parametrize(
    ("covariance", "full"),
    [
        (COVARIANCE, COVARIANCE),
        (np.array([2.0, 1.0]), np.diag([2.0, 1.0])),
        ((np.array([1.0, 0.5]), FACTOR), np.diag([1.0, 0.5]) + FACTOR @ FACTOR.T),
    ],
    ids=["full", "diagonal", "low rank"],
)
@pytest.mark.parametrize("n", [None, 1])
def test_the_stated_law_is_normal_with_the_variances_of_sampling_and_noise(
    covariance: Any, full: np.ndarray, n: int | None
) -> None:
    sums, mean = NoisySums.of(release()), np.array([0.3, 0.5])
    count = 50 if n is None else n
    expected = stats.multivariate_normal(count * mean, count * full + 9 * np.eye(2)).logpdf(sums.value)
    with jax.enable_x64(True):
        found, _ = log_density(lambda: observe(sums, mean, covariance, n=n), (), {}, {})
    assert float(found) == pytest.approx(expected, rel=1e-12)


def average(data: dict[str, Any]) -> None:
    """Of the first column, standard deviation 2."""
    mean = numpyro.sample("mean", dist.Normal(0.0, data["prior_sd"]))
    numpyro.deterministic("doubled", 2 * mean)
    observe(data["sums"], mean[None], jnp.array([4.0]))


def closed_form(sums: NoisySums, prior_sd: float) -> tuple[float, float]:
    precision = 1 / prior_sd**2 + sums.n**2 / (sums.n * 4.0 + sums.noise_variance[0])
    return sums.n * sums.value[0] / (sums.n * 4.0 + sums.noise_variance[0]) / precision, precision**-0.5


def drawn(sums: NoisySums) -> Posterior:
    return sample(average, {"sums": sums, "prior_sd": 1.0}, warmup=300, draws=500)


@pytest.mark.long
def test_the_posterior_of_a_users_own_model_is_the_closed_form() -> None:
    """Limits at five standard errors of some 700 effective draws: false alarm below 1e-4."""
    sums = NoisySums.of(release(value=np.array([31.0, 0.0])))[:1]
    found = drawn(sums)
    mean, sd = closed_form(sums, 1.0)
    assert found.mean["mean"] == pytest.approx(mean, abs=5 * sd / 700**0.5)
    assert found.sd["mean"] == pytest.approx(sd, rel=5 / 1400**0.5)
    assert found.contraction["mean"] == pytest.approx(1 - sd**2, abs=0.03)
    assert found.draws["doubled"] == pytest.approx(2 * found.draws["mean"])
    assert found.prior["doubled"].std() == pytest.approx(2.0, rel=0.1)
    assert found.warnings == []
    assert (found.model, found.attrs["epsilon"], found.attrs["n"]) == ("average", 1.0, 50)
    with pytest.raises(DataError, match="model 'average' does not describe single clients"):
        found.new_clients()
    with pytest.raises(DataError, match="too few draws to say whether the chains have mixed"):
        sample(average, {"sums": sums, "prior_sd": 1.0}, warmup=300, draws=3)
    vague = drawn(replace(sums, noise_variance=np.array([1e12])))
    assert vague.contraction["mean"] == pytest.approx(0, abs=0.25)
    assert vague.warnings[0].startswith("nothing was learned: the posterior is nearly the prior")
