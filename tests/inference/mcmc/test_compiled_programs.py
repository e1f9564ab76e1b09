"""What a sampler compiles: how much of the model's code is in its programs, and that options of XLA may be unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from inference.mcmc import nuts
from inference.mcmc.run import Options

pytestmark = pytest.mark.long
SITES = 7
traced: list[int] = []


def model(data: Any) -> None:
    """Many sites, and a likelihood that counts its traces."""
    total = sum(numpyro.sample(f"x{place}", dist.Normal(0, 1).expand([2])).sum() for place in range(SITES))
    traced.append(1)
    numpyro.factor("likelihood", -jnp.square(jnp.cos(total) - data["y"]))


@pytest.fixture
def program() -> Iterator[Any]:
    traced.clear()
    with jax.enable_x64(True):
        yield nuts._Program(model, 20)


def test_a_model_is_traced_once_for_its_gradient_and_compiled_once_in_each_program(program: Any) -> None:
    """The sampler sees one vector: a second model of as many sites would double its code otherwise."""
    data, chains = {"y": np.array(0.3)}, 3
    state, sites, finite = program.start(np.int64(0), np.arange(chains), np.zeros(chains, np.int64), data, {})
    assert np.asarray(finite).all()
    layout = tuple((name, array.shape[1:]) for name, array in sites.items())
    assert state.z.shape == (chains, 2 * SITES)
    before = len(traced)
    block = program.block.lower(state, data, 5, layout)
    assert len(traced) == before, "the block takes the gradient that the start has traced"
    assert block.as_text().count("stablehlo.cosine") <= 2


def test_a_start_that_is_given_is_near(program: Any) -> None:
    data = {"y": np.array(0.3)}
    start = {"x3": np.array([5.0, -5.0])}
    _, sites, _ = program.start(np.int64(0), np.arange(2), np.zeros(2, np.int64), data, start)
    assert np.abs(np.asarray(sites["x3"]) - [5.0, -5.0]).max() <= nuts.APART
    assert np.abs(np.asarray(sites["x0"])).max() <= nuts.APART
    other = program.start(np.int64(0), np.arange(2), np.array([0, 1]), data, start)[1]
    assert (np.asarray(other["x0"]) == np.asarray(sites["x0"])).all(axis=1).tolist() == [True, False]


def test_an_xla_without_these_options_compiles_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nuts, "options_of", lambda level: {"xla_no_such_option": level})
    nuts.compiler_options.cache_clear()
    assert nuts.compiler_options(0) is None
    nuts.compiler_options.cache_clear()
    monkeypatch.undo()
    assert nuts.compiler_options(0) is not None


def test_the_same_seed_gives_the_same_draws() -> None:
    first, second, other = (
        nuts.sample(model, {"y": 0.3}, Options(chains=2, warmup=20, draws=10, seed=seed)).draws["x0"]
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.any(first == other)


@pytest.mark.parametrize(
    ("least", "fewest", "most"), [(0, 2_000, 2_000), (750, 800, 800), (100, 200, 1_500)], ids=["never", "once", "later"]
)
def test_chains_end_at_a_multiple_of_the_least_draws_once_they_have_mixed(least: int, fewest: int, most: int) -> None:
    """Four chains of a normal number have enough effective draws after 800 each, not after the first block."""
    told: list[tuple[int, int]] = []
    options = Options(draws=2_000, warmup=200, least=least, on_progress=lambda done, total: told.append((done, total)))
    found = nuts.sample(lambda data: numpyro.sample("z", dist.Normal(data["y"], 1)), {"y": 0.3}, options)
    chains, kept = found.draws["z"].shape
    assert chains == 4
    assert fewest <= kept <= most
    assert found.sampling.acceptance.shape == (4,)
    assert told[-1] == (2_200, 2_200), "the bar is full"
