"""Models of sites: known meta-analyses and mixed models, the law of a noisy release, sites that drop out, and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.cli.job_settings import best_weights
from dca_proto.jobs.job import JobTerms
from dca_proto.protocol.wire.kinds import NodeRelease
from dca_proto.testing import seeded
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.errors import DataError
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.examples import CLASS, NUMBER, QUICK_DRAWS, problem
from inference.models.sites import linear, logistic
from inference.models.sites.evidence import (
    BETWEEN,
    EFFECT,
    MEAN,
    Average,
    Evidence,
    differing,
    fixed,
    heterogeneity,
    posterior,
    restricted,
)
from inference.posterior import Posterior
from inference.problem import Problem, sites_of
from inference.rounds import run
from inference.saved import load_result, saved

REGRESSION, LOGISTIC = find("sites-regression"), find("sites-logistic")
JOBS = {CLASS: "sites-logistic", NUMBER: "sites-regression"}
BCG = np.array([
    (4, 119, 11, 128), (6, 300, 29, 274), (3, 228, 11, 209), (62, 13536, 248, 12619), (33, 5036, 47, 5761),
    (180, 1361, 372, 1079), (8, 2537, 10, 619), (505, 87886, 499, 87892), (29, 7470, 45, 7232), (17, 1699, 65, 1600),
    (186, 50448, 141, 27197), (5, 2493, 3, 2338), (27, 16886, 29, 17825),
], float)  # fmt: skip
"""Thirteen trials of a vaccine against tuberculosis (Colditz et al. 1994): cases and others, vaccinated and not."""


def bcg() -> tuple[np.ndarray, np.ndarray]:
    """Log risk ratios of the trials, and their variances."""
    a, b, c, d = BCG.T
    return np.log(a / (a + b)) - np.log(c / (c + d)), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_meta_analyses_are_those_of_metafor() -> None:
    """Figures of metafor's documentation (Viechtbauer 2010) for these trials."""
    evidence = Evidence.of(*bcg())
    common, random = fixed(evidence), restricted(evidence)
    assert (common.mean[0], common.cov[0, 0] ** 0.5) == pytest.approx((-0.4303, 0.0405), abs=5e-5)
    found = (random.mean[0], random.cov[0, 0] ** 0.5, random.tau[0] ** 2)
    assert found == pytest.approx((-0.7145, 0.1798, 0.3132), abs=5e-5)
    test = heterogeneity(*bcg())
    assert (test.q, test.degrees) == pytest.approx((152.2330, 12), abs=5e-5)
    assert test.p_value < 1e-20
    assert test.share == pytest.approx(1 - 12 / 152.2330, abs=1e-5)


def test_the_posterior_on_a_grid_is_that_of_integrals_over_all() -> None:
    """Eight schools (Rubin 1981), by a dense grid of μ and τ."""
    y, sd = np.array([28, 8, -3, 7, -1, 1, 18, 12.0]), np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
    mean_sd, tau_sd = 30.0, 5.0
    mu, tau = np.linspace(-40, 60, 801)[:, None], np.linspace(1e-6, 30, 601)[None]
    density = stats.norm.logpdf(mu, 0, mean_sd) + stats.halfnorm.logpdf(tau, scale=tau_sd)
    for one, s in zip(y, sd, strict=True):
        density = density + stats.norm.logpdf(one, mu, np.sqrt(tau**2 + s**2))
    weight = np.exp(density - density.max())
    weight /= weight.sum()
    draws = posterior(Evidence.of(y, sd**2), mean_sd, [tau_sd]).sample(np.random.default_rng(0), 4, 10_000)
    exact = [(weight * mu).sum(), (weight * tau).sum()]
    first = (mu + (y[0] - mu) * tau**2 / (tau**2 + sd[0] ** 2)) * weight
    exact_sd = ((weight * tau**2).sum() - exact[1] ** 2) ** 0.5
    assert draws[MEAN].mean() == pytest.approx(exact[0], abs=0.15)
    assert draws[BETWEEN].mean() == pytest.approx(exact[1], abs=0.08)
    assert draws[BETWEEN].std() == pytest.approx(exact_sd, abs=0.08)
    assert draws[EFFECT][..., 0, 0].mean() == pytest.approx(first.sum(), abs=0.2)


def test_a_mixed_model_is_that_of_statsmodels() -> None:
    """MixedLM of statsmodels 0.15.0 by REML; its residual variance is given, and its search stops at 0.2 %."""
    rng = np.random.default_rng(42)
    site = np.repeat(np.arange(8), [5, 10, 20, 30, 40, 50, 60, 85])
    x, u = rng.standard_normal(300), 0.5 * rng.standard_normal(8)
    y = 1 + u[site] + 0.4 * x + 0.7 * rng.standard_normal(300)
    X, variance = np.c_[np.ones(300), x], 0.4921863939346705
    parts = [(X[site == j], y[site == j]) for j in range(8)]
    evidence = Evidence(
        *(np.array(part) / variance for part in zip(*((a.T @ b, a.T @ a) for a, b in parts), strict=True))
    )
    found = restricted(evidence, (True, False))
    assert found.mean == pytest.approx([1.11293248, 0.33780431], rel=2e-3)
    assert np.diag(found.cov) ** 0.5 == pytest.approx([0.23832344, 0.04381738], rel=2e-3)
    assert found.tau**2 == pytest.approx([0.42672297, 0], rel=5e-3)


def test_evidence_is_checked() -> None:
    for estimates, variances in (([], []), ([1.0], [0.0]), ([1.0, 2.0], [1.0]), ([np.nan], [1.0])):
        with pytest.raises(DataError):
            Evidence.of(estimates, variances)
    with pytest.raises(DataError, match="method=nuts"):
        posterior(Evidence(np.zeros((3, 3)), np.tile(np.eye(3), (3, 1, 1))), 1.0, [1.0, 1.0, 1.0])


def test_a_slope_that_differs_is_seen() -> None:
    rng, precision = np.random.default_rng(1), np.tile(50 * np.eye(3), (10, 1, 1))
    beta = np.c_[rng.standard_normal(10), np.full(10, 0.5), rng.standard_normal(10)]
    evidence = Evidence(50 * (beta + rng.standard_normal((10, 3)) / 50**0.5), precision)
    ratios = differing(evidence, np.array([1.0, 0, 0]), np.ones(3))
    assert ratios[0] == 0
    assert ratios[1] < 2 < 20 < ratios[2]


# --- the law of a release ---------------------------------------------------------------------------------------------


def released(p: int, variance: float) -> linear.Released:
    """One site's S as known up to a spread, with noise in z and u."""
    rng = np.random.default_rng(2)
    A = rng.standard_normal((p, p))
    spread = rng.uniform(1, 4, (p, p))
    return linear.Released(
        (A @ A.T + p * np.eye(p))[None] * 20, (spread + spread.T)[None], np.zeros((1, p)), np.zeros(1),
        rng.uniform(2, 5, (1, p)), np.array([60.0]), np.array([80.0]), np.array([4.0]), np.eye(p),
        Average.certain(p - 1),
    )  # fmt: skip


@pytest.mark.long
def test_the_density_of_sums_is_that_of_simulated_releases() -> None:
    """Mean and covariance of (r, q), from 200,000 draws of S, residuals and noise; each within six standard errors."""
    import jax

    from inference.models.sites.model import of_sums

    p, variance, draws, rng = 3, 0.7, 200_000, np.random.default_rng(3)
    one, beta = released(p, variance), np.array([0.8, -1.2, 0.5])
    S, places = one.S[0], np.triu_indices(p)
    E = np.zeros((draws, p, p))
    E[:, places[0], places[1]] = rng.standard_normal((draws, 6)) * one.spread[0][places] ** 0.5
    E = E + np.triu(E, 1).transpose(0, 2, 1)
    rows = one.rows[0] + one.rows_variance[0] ** 0.5 * rng.standard_normal(draws)
    root = np.linalg.cholesky(S)
    Xe = variance**0.5 * rng.standard_normal((draws, p)) @ root.T
    ee = rows * variance + (2 * one.rows[0]) ** 0.5 * variance * rng.standard_normal(draws)
    z = (S + E) @ beta + Xe + rng.standard_normal((draws, p)) * one.variance_z[0] ** 0.5
    u = beta @ S @ beta + np.einsum("i,nij,j->n", beta, E, beta) + 2 * Xe @ beta + ee
    u = u + rng.standard_normal(draws) * one.variance_u[0] ** 0.5
    left = np.c_[z - S @ beta, u - 2 * z @ beta + beta @ S @ beta - one.rows[0] * variance]
    law = stats.multivariate_normal(np.zeros(p + 1), np.cov(left.T))
    assert np.all(np.abs(left.mean(axis=0)) < 6 * left.std(axis=0) / draws**0.5)
    with jax.enable_x64(True):
        seen = np.array([
            float(of_sums(one._replace(z=z[n : n + 1], u=u[n : n + 1]), beta[None], variance)[0]) for n in range(12)
        ])  # fmt: skip
    expected = law.logpdf(left[:12])
    assert seen - seen[0] == pytest.approx(expected - expected[0], abs=0.15)


@pytest.mark.long
def test_the_density_of_scores_is_that_of_their_moments() -> None:
    import jax

    from inference.models.sites.model import of_scores

    rounds, _ = logistic_rounds()
    sums = logistic.Scores.of(rounds)
    known = logistic.released_by(sums, logistic.matched(sums.rounds))
    beta = known.last + np.random.default_rng(0).normal(size=(4, 3)) * 0.3
    moments = logistic.moments(known, beta)
    expected = [stats.multivariate_normal.logpdf(left, cov=cov) for left, _, cov in zip(*moments, strict=True)]
    with jax.enable_x64(True):
        seen = np.asarray(of_scores(known, beta))
    assert seen - seen[0] == pytest.approx(np.array(expected) - expected[0], rel=1e-6)


def test_without_noise_the_evidence_is_that_of_the_rows() -> None:
    one = released(3, 1.0)._replace(spread=np.zeros((1, 3, 3)), variance_z=np.zeros((1, 3)), z=np.ones((1, 3)))
    found = linear.evidence_of(one, np.eye(3), 0.5)
    assert found.precision == pytest.approx(one.S / 0.5)
    assert found.h == pytest.approx(np.full((1, 3), 2.0))


# --- jobs -------------------------------------------------------------------------------------------------------------


def tables(target: str, sites: int = 4, rows: int = 1_600) -> tuple[Problem, list[np.ndarray]]:
    data = problem(target, rows)
    return data, [data.rows[index::sites] for index in range(sites)]


def rounds_of(job: Any, target: str, epsilon: float, absent: tuple[frozenset[int], ...] = (), **settings: Any) -> Any:
    data, parts = tables(target)
    terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=4, tolerate=0, computes=())
    own = job.settings(**settings)
    known = Conditions(4, 0, 1.0, np.random.default_rng(1), kind=NodeRelease, weights=best_weights)
    swarm = IdealSwarm(parts, data.schema.columns, terms, absent=absent, random=seeded("sites"))
    return run(job.make(data.schema, own, known), swarm), own, known, data


def logistic_rounds(absent: tuple[frozenset[int], ...] = ()) -> tuple[Any, Posterior]:
    rounds, own, known, data = rounds_of(LOGISTIC, CLASS, 8.0, absent)
    return rounds, LOGISTIC.finish(rounds, data.schema, own, known)


def test_a_site_that_misses_a_round_is_left_out_and_others_keep_their_releases() -> None:
    rounds, found = logistic_rounds((frozenset(), frozenset({1}), frozenset(), frozenset()))
    nodes = logistic.matched(logistic.Scores.of(rounds).rounds)
    assert [[node.client[-1] for node in one] for one in nodes] == [[0, 2, 3]] * 3
    assert any("did not release in all rounds" in note for note in found.warnings)
    assert found.draws[EFFECT].shape[2:] == (3, 3)


def test_a_linear_fit_is_near_the_one_of_all_rows() -> None:
    """Effects of 1 and -1, with residuals of 0.5; intervals of four standard deviations."""
    aggregate, own, known, data = rounds_of(REGRESSION, NUMBER, 20.0)
    found = REGRESSION.finish(aggregate, data.schema, own, known)
    mean, sd, _ = found.slopes()
    assert (np.abs(mean - [1, -1]) < 4 * sd).all()
    assert (sd < 0.1).all()
    twice = found.refit(between_sd=2.0)
    spread = [one.draws[BETWEEN].mean() for one in (found, twice)]
    assert spread[0] < spread[1]


def test_labels_follow_names_and_rows_of_a_column() -> None:
    data, _ = tables(NUMBER)
    aggregate, own, known, _ = rounds_of(REGRESSION, NUMBER, 20.0)
    names = {node.client: f"clinic {10 - place}" for place, node in enumerate(aggregate.nodes)}
    found = REGRESSION.finish(aggregate, data.schema, own, replace(known, sites=names))
    assert found.coords["site"] == ("clinic 7", "clinic 8", "clinic 9", "clinic 10")
    known_rows = Problem("t", data.schema, np.c_[np.arange(5) % 2, np.zeros(5)].astype(float), np.zeros(5))
    assert {name: list(places) for name, places in sites_of(known_rows, "a").items()} == {
        "a 0": [0, 2, 4],
        "a 1": [1, 3],
    }
    with pytest.raises(DataError, match="names sites"):
        sites_of(replace(known_rows, X=known_rows.X + 0.5), "a")


def test_the_reference_has_the_sites_of_a_column() -> None:
    rng = np.random.default_rng(3)
    data, _ = tables(NUMBER)
    site = rng.integers(-2, 3, len(data.y)).astype(float)
    data = replace(
        data, X=np.c_[data.X[:, 0], site], y=np.clip(data.X[:, 0] + 0.5 * site + rng.normal(size=len(site)), -6, 6)
    )
    found = REGRESSION.reference(data, REGRESSION.settings(site="b"))
    figures = {one.name: one.marginal.mean for one in found.estimates()}
    assert [figures[f"b {code}"] for code in range(-2, 3)] == pytest.approx([-1, -0.5, 0, 0.5, 1], abs=0.25)
    assert figures["a"] == pytest.approx(1, abs=0.15)
    assert REGRESSION.reference(data, REGRESSION.settings()) is None


def test_a_file_keeps_the_prediction_for_a_new_site(tmp_path: Path) -> None:
    aggregate, own, known, data = rounds_of(REGRESSION, NUMBER, 20.0)
    found = REGRESSION.finish(aggregate, data.schema, own, known)
    summary = {"ok": True, "private": True, **REGRESSION.summarise(found, None, None, None, data.schema)}
    (tmp_path / "result.json").write_text(json.dumps({**summary, "posterior": saved(found)}))
    again, X = load_result(tmp_path / "result.json"), np.array([[0.0, 0.0], [1.0, -1.0]])
    assert [one.name for one in again.estimates()] != []
    for one in (found, again):
        mean, sd = one.predict(X)
        assert mean == pytest.approx([0, 2], abs=0.6)
        assert (sd > found.draws["residual_sd"].mean()).all(), "the spread between sites is part of it"


def test_requests_that_cannot_be_are_refused() -> None:
    data, _ = tables(NUMBER)
    known = Conditions(1, 0, 1.0, np.random.default_rng(1), kind=NodeRelease)
    with pytest.raises(DataError, match="no result from fewer than 2 contributors, and found 1"):
        REGRESSION.check_contributors(data.schema, REGRESSION.settings(), known)
    for settings, words in (
        ({"slopes": "z"}, "names 'z'"),
        ({"site": "y"}, "both the target"),
        ({"slopes": "a,b"}, "nuts"),
    ):
        with pytest.raises(DataError, match=words):
            REGRESSION.check(data.schema, REGRESSION.settings(**settings))


def test_a_release_names_its_data_node() -> None:
    data, parts = tables(NUMBER)
    terms = JobTerms(epsilon=1, delta=1e-5, clients=4, tolerate=0, computes=())
    request = RoundRequest(
        "sum", {"columns": ["y"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}, 1.0, 9, 0, NodeRelease()
    )
    found: NoisyAggregate = IdealSwarm(parts, data.schema.columns, terms, random=seeded("node")).run_round(request)
    assert [int.from_bytes(node.client, "big") for node in found.nodes] == [0, 1, 2, 3]
    assert found.client == b""


def test_rounds_ask_at_the_mean_of_sites_where_one_line_for_all_rows_is_flatter() -> None:
    """Levels of ±2 and an effect of 1.5 log odds: the effect in all rows together is about 1."""
    rng, schema, parts = np.random.default_rng(5), replace(tables(CLASS)[0].schema, features=("a",)), []
    schema = replace(schema, bounds={name: schema.bounds[name] for name in ("a", "y")})
    for level in (-2.0, 2.0, -1.6, 2.2, -2.3, 1.7):
        x = rng.standard_normal(2_000)
        parts.append(np.c_[x, rng.random(2_000) < expit(level + 1.5 * x)].astype(float))
    terms = JobTerms(epsilon=20.0, delta=1e-5, clients=6, tolerate=0, computes=())
    known, own = Conditions(6, 0, 1.0, rng, kind=NodeRelease, weights=best_weights), LOGISTIC.settings(between_sd=2.0)
    rounds = run(LOGISTIC.make(schema, own, known), IdealSwarm(parts, schema.columns, terms, random=seeded("mean")))
    sums = logistic.Scores.of(rounds)
    assert sums.phi(1.0).mean[1] < 1.1
    assert sums.scores[-1].request.phi[1] > 1.25
    found = LOGISTIC.finish(rounds, schema, own, known)
    assert abs(found.mean[MEAN][1] - 1.5) < 4 * found.sd[MEAN][1] < 0.8
    (text,) = [one for one in found.warnings if "too far for its approximation" in one]
    assert text.startswith("site 4, site 5 differ")


def test_sites_with_a_rare_class_that_noise_hides_are_named() -> None:
    """Of the last site 1 % of 1,500 rows are of the upper class, fewer than 20; of the others 30 %.

    Its own release shows that, so it is not taken for one of the others.
    """
    rng = np.random.default_rng(3)
    schema = replace(tables(CLASS)[0].schema, features=("a",))
    schema = replace(schema, bounds={name: schema.bounds[name] for name in ("a", "y")})
    shares = (0.3, 0.3, 0.3, 0.01)
    parts = [np.c_[rng.standard_normal(1_500), rng.random(1_500) < share].astype(float) for share in shares]
    terms = JobTerms(epsilon=4.0, delta=1e-5, clients=4, tolerate=0, computes=())
    known, own = Conditions(4, 0, 1.0, rng, kind=NodeRelease, weights=best_weights), LOGISTIC.settings()
    swarm = IdealSwarm(parts, schema.columns, terms, random=seeded("rare"))
    found = LOGISTIC.finish(run(LOGISTIC.make(schema, own, known), swarm), schema, own, known)
    (text,) = [one for one in found.warnings if "one of the classes is rare" in one]
    assert "rare in site 4, and" in text
    expected = np.log([[0.3 / 0.7]] * 3 + [[0.01 / 0.99]])[:, 0]
    assert (np.abs(found.mean[EFFECT][:, 0] - expected) < 4 * found.sd[EFFECT][:, 0]).all()
    assert found.mean[EFFECT][3, 0] < -3.5


def test_a_grid_takes_the_first_coefficients_that_differ() -> None:
    schema = tables(NUMBER)[0].schema
    own = REGRESSION.settings(slopes="a,b", method="nuts", between_sd=0.5)
    assert list(own.prior(schema)[1]) == [0.5, 0.5, 0.5]
    assert list(own.prior(schema, on_grid=True)[1]) == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("target", [CLASS, NUMBER])
def test_levels_are_those_of_a_row_with_average_features(target: str) -> None:
    """Of a feature with two values the phases show the bulk, not the mean: 0.83 for a share of two thirds."""
    rng, schema, parts, level = np.random.default_rng(7), tables(target)[0].schema, [], np.array([-0.5, 0.0, 0.5])
    schema = replace(schema, features=("a",), bounds={"a": Interval(0, 1), "y": schema.bounds["y"]})
    features = [(rng.random(4_000) < 2 / 3).astype(float) for _ in level]
    centre = float(np.concatenate(features).mean())
    for own, x in zip(level, features, strict=True):
        eta = own + 2 * (x - centre)
        noisy = eta + 0.5 * rng.standard_normal(len(x))
        parts.append(np.c_[x, rng.random(len(x)) < expit(eta) if target == CLASS else noisy])
    job, terms = find(JOBS[target]), JobTerms(epsilon=20.0, delta=1e-5, clients=3, tolerate=0, computes=())
    known, own_settings = Conditions(3, 0, 1.0, rng, kind=NodeRelease, weights=best_weights), job.settings()
    swarm = IdealSwarm(parts, schema.columns, terms, random=seeded("levels"))
    found = job.finish(run(job.make(schema, own_settings, known), swarm), schema, own_settings, known)
    off, sd = found.mean[EFFECT][:, 0] - level, found.sd[EFFECT][:, 0]
    assert (np.abs(off) < 3.5 * sd).all()
    assert (sd < 0.15).all()


@pytest.mark.long
@pytest.mark.parametrize("target", [CLASS, NUMBER])
def test_levels_allow_for_noise_in_the_centres(target: str) -> None:
    """Three sites of 1,000 rows at epsilon 0.5, with effects of 1, in 12 studies: the mean square of the levels' common
    error, in standard deviations, is at most 2.2 with a probability of 99 % if it is 1. If the levels of two classes
    are those of a row at the centres, it is 8.
    """
    squares = []
    for seed in range(12):
        rng, schema, parts = np.random.default_rng(seed), tables(target)[0].schema, []
        features = [rng.standard_normal((1_000, 2)) for _ in range(3)]
        centre = np.concatenate(features).mean(axis=0)
        for x in features:
            eta = (x - centre) @ [1.0, 1.0]
            noisy = eta + 0.5 * rng.standard_normal(len(x))
            parts.append(np.c_[x, rng.random(len(x)) < expit(eta) if target == CLASS else noisy])
        job, terms = find(JOBS[target]), JobTerms(epsilon=0.5, delta=1e-5, clients=3, tolerate=0, computes=())
        known, own = Conditions(3, 0, 1.0, rng, kind=NodeRelease, weights=best_weights), job.settings()
        swarm = IdealSwarm(parts, schema.columns, terms, random=seeded(f"centres {seed}"))
        found = job.finish(run(job.make(schema, own, known), swarm), schema, own, known)
        every = found.draws[EFFECT][..., 0].mean(axis=-1)
        squares.append(float((every.mean() / every.std()) ** 2))
    assert np.mean(squares) < 2.2


@pytest.mark.long
def test_the_sampler_takes_several_slopes_that_differ() -> None:
    rounds, own, known, data = rounds_of(REGRESSION, NUMBER, 20.0, slopes="a,b", method="nuts", **QUICK_DRAWS)
    found = REGRESSION.finish(rounds, data.schema, own, known)
    assert found.draws[BETWEEN].shape[2:] == (3,)
    assert {"a, site 1", "b, site 4"} <= {one.name for one in found.estimates()}


@pytest.mark.long
def test_the_sampler_agrees_with_the_grid() -> None:
    """At a large epsilon: means within half a standard deviation, which differ by what the grid plugs in."""
    rounds, own, known, data = rounds_of(REGRESSION, NUMBER, 20.0)
    grid = REGRESSION.finish(rounds, data.schema, own, known)
    sampled = replace(own, method="nuts", chains=2, draws=300, warmup=300, require_mixed=False)
    nuts = REGRESSION.finish(rounds, data.schema, sampled, known)
    for name in (MEAN, EFFECT):
        assert (np.abs(grid.mean[name] - nuts.mean[name]) < 0.5 * grid.sd[name].max()).all()
