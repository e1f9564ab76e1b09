"""The linear regressions that are offered agree where they should: with little noise on one answer, else within it.

Each is run by its name over the ideal functionality, on the same clients.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.accounting import mu_of
from dca_proto.protocol.wire.kinds import SecureSum
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.settings import settings_from
from inference.jobs.summary import Row
from inference.problem import Schema
from inference.rounds import run

N, DELTA = 20_000, 1e-5
SCHEMA = Schema(("a", "b"), "y", {"a": Interval(-4, 4), "b": Interval(0, 20), "y": Interval(-12, 12)})
CLOSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("regression", {}),
    ("regression-bounded", {}),
    ("regression-mcmc", {"method": "fast"}),
)
SAMPLED: tuple[str, dict[str, Any]] = ("regression-mcmc", {})
sampled = pytest.mark.skipif(any(find_spec(name) is None for name in ("numpyro", "arviz")), reason="without samplers")


def rows(seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.normal([0.3, 10.0], [1.0, 2.5], (N, 2))
    table = np.column_stack([X, 1.0 + X @ [1.5, -0.4] + rng.normal(0, 1, N)])
    return np.clip(table, [-4, 0, -12], [4, 20, 12])


def learned(name: str, settings: dict[str, Any], epsilon: float) -> list[Row]:
    """The rows of the coefficients by a job of that name."""
    job, table = find(name), rows()
    own = settings_from(job.settings, settings, name)
    terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=N, tolerate=0, computes=(b"a" * 32, b"b" * 32))
    known = Conditions(N, 0, mu_of(epsilon, DELTA), np.random.default_rng(2), kind=SecureSum, epsilon=epsilon)
    swarm = IdealSwarm(table, SCHEMA.columns, terms, random=np.random.default_rng(3).bytes)
    found = run(job.make(SCHEMA, own, known), swarm)
    found = job.finish(found, SCHEMA, own, known)
    return job.summarise(found, None, None, None, SCHEMA)["coefficients"]


def figures(found: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row["estimate"] for row in found]), np.array([row["estimate_sd"] for row in found])


def least_squares() -> tuple[np.ndarray, np.ndarray]:
    table = rows()
    X = np.column_stack([table[:, :2], np.ones(N)])
    beta, residuals, *_ = np.linalg.lstsq(X, table[:, 2], rcond=None)
    return beta[:2], np.sqrt(np.diag(np.linalg.inv(X.T @ X))[:2] * residuals[0] / (N - 3))


@pytest.mark.parametrize(("name", "settings"), CLOSED)
def test_with_little_noise_closed_forms_are_least_squares(name: str, settings: dict[str, Any]) -> None:
    """Within half a standard error, and two where rows are weighted: two rounds bring them onto a sphere.

    `fast` plugs in a larger residual variance, so its spread is no less.
    """
    mean, sd = figures(learned(name, settings, 250.0))
    expected, error = least_squares()
    assert np.all(np.abs(mean - expected) < (2 if name == "regression" else 0.5) * error)
    assert np.all(sd > 0.9 * error)
    if "method" not in settings:
        assert np.all(sd < 1.6 * error)


@sampled
@pytest.mark.long
def test_the_sampler_agrees_with_the_closed_form() -> None:
    """Over one sum within the bounds, with Σ y² in both: the same answer, and the same spread to a quarter.

    Both have the noise in their spread. Two rounds, which find the columns' scales, are narrower. False alarm below
    4e-4: of four differences, each of 4 joint deviations.
    """
    (mean, sd), (found, narrow), (other, near) = (figures(learned(*one, 1.0)) for one in (SAMPLED, *CLOSED[:2]))
    assert np.all(np.abs(mean - other) < 4 * np.hypot(sd, near))
    assert np.all(np.abs(mean - found) < 4 * np.hypot(sd, narrow))
    assert np.all((0.8 * near < sd) & (sd < 1.25 * near))
    assert np.all(narrow < sd)
