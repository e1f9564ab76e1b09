"""What an audit's JSON holds of what the adversary saw: histograms of all runs, error rates of many thresholds."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from emulator.coalition.bounds import BINS, Distributions, TradeOff

CUTS = 400
RNG = np.random.default_rng(7)
SAMPLES = (RNG.normal(1.0, 2.0, 5_000), RNG.normal(-1.0, 2.0, 5_000))


def test_every_run_is_in_a_bin() -> None:
    found = Distributions.of(SAMPLES)
    edges = np.array(found.edges)
    assert len(edges) == BINS + 1
    assert [sum(counts) for counts in found.counts] == [5_000, 5_000]
    middles = (edges[1:] + edges[:-1]) / 2
    means = [float((counts @ middles) / sum(counts)) for counts in found.counts]
    width = float(edges[1] - edges[0])
    assert means == pytest.approx([one.mean() for one in SAMPLES], abs=width / 2)


def test_error_rates_run_from_one_corner_to_the_other() -> None:
    """And at each threshold they are the parts of the runs on the wrong side of it."""
    found = TradeOff.of(SAMPLES, CUTS)
    assert len(found.false_positives) == CUTS + 1
    assert (found.false_positives[0], found.false_negatives[0]) == (1.0, 0.0)
    assert (found.false_positives[-1], found.false_negatives[-1]) == (0.0, 1.0)
    assert np.all(np.diff(found.false_positives) <= 0)
    assert np.all(np.diff(found.false_negatives) >= 0)
    cut = np.quantile(np.concatenate(SAMPLES), np.linspace(0, 1, CUTS))[CUTS // 2]
    expected = np.mean(SAMPLES[1] > cut), np.mean(SAMPLES[0] <= cut)
    place = CUTS // 2 + 1
    assert (found.false_positives[place], found.false_negatives[place]) == pytest.approx(expected)


def test_equal_runs_have_a_histogram_too() -> None:
    same = np.zeros(10)
    found = Distributions.of((same, same))
    assert np.all(np.diff(found.edges) > 0)
    assert sum(found.counts[0]) == 10


def test_the_data_are_few_however_many_runs_there_were() -> None:
    shape, errors = Distributions.of(SAMPLES), TradeOff.of(SAMPLES)
    text = json.dumps(msgspec.to_builtins([shape, errors]), allow_nan=False)
    assert len(text) < 10_000
    assert len(errors.false_positives) == len(errors.false_negatives)
