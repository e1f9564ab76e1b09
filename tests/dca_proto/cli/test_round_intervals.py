"""The 95 % interval of `dca trainer`: how often it covers the value without noise, by the noise's own law."""

from __future__ import annotations

import dataclasses
import io
import math
from itertools import pairwise

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import binom, norm

from dca_proto.aggregate import LocalReports, NoisyAggregate
from dca_proto.cli.trainer import _show, interval_of
from dca_proto.privacy.local import AnalyticGaussian, GridLaplace, LocalMechanism, RandomisedResponse, UnaryEncoding
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.results.round import NORMAL_SDS, REPORT_SDS, doubts
from dca_proto.statistics.sensitivity import REPLACE_ONE_CLIENT, Sensitivity

PLAIN, APPROXIMATE = "95 % interval, noise only", "approximate 95 % interval, noise only"
BOX = Sensitivity(l1=100, l2_squared=10_000, bound=50)
Category = RandomisedResponse | UnaryEncoding


MEANS = {
    "mean 20 of 15 to 27": ("mean", [-2.5], 0.01, ""),
    "wide": ("mean", [-2.5], 16.0, "the interval of a is wider than its public bounds: found ± 7.8, expected less than "
             "the bounds 15 to 27; take more clients, a larger epsilon, or fewer rounds"),
    "below": ("mean", [-30.0], 0.01, "the estimate of a is outside its public bounds: found 13.5 ± 0.2, "
              "expected 15 to 27; noise can move it there, and the nearer bound is the better estimate"),
    "a sum is in other units": ("sum", [-30.0], 16.0, ""),
}  # fmt: skip
"""Sums of 20 clients' (x - 21)/scale with noise of a variance for each client, and the doubt about their mean."""


@pytest.mark.parametrize("case", MEANS)
def test_a_mean_that_its_noise_hides_has_a_warning(case: str) -> None:
    """By hand: scale 5 and bound 1.2 are 21 ± 6. A sum's sd s moves the mean by 5 s/20, and 1.96 of it is shown."""
    statistic, value, variance, doubt = MEANS[case]
    parameters = {"columns": ["a"], "centre": [21.0], "scale": [5.0], "bound": [1.2]}
    found = dataclasses.replace(
        summed(16 * variance), value=np.array(value), statistic=statistic, parameters=parameters
    )
    assert doubts(found) == ((doubt,) if doubt else ())
    printed = io.StringIO()
    _show(Console(file=printed, width=500), found)
    assert printed.getvalue().count("warning") == bool(doubt)
    assert doubt in " ".join(printed.getvalue().split())


def summed(noise_variance: float = 4.0, reports: LocalReports | None = None) -> NoisyAggregate:
    return NoisyAggregate(
        value=np.array([12.0, 30.0]),
        noise_variance=noise_variance,
        statistic="sum",
        parameters={"columns": ["a", "b"], "centre": [0.0, 0.0], "scale": [1.0, 1.0], "bound": [5.0, 5.0]},
        contributors=20,
        clients=20,
        n_min=18,
        colluders=0,
        mechanism=DistributedDiscreteGaussian().name,
        sensitivity=1.0,
        relation=REPLACE_ONE_CLIENT,
        sigma_local=1.0,
        epsilon=1.0,
        delta=1e-5,
        mu=0.3,
        round_id=bytes(16),
        announcement_hash=bytes(32),
        contributors_hash=bytes(32),
        reports=reports,
    )


def reported(mechanism: LocalMechanism, count: int) -> NoisyAggregate:
    """An aggregate of `count` reports; only its noise matters here."""
    values = np.zeros((count, 2))
    probabilities = tuple(map(float, mechanism.probabilities)) if isinstance(mechanism, Category) else None
    reports = LocalReports(
        values=values,
        mechanism=mechanism.name,
        epsilon=1.0,
        delta=0.0,
        noise_scale=1.0,
        probabilities=probabilities,  # type: ignore[arg-type]
        categories=getattr(mechanism, "categories", 0),
    )
    return summed(count * mechanism.variance_in_sum(1.0), reports)


def test_gaussian_noise_has_the_normal_factor() -> None:
    assert norm.cdf(NORMAL_SDS) - norm.cdf(-NORMAL_SDS) == pytest.approx(0.95, abs=1e-4)
    for aggregate in (summed(), reported(AnalyticGaussian(1.0, 1e-5, BOX, 2), 3)):
        assert interval_of(aggregate) == (NORMAL_SDS, PLAIN)


def test_one_laplace_number_is_covered_exactly() -> None:
    """|x| of Laplace's law with scale b is exponential with mean b = sd/√2."""
    assert 1 - math.exp(-REPORT_SDS * math.sqrt(2)) == pytest.approx(0.95, abs=2e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
def test_the_sum_of_reports_on_a_grid_is_covered(count: int) -> None:
    """Simulated with the mechanism's own sampler; more numbers are nearer to normal and covered more often."""
    rounds, mechanism = 40_000, GridLaplace(0.7, BOX, 1)
    sums = mechanism.noise(rounds * count, bytes([count]) * 32).reshape(rounds, count).sum(axis=1)
    sds, name = interval_of(reported(mechanism, count))
    covered = float((abs(sums) <= sds * math.sqrt(count * mechanism.noise_variance)).mean())
    assert (sds, name) == (REPORT_SDS, PLAIN)
    assert 0.947 <= covered <= 0.972  # four standard errors: 0.0044
    assert count > 1 or covered == pytest.approx(0.95, abs=0.0045)


def coverage(mechanism: Category, count: int, members: int) -> float:
    """The exact probability that the interval of a count covers it; `members` of the clients are in the category."""
    own, stray = map(float, mechanism.probabilities)
    chances = np.convolve(
        binom.pmf(np.arange(members + 1), members, own),
        binom.pmf(np.arange(count - members + 1), count - members, stray),
    )
    sds, _ = interval_of(aggregate := reported(mechanism, count))
    errors = (np.arange(count + 1) - count * stray) / (own - stray) - members
    return float(chances[abs(errors) <= sds * math.sqrt(aggregate.noise_variance)].sum())


@pytest.mark.parametrize("kind", [RandomisedResponse, UnaryEncoding])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("categories", [2, 3, 10, 50])
def test_counts_of_categories_are_covered_or_called_approximate(
    kind: type[Category], epsilon: float, categories: int
) -> None:
    mechanism, names = kind(epsilon, categories), []
    for count in (1, 2, 4, 8, 16, 32, 41, 50, 64, 77, 100, 128, 190, 333, 512, 2048):
        names.append(interval_of(reported(mechanism, count))[1])
        if names[-1] == PLAIN:
            for members in (0, count // 10, count // 2, count):
                assert coverage(mechanism, count, members) >= 0.95, (count, members)
    assert names[0] == APPROXIMATE
    assert names[-1] == PLAIN
    assert all(later == PLAIN for one, later in pairwise(names) if one == PLAIN)


def test_an_approximate_interval_may_cover_less() -> None:
    assert coverage(RandomisedResponse(0.5, 10), 1, 1) < 0.86


def test_the_table_has_the_interval() -> None:
    for width in (80, 120):
        console = Console(file=io.StringIO(), width=width)
        _show(console, summed())
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert PLAIN in shown
        assert max(map(len, shown.splitlines())) <= width
