"""Samplers of distributed regression leave the right posterior invariant, and wrong ones are caught.

Geweke's joint-distribution tests (`papers.mcmc2023.joint`): thousands of short chains start at draws
of the joint distribution and must end at it. Seeds are fixed. Over random seeds a right sampler would fail with a
probability of at most 1e-4 (Bonferroni over its test functions and tests), so one of the samplers here with one of at
most 4e-4. `python scripts/papers check_samplers` is the longer form, with more chains, sizes and noises.

One compilation serves a sampler and all its planted errors: parts of it are patched so that a number that the compiled
function is given decides which error is there, and 0 is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from inference.models.linear.nodes import model as node_model
from papers.mcmc2023.joint import FALSE_ALARM, STILL, Verdict, compared, successive, variant, verdict
from papers.mcmc2023.sampler_checks import SAMPLERS, Regime
from papers.mcmc2023.samplers import fixed_s, kernel, normal_x

SMALL = Regime(2, (30, 50), 1.0)
CHAINS, STEPS = 1500, 12

DEGREES, PROPOSAL, JACOBIAN, NO_NOISE, PRIOR_MEAN, NOISE, MEAN, ROWS = range(1, 9)
ERRORS = {
    "normal-x": {
        "Σ_x without the degrees of freedom of its prior": DEGREES,
        "S without the determinants' part of the proposals": PROPOSAL,
        "σ_y² with a prior of exponent -a in place of -(a + 1)": JACOBIAN,
        "θ as if z had no noise": NO_NOISE,
        "θ with a prior about zero": PRIOR_MEAN,
        "S with a tenth of its noise": NOISE,
    },
    "normal": {
        "a density without the Jacobian of its logarithms": JACOBIAN,
        "Σ_x with three degrees of freedom too few in its prior": DEGREES,
        "θ as if z had no noise": NO_NOISE,
        "θ with a prior about zero": PRIOR_MEAN,
        "S with a tenth of its noise": NOISE,
    },
    "fixed-s": {
        "σ_y² with a prior of exponent -a in place of -(a + 1)": JACOBIAN,
        "θ with a prior about zero": PRIOR_MEAN,
    },
    "normal, with a constant": {
        "the mean of the features as if from a quarter of its prior rows": MEAN,
        "rows without what their number does to their scatter's density": ROWS,
        "θ with a prior about zero": PRIOR_MEAN,
    },
}


PLANTED = [
    pytest.param(sampler, error, id=f"{sampler}: {name}")
    for sampler, errors in ERRORS.items()
    for name, error in errors.items()
]
Judge = Callable[[str, int], Verdict]


def if_planted(error: int, wrong: Any, right: Any) -> Any:
    return jnp.where(variant() == error, wrong, right)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Of a sampler with an error planted: both simulators compared."""
    compiled: dict[str, Any] = {}

    def judged(sampler: str, error: int) -> Verdict:
        if sampler not in compiled:
            subject = SAMPLERS[sampler](SMALL)
            compiled[sampler] = subject, successive(subject)
        return verdict(*compiled[sampler], chains=CHAINS, steps=STEPS, seed=1, variant=error)

    with pytest.MonkeyPatch.context() as patch:
        plant_in_walk(patch)
        plant_in_normal_x(patch)
        plant_in_nuts(patch)
        plant_in_fixed_s(patch)
        yield judged


def plant_in_walk(patch: pytest.MonkeyPatch) -> None:
    right = kernel.log_prior

    def log_prior(sigma_y2: Any, prior: Any) -> Any:
        return right(sigma_y2, prior._replace(a=prior.a - if_planted(JACOBIAN, 1.0, 0.0)))

    patch.setattr(kernel, "log_prior", log_prior)


def plant_in_normal_x(patch: pytest.MonkeyPatch) -> None:
    degrees, ratio, update = normal_x._degrees, normal_x.log_ratio, normal_x.update_theta

    def wrong_degrees(observed: Any, prior: Any) -> Any:
        return degrees(observed, prior) - if_planted(DEGREES, prior.kappa, 0.0)

    def wrong_ratio(state: Any, proposed: Any, B: Any, observed: Any) -> Any:
        growth = 2 * jnp.log(jnp.diagonal(B, axis1=-2, axis2=-1)).sum(axis=-1)
        missing = if_planted(PROPOSAL, (state.theta.size + 1) / 2, 0.0)
        variance = if_planted(NOISE, 0.1, 1.0) * observed.variance_S
        return ratio(state, proposed, B, observed._replace(variance_S=variance)) - missing * growth

    def wrong_update(noise: Any, state: Any, observed: Any, prior: Any) -> Any:
        V = state.K @ jnp.swapaxes(state.K, -1, -2)
        V -= if_planted(NO_NOISE, 1.0, 0.0) * observed.variance_z[:, None, None] * jnp.eye(state.theta.size)
        prior = prior._replace(m=if_planted(PRIOR_MEAN, 0.0, prior.m))
        return update(noise, state._replace(K=jnp.linalg.cholesky(V)), observed, prior)

    patch.setattr(normal_x, "_degrees", wrong_degrees)
    patch.setattr(normal_x, "log_ratio", wrong_ratio)
    patch.setattr(normal_x, "update_theta", wrong_update)


def plant_in_nuts(patch: pytest.MonkeyPatch) -> None:
    called, root, marginal = node_model.NodeRegression.__call__, node_model.NodeRegression._root, node_model.marginal
    gammaln = node_model.gammaln

    def wrong_call(self: Any, data: Any) -> None:
        observed, prior = data["observed"], data["prior"]
        observed = observed._replace(variance_S=if_planted(NOISE, 0.1, 1.0) * observed.variance_S)
        prior = prior._replace(kappa=prior.kappa - if_planted(DEGREES, 3.0, 0.0))
        called(self, {**data, "observed": observed, "prior": prior})

    def wrong_root(self: Any, frame: Any, prior: Any, k: Any, D: int) -> Any:
        i, j = node_model.terms(D, constant=self.constant)
        numpyro.factor("planted", if_planted(JACOBIAN, 1.0, 0.0) * jnp.where(i == j, k, 0.0).sum())
        rows = dataclasses.replace(self, prior_rows=if_planted(MEAN, 0.25, 1.0) * self.prior_rows)
        return root(rows, frame, prior, k, D)

    def wrong_marginal(S: Any, sigma_y2: Any, observed: Any, prior: Any) -> Any:
        observed = observed._replace(variance_z=if_planted(NO_NOISE, 0.01, 1.0) * observed.variance_z)
        return marginal(S, sigma_y2, observed, prior._replace(m=if_planted(PRIOR_MEAN, 0.0, prior.m)))

    patch.setattr(node_model.NodeRegression, "__call__", wrong_call)
    patch.setattr(node_model.NodeRegression, "_root", wrong_root)
    patch.setattr(node_model, "marginal", wrong_marginal)
    patch.setattr(node_model, "gammaln", lambda x: if_planted(ROWS, 0.0, gammaln(x)))


def plant_in_fixed_s(patch: pytest.MonkeyPatch) -> None:
    right = fixed_s._update_theta

    def update(noise: Any, state: Any, observed: Any, prior: Any) -> Any:
        return right(noise, state, observed, prior._replace(m=if_planted(PRIOR_MEAN, 0.0, prior.m)))

    patch.setattr(fixed_s, "_update_theta", update)


@pytest.mark.long
@pytest.mark.parametrize("sampler", ERRORS)
def test_a_step_preserves_the_joint_distribution(judge: Judge, sampler: str) -> None:
    found = judge(sampler, 0)
    assert found.alarm > FALSE_ALARM, found.worst
    assert not found.still
    assert found.holds


@pytest.mark.long
@pytest.mark.parametrize(("sampler", "error"), PLANTED)
def test_an_error_in_one_update_is_found(judge: Judge, sampler: str, error: int) -> None:
    found = judge(sampler, error)
    assert found.alarm < FALSE_ALARM
    assert not found.holds


def test_independent_draws_of_one_law_fail_each_test_at_its_nominal_rate() -> None:
    """By a binomial bound: 200 comparisons, P(more than 23 of p < 0.05) < 1e-4 for each of three tests."""
    rng = np.random.default_rng(2)
    found = [compared(*rng.standard_normal((2, 500)), rng.standard_normal(2000))[0] for _ in range(200)]
    for test in ("location", "spread", "law"):
        assert sum(one[test] < 0.05 for one in found) <= 23


def test_standing_still_and_leaving_the_domain_are_no_passes() -> None:
    rng = np.random.default_rng(3)
    start, reference = rng.standard_normal(500), rng.standard_normal(2000)
    p, memory = compared(start, start, reference)
    assert min(p.values()) > FALSE_ALARM
    assert memory > 1 - 1e-9
    assert not Verdict({("θ", test): value for test, value in p.items()}, {"θ": memory}, {"θ": STILL + 0.1}, {}).holds
    lost = np.where(np.arange(500) == 7, np.nan, start)
    assert compared(start, lost, reference)[0] == {"finite": 0.0}
