"""Noise-aware posteriors are calibrated at a noise that makes the plug-in overconfident: simulation-based calibration.

Parameters from the prior, data from the model, noise on the sum: the rank of the true parameter among the posterior's
draws must be uniform (Talts et al. 2018), and 90 % intervals must hold it in 90 % of the cases. 200 data sets each,
seeded. False alarm of the ranks 1e-4 each (Kolmogorov and Smirnov); of the coverage's band 1e-5 (binomial).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats as st
from numpy.typing import NDArray

from inference.bounds import Interval
from inference.mcmc.sums import NoisySums
from inference.models.conjugate import Bernoulli, Categorical, Exponential, Family, Gaussian, Poisson
from inference.models.conjugate.categorical import Target, gibbs
from inference.models.conjugate.family import Released, posterior_of

Array = NDArray[np.float64]
DATASETS, DRAWS = 200, 300
Case = tuple[Family, int, list[float], Callable[[np.random.Generator, int], tuple[dict[str, float], list[float]]]]


def bernoulli(rng: np.random.Generator, n: int) -> tuple[dict[str, float], list[float]]:
    theta = rng.beta(1, 1)
    return {"theta": theta}, [rng.binomial(n, theta)]


def poisson(rng: np.random.Generator, n: int) -> tuple[dict[str, float], list[float]]:
    rate = rng.gamma(3)
    return {"rate": rate}, [rng.poisson(rate, n).sum()]


def exponential(rng: np.random.Generator, n: int) -> tuple[dict[str, float], list[float]]:
    rate = rng.gamma(5) / 5
    return {"rate": rate}, [rng.exponential(1 / rate, n).sum()]


def gaussian(rng: np.random.Generator, n: int) -> tuple[dict[str, float], list[float]]:
    variance = 4 / rng.gamma(5)
    mean = rng.normal(0, np.sqrt(variance))
    z = rng.normal(mean, np.sqrt(variance), n) / 12
    return {"mean": mean, "variance": variance}, [z.sum(), (z**2).sum()]


CASES: list[Case] = [
    (Bernoulli("x", Interval(0, 1)), 150, [25.0], bernoulli),
    (Poisson("x", Interval(0, 60), a=3.0, b=1.0), 60, [60.0], poisson),
    (Exponential("x", Interval(0, 60), a=5.0, b=5.0), 80, [30.0], exponential),
    (Gaussian("x", Interval(-12, 12), m=0.0, kappa=1.0, a=5.0, b=4.0), 80, [2.5, 0.4], gaussian),
]


@pytest.mark.parametrize(("model", "n", "noise", "simulate"), CASES, ids=[case[0].name for case in CASES])
def test_calibration(model: Family, n: int, noise: list[float], simulate: Callable) -> None:  # type: ignore[type-arg]
    rng = np.random.default_rng(11)
    ranks: dict[tuple[str, str], list[float]] = {}
    for _ in range(DATASETS):
        truth, s = simulate(rng, n)
        sd = np.array(noise)
        release = NoisySums(np.array(s, float) + sd * rng.standard_normal(sd.size), sd**2, n)
        for method in ("noise-aware", "conjugate"):
            result = posterior_of(model, release, rng=rng, method=method, chains=1, draws=DRAWS)
            for name, value in truth.items():
                ranks.setdefault((method, name), []).append(float((result.draws[name] < value).mean()))
    for (method, _), found in ranks.items():
        check(method, np.array(found))


def check(method: str, ranks: Array) -> None:
    covered = np.mean((ranks > 0.05) & (ranks < 0.95))
    if method == "conjugate":
        assert covered < 0.75
    else:
        assert st.kstest(ranks, "uniform").pvalue > 1e-4
        assert 0.79 < covered < 0.985


def test_calibration_of_the_gibbs_sampler_over_counts() -> None:
    """All data sets at once, one chain each; both an even and an odd number of categories, sparse shares, a stride."""
    for k, n, sd, alpha in ((3, 60, 9.0, 1.0), (6, 5000, 250.0, 0.5)):
        rng = np.random.default_rng(12)
        theta = rng.dirichlet([alpha] * k, DATASETS)
        noisy = rng.multinomial(n, theta) + sd * rng.standard_normal((DATASETS, k))
        start = rng.multinomial(n, np.full(k, 1 / k), DATASETS)
        sums = gibbs(start, Target(noisy, sd**2, alpha), 60, rng)[:, 20:]
        assert (sums.sum(axis=-1) == n).all()
        assert (sums >= 0).all()
        model = Categorical("x", Interval(0, k - 1), alpha=alpha)
        aware = model.draw(model.update(sums, n), rng)["theta"]
        plugged = np.broadcast_to(model.possible(noisy, n)[:, None], sums.shape)
        naive = model.draw(model.update(plugged, n), rng)["theta"]
        for method, draws in (("noise-aware", aware), ("conjugate", naive)):
            check(method, (draws[..., 0] < theta[:, None, 0]).mean(axis=1))


@pytest.mark.long
def test_calibration_where_values_are_missing() -> None:
    """The missing share from its prior, Beta(1/2, 1); sums about the bounds' middle, and a noisy count."""
    n, sd, ranks = 150, 9.0, []
    rng = np.random.default_rng(13)
    for _ in range(DATASETS):
        theta, rows = rng.beta(1, 1), rng.binomial(n, 1 - rng.beta(0.5, 1))
        total = rng.binomial(rows, theta) - rows / 2 + sd * rng.standard_normal()
        count = rows + 2 * sd / 3**0.5 * rng.standard_normal()
        release = Released(np.array([total]), np.array([0.5]), np.array([sd**2]), n, count, 4 * sd**2 / 3)
        result = posterior_of(Bernoulli("x", Interval(0, 1)), release, rng=rng, chains=1, draws=DRAWS)
        ranks.append(float((result.draws["theta"] < theta).mean()))
    check("noise-aware", np.array(ranks))


def test_calibration_of_the_gibbs_sampler_where_values_are_missing() -> None:
    k, n, sd, alpha = 3, 60, 6.0, 1.0
    rng = np.random.default_rng(14)
    theta, rows = rng.dirichlet([alpha] * k, DATASETS), rng.binomial(n, 1 - rng.beta(0.5, 1, DATASETS))
    counts = np.column_stack([rng.multinomial(rows, theta), n - rows])
    noisy = counts + sd * rng.standard_normal(counts.shape)
    start = rng.multinomial(n, np.full(k + 1, 1 / (k + 1)), DATASETS)
    sums = gibbs(start, Target(noisy, sd**2, alpha, n), 80, rng)[:, 30:, :k]
    model = Categorical("x", Interval(0, k - 1), alpha=alpha)
    aware = model.draw(model.update(sums, sums.sum(axis=-1)), rng)["theta"]
    check("noise-aware", (aware[..., 0] < theta[:, None, 0]).mean(axis=1))
