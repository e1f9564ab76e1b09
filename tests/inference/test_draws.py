"""Draws for ArviZ: names, attributes that netCDF keeps, the warm-up apart, and what is refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from dca_proto.aggregate import NoisyAggregate
from inference.draws import attributes, inference_data
from inference.errors import DataError

arviz_needed = pytest.mark.skipif(importlib.util.find_spec("arviz") is None, reason="arviz is not installed")


def aggregate(epsilon: float | None = 1.0, mu: float = 0.3, *, private: bool = True) -> NoisyAggregate:
    return NoisyAggregate(
        value=np.zeros(1), noise_variance=1.0, statistic="sum", parameters={}, contributors=9, clients=10, n_min=9,
        colluders=0, mechanism="discrete-gaussian", sensitivity=1.0, relation="replace-one-client", sigma_local=1.0,
        epsilon=epsilon, delta=1e-5, mu=mu, round_id=bytes(16), announcement_hash=bytes(32),
        contributors_hash=bytes(32), private=private,
    )  # fmt: skip


@arviz_needed
def test_draws_keep_their_names_attributes_and_warm_up_through_netcdf(tmp_path: Path) -> None:
    import xarray

    draws = np.random.default_rng(1).normal(size=(2, 5, 3))
    data = inference_data(
        {"theta": draws},
        dims={"theta": ["category"]},
        coords={"category": ["a", "b", "c"]},
        attrs=attributes(aggregate()) | {"repaired": np.True_, "left_out": None},
        warmup_posterior={"theta": draws[:, :2]},
    )
    path = tmp_path / "draws.nc"
    data.to_netcdf(str(path))
    with xarray.open_dataset(path, group="posterior", engine="h5netcdf") as posterior:
        assert posterior["theta"].dims == ("chain", "draw", "category")
        assert list(posterior["category"].values) == ["a", "b", "c"]
        np.testing.assert_array_equal(posterior["theta"].values, draws)
        kept = posterior.attrs
    assert (kept["private"], kept["repaired"], kept["epsilon"], kept["delta"]) == (1, 1, 1.0, 1e-5)
    assert kept["mechanism"] == "discrete-gaussian"
    assert kept["inference_library"] == "dca-proto"
    assert kept["inference_library_version"]
    assert "left_out" not in kept
    assert data.warmup_posterior["theta"].shape == (2, 2, 3)


def test_attributes_compose_rounds_and_claim_nothing_without_privacy() -> None:
    both = attributes(aggregate(mu=0.3), aggregate(mu=0.4))
    assert both["mu"] == pytest.approx(0.5)
    assert both["epsilon"] is None
    assert both["statistics"] == "sum sum"
    open_ = attributes(aggregate(private=False))
    assert (open_["private"], open_["epsilon"], open_["mu"], open_["delta"]) == (False, None, None, None)


def test_draws_of_different_shapes_are_refused() -> None:
    with pytest.raises(DataError, match=r"chains and draws differ: a \(2, 5\), b \(2, 4\)"):
        inference_data({"a": np.zeros((2, 5)), "b": np.zeros((2, 4))})
    with pytest.raises(DataError, match="shape"):
        inference_data({"a": np.zeros(5)})
    with pytest.raises(DataError, match="no draws"):
        inference_data({})


def test_without_arviz_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(DataError, match=r"pip install -e '\.\[samplers\]'"):
        inference_data({"a": np.zeros((1, 5))})
