"""The notebooks run from the first cell to the last, each within a minute, and show what their texts state."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60


def values_of(name: str) -> dict[str, Any]:
    """What the cells of a notebook define; marimo's own checks have passed."""
    pytest.importorskip("marimo")
    spec = importlib.util.spec_from_file_location(name, ROOT / "notebooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    began_s = time.process_time()
    _, values = module.app.run()
    assert time.process_time() - began_s < SECONDS_MAX
    return dict(values)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_what_privacy_costs() -> None:
    """All noise is seeded: no chance of a false alarm."""
    values = values_of("what_privacy_costs")
    few, many = values["errors"][1], values["errors"][10]
    assert few[0] > 1.1 * few[-1], "a small ε costs accuracy"
    assert many[0] < few[0]
    assert many[-1] < 1.02 * values["without_privacy"]
    assert values["without_privacy"] < values["mean_alone"]


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_noise_aware_intervals_hold_and_the_others_do_not() -> None:
    """All noise is seeded: no chance of a false alarm."""
    coverage = values_of("noise_aware")["coverage"]
    assert 0.85 < coverage["noise-aware"] < 0.95
    assert coverage["ignores the noise"] < 0.6


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_survival_curve() -> None:
    """All noise is seeded: no chance of a false alarm."""
    values = values_of("survival_curve")
    private, exact = values["private"], values["exact"]
    assert private.private_
    assert abs(private.survival_ - exact.survival_).max() < 0.12
    low, high = private.band_
    assert ((low <= exact.survival_) & (exact.survival_ <= high)).mean() > 0.7


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_study_spends_one_budget() -> None:
    """All noise is seeded: no chance of a false alarm."""
    values = values_of("study")
    assert 0.999 * values["whole"].mu < values["mu"] <= values["whole"].mu
    found, exact = values["described"].estimates(), values["described_exactly"].estimates()
    ends = [(one.marginal.interval, other.marginal.mean) for one, other in zip(found, exact, strict=True)]
    held = [low - 0.5 <= truth <= high + 0.5 for (low, high), truth in ends]
    assert sum(held) / len(held) > 0.9, "quartiles end at bins"
    assert values["test"]["p_value"] > 0.01
    curves, exact = values["curves"], values["exact"]
    assert abs(curves.survival - exact.survival).max() < 0.12
    assert curves.log_rank.p_value < 0.05
