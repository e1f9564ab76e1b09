"""Posteriors in result files: `dca learn --json` and `dca swarm --json` write one, `load_result` reads it again.

    from inference.saved import load_result

    posterior = load_result("run/result.json")
    posterior.predict(X)            # also predict_interval, plot, estimates, draws, inference_data

A normal law, of a regression, of categories or of hazards, is kept exactly. Other posteriors keep draws, at most
`NUMBERS_MAX` numbers and with six digits. The table, with its intervals, is that of the file. Figures from raw rows,
which no ε covers, stay in the file's own block, and are not part of the posterior.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np

from dca_proto.errors import InputError
from dca_proto.runtime.files import read_text
from inference.columns import Standardisation
from inference.errors import DataError
from inference.jobs.estimates import COEFFICIENTS, ESTIMATES, INTERCEPT, Estimate, Marginal
from inference.jobs.summary import (
    Ends,
    Figures,
    Place,
    Row,
    SavedCategories,
    SavedColumns,
    SavedHazards,
    SavedPosterior,
    SavedRegression,
    Standard,
    Summary,
)
from inference.laws import Drawn
from inference.models.categories.law import Categories
from inference.models.categories.model import Model
from inference.models.coefficients import IDENTITY, LINKS, LOG, Coefficients, Spread
from inference.models.glm.regression import DrawnRows
from inference.models.predictive import RESIDUAL_SD
from inference.models.score_regression import Normal
from inference.models.survival.hazards import Hazards
from inference.models.survival.rounds import SURVIVAL, Columns, DrawnCurves
from inference.posterior import Posterior
from inference.problem import Array, Schema

NUMBERS_MAX, DRAWS_MAX = 100_000, 1_000  # that a file keeps: numbers in all, and draws of each
DIGITS, NEARLY, TINY = 6, 1e-9, 1e-290
ADVICE = "give a result that `dca learn --json` or `dca swarm --json` has written"
_EXTRAS = ("repair", "stopped", "naive_title", "interval_note", "remarks", "log_rank", "at_risk", "headline",
           "named_times", "tests", "cells", "groups", "method", "outside_bounds")  # fmt: skip
CURVE_AXES = ["group", "time"]
_PROVENANCE = ("kind", "epsilon", "delta", "mechanism", "contributors")


class ResultFile(TypedDict, total=False):
    """The part of a result file that a posterior is made of."""

    job: str | None
    ok: bool
    private: bool
    warnings: list[str]
    coefficients: list[Row]
    estimates: list[Row]
    intercept: Figures | None
    posterior: SavedPosterior | None


class _Naive(TypedDict):
    naive: NotRequired[float | None]
    naive_sd: NotRequired[float | None]
    naive_interval_95: NotRequired[Ends | None]


def saved(posterior: Posterior) -> SavedPosterior:
    """Return the posterior's law as plain JSON values."""
    law = posterior.predictor
    linear = law.linear if isinstance(law, DrawnRows) else law if isinstance(law, Coefficients) else None
    is_exact = isinstance(law, Coefficients | Categories | Hazards) and posterior.sample is not None
    return {
        "model": posterior.model,
        "axes": {name: list(axes) for name, axes in posterior.axes.items()},
        "coords": {name: list(labels) for name, labels in posterior.coords.items()},
        "draws": {} if is_exact else _thinned(posterior.draws),
        "regression": None if linear is None else _regression(linear, isinstance(law, DrawnRows)),
        "categories": _categories(law) if isinstance(law, Categories) else None,
        "hazards": _hazards(law) if isinstance(law, Hazards) else None,
        "texts": {column: list(texts) for column, texts in posterior.texts.items()},
    }


def load_result(path: Path | str) -> Posterior:
    """Return the posterior of a result file: its table, draws, predictions, warnings and privacy.

    Raises:
        DataError: the file cannot be read, is no result of a job, or its posterior is damaged.
    """
    path = Path(path)
    try:
        table = msgspec.json.decode(read_text(path, ADVICE))
        file = msgspec.convert(table, ResultFile)
    except InputError as error:
        raise DataError(str(error)) from None
    except msgspec.ValidationError as error:
        raise DataError(f"{path} is not the result of a job: {error}; {ADVICE}") from None
    except msgspec.DecodeError as error:
        raise DataError(f"{path} is not JSON: {error}; {ADVICE}") from None
    except RecursionError:
        raise DataError(f"{path} is nested too deeply to be the result of a job; {ADVICE}") from None
    if not file.get("ok") or not file.get("posterior"):
        state = "of a job that failed" if file.get("ok") is False else "without a posterior"
        raise DataError(f"{path} is a result {state}; {ADVICE}")
    return _posterior(path, table, file)


def _posterior(path: Path, table: Mapping[str, Any], file: ResultFile) -> Posterior:
    known = file["posterior"]
    assert known is not None, "the caller looked"
    law = _law(path, known)
    draws = {name: _drawn(path, name, values) for name, values in known["draws"].items()}
    if not draws and law is None:
        raise DataError(f"{path}: the posterior has neither draws nor a regression's law; {ADVICE}")
    if len({array.shape[:2] for array in draws.values()}) > 1:
        raise DataError(f"{path}: draws of {', '.join(draws)} differ in chains and draws; {ADVICE}")
    for name, axes in known["axes"].items():
        sizes = [len(known["coords"].get(axis, ())) for axis in axes]
        if name in draws and list(draws[name].shape[2:]) != sizes:
            raise DataError(f"{path}: draws of {name!r} do not fit the labels along {', '.join(axes)}; {ADVICE}")
    rows, is_exact = _rows(file), law is not None and not draws
    extras = {name: table[name] for name in (*_EXTRAS, "sampling") if name in table}
    return Posterior(
        known["model"],
        Drawn(law.sample) if law is not None and is_exact else draws,
        axes={name: tuple(axes) for name, axes in known["axes"].items()},
        coords={name: tuple(labels) for name, labels in known["coords"].items()},
        notes=tuple(file.get("warnings", ())),
        attrs={name: table[name] for name in _PROVENANCE if isinstance(table.get(name), str | int | float)},
        table=partial(_table, rows),
        extras=lambda: Summary(**extras),  # type: ignore[typeddict-item]
        predictor=_predictor(path, known, law, draws),
        sample=law.sample if law is not None and is_exact else None,
        private=bool(file.get("private", False)),
        texts={column: tuple(texts) for column, texts in known.get("texts", {}).items()},
    )


def _law(path: Path, saved: SavedPosterior) -> Coefficients | Categories | Hazards | None:
    if saved["regression"] is not None:
        return _coefficients(path, saved["regression"])
    if saved["categories"] is not None:
        return _of_categories(path, saved["categories"])
    return None if saved["hazards"] is None else _of_hazards(path, saved["hazards"])


def _predictor(path: Path, saved: SavedPosterior, law: Any, draws: Mapping[str, Array]) -> Any:
    if isinstance(law, Coefficients) and draws and saved["regression"] is not None:
        by_draws = saved["regression"]["by_draws"]
        if not _of_regression(law, draws, by_draws):
            raise DataError(f"{path}: draws of {', '.join(draws)} are not those of a regression; {ADVICE}")
        return DrawnRows(law, draws) if by_draws else law
    if law is None and SURVIVAL in draws and saved["axes"].get(SURVIVAL) == CURVE_AXES:
        return DrawnCurves(tuple(float(time) for time in saved["coords"][CURVE_AXES[1]]), draws[SURVIVAL])
    return law


def _of_regression(linear: Coefficients, draws: Mapping[str, Array], by_draws: bool) -> bool:
    """Return whether the draws have all numbers that predictions take, one slope for each feature."""
    shapes = {COEFFICIENTS: (len(linear.names) - 1,), INTERCEPT: ()}
    if linear.link == IDENTITY and by_draws:
        shapes[RESIDUAL_SD] = ()
    return all(name in draws and draws[name].shape[2:] == shape for name, shape in shapes.items())


def _table(rows: list[Estimate], schema: Schema | None) -> list[Estimate]:
    return rows


def _rows(file: ResultFile) -> list[Estimate]:
    """Return the table of a file: the intercept first, as regressions have it."""
    rows = []
    if (first := file.get("intercept")) is not None:
        rows.append(Estimate(INTERCEPT, "", _figure(first), INTERCEPT))
    for table, found in ((COEFFICIENTS, file.get("coefficients", [])), (ESTIMATES, file.get("estimates", []))):
        for row in found:
            axis: Standard | None = row.get("standard")
            place: Place | None = row.get("at")
            known = (axis, place, _naive(row), row.get("family"))
            rows.append(Estimate(row["name"], row["unit"], _figure(row), table, *known))
    return rows


def _figure(row: Figures) -> Marginal:
    mean = float("nan") if row["estimate"] is None else row["estimate"]
    return Marginal(mean, row["estimate_sd"], _pair(row["interval_95"]), _pair(row["prior_interval_95"]))


def _naive(row: _Naive) -> Marginal | None:
    mean = row.get("naive")
    return None if mean is None else Marginal(mean, row.get("naive_sd"), _pair(row.get("naive_interval_95")))


def _pair(ends: Ends | None) -> tuple[float, float] | None:
    return None if ends is None else (ends[0], ends[1])


def _thinned(draws: Mapping[str, Array]) -> dict[str, Any]:
    """Return evenly spaced draws of each chain as nested lists."""
    size = sum(array[0, 0].size for array in draws.values())
    chains, count = next(iter(draws.values())).shape[:2]
    kept = max(1, min(DRAWS_MAX, NUMBERS_MAX // size) // chains)
    places = np.unique(np.linspace(0, count - 1, min(kept, count)).astype(int))
    return {name: _rounded(array[:, places]) for name, array in draws.items()}


def _rounded(array: Array) -> Any:
    """Return nested lists of numbers of `DIGITS` digits."""
    known = np.where(np.abs(array) < TINY, 0.0, array)  # shares of a rare category may be smaller than 10 ** unit shows
    with np.errstate(divide="ignore"):
        size = np.where(known == 0, 0, np.floor(np.log10(np.abs(known))))
    unit = 10.0 ** (DIGITS - 1 - size)
    return (np.round(known * unit) / unit).tolist()


def _drawn(path: Path, name: str, values: Any) -> Array:
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim < 2 or not array.size or not np.isfinite(array).all():
        raise DataError(f"{path}: draws of {name!r} are not finite numbers in lists by chain and draw; {ADVICE}")
    return array


def _projection(columns: Standardisation) -> SavedColumns:
    return {
        "columns": list(columns.columns),
        "centre": columns.centre.tolist(),
        "scale": columns.scale.tolist(),
        "bound": [None if bound == inf else float(bound) for bound in columns.bound],
        "radius": None if columns.radius == inf else float(columns.radius),
        "within": None if columns.ends is None else columns.ends.T.tolist(),
    }


def _regression(fit: Coefficients, by_draws: bool) -> SavedRegression:
    return {
        **_projection(fit.columns),
        "link": fit.link,
        "constant": float(fit.constant),
        "mean": fit.mean.tolist(),
        "cov": fit.cov.tolist(),
        "residual_variance": float(fit.residual_variance),
        "spread": None if fit.spread is None else [fit.spread.mean, fit.spread.sd],
        "log_most": float(fit.log_most) if fit.link == LOG else None,
        "by_draws": by_draws,
    }


def _categories(fit: Categories) -> SavedCategories:
    return {
        **_projection(fit.columns),
        "ordered": fit.model.ordered,
        "codes": fit.codes.tolist(),
        "texts": list(fit.texts),
        "mean": fit.mean.tolist(),
        "cov": fit.cov.tolist(),
    }


def _hazards(fit: Hazards) -> SavedHazards:
    columns = fit.layout
    return {
        "duration": columns.duration,
        "event": columns.event,
        "times": list(columns.times),
        "group": columns.group,
        "groups": columns.groups,
        "features": list(columns.features),
        "censored": columns.censored,
        "first_group": columns.first_group,
        "texts": (list(columns.texts[0]), list(columns.texts[1])),
        "centre": fit.columns.centre.tolist(),
        "scale": fit.columns.scale.tolist(),
        "group_shares": fit.group_shares.tolist(),
        "mean": fit.mean.tolist(),
        "cov": fit.cov.tolist(),
    }


def _standardisation(path: Path, saved: SavedColumns) -> Standardisation:
    names, wrong = saved["columns"], f"{path}: the regression's law does not fit its columns"
    try:
        centre, scale = (np.array(saved[name], float) for name in ("centre", "scale"))
        bound = np.array([inf if one is None else one for one in saved["bound"]], float)
        within = None if saved["within"] is None else np.array(saved["within"], float).T
    except ValueError:
        raise DataError(f"{wrong} {', '.join(names)}; {ADVICE}") from None
    p, radius = len(names), inf if saved["radius"] is None else saved["radius"]
    shapes = all(array.shape == (p,) for array in (centre, scale, bound)) and p >= 2
    positive = (scale > 0).all() and (bound > 0).all() and radius > 0
    if not shapes or not positive or not np.isfinite([*centre, *scale]).all():
        raise DataError(f"{wrong} {', '.join(names)}; {ADVICE}")
    if within is not None and within.shape != (2, p):
        raise DataError(f"{wrong} {', '.join(names)}; {ADVICE}")
    return Standardisation(tuple(names), centre, scale, bound, radius, within)


def _normal(path: Path, saved: SavedRegression | SavedCategories | SavedHazards, size: int, names: list[str]) -> Normal:
    """Return mean and covariance of that many parameters, of a law of these columns."""
    wrong = f"{path}: the regression's law does not fit its columns {', '.join(names)}; {ADVICE}"
    try:
        mean, cov = np.array(saved["mean"], float), np.array(saved["cov"], float)
    except ValueError:
        raise DataError(wrong) from None
    if mean.shape != (size,) or cov.shape != (size, size) or not np.isfinite(mean).all():
        raise DataError(wrong)
    if not np.isfinite(cov).all() or np.abs(cov - cov.T).max() > NEARLY * np.trace(cov) or _least(cov) < -NEARLY:
        raise DataError(f"{path}: the regression's covariance is no covariance matrix; {ADVICE}")
    return Normal(mean, cov)


def _coefficients(path: Path, saved: SavedRegression) -> Coefficients:
    columns, spread = _standardisation(path, saved), saved["spread"] or [0.0, 0.0]
    theta = _normal(path, saved, len(columns.columns), saved["columns"])
    right = saved["residual_variance"] >= 0 and len(spread) == 2 and spread[0] >= 0
    if not right or saved["link"] not in LINKS:
        raise DataError(
            f"{path}: the regression's law does not fit its columns {', '.join(saved['columns'])}; {ADVICE}"
        )
    return Coefficients(
        columns=columns,
        mean=theta.mean,
        cov=theta.cov,
        link=saved["link"],
        constant=saved["constant"],
        residual_variance=saved["residual_variance"],
        spread=None if saved["spread"] is None else Spread("", spread[0], spread[1]),
        most=saved["log_most"],
        point=not theta.cov.any(),
    )


def _of_categories(path: Path, saved: SavedCategories) -> Categories:
    columns, codes = _standardisation(path, saved), np.array(saved["codes"], float)
    if codes.ndim != 1 or len(codes) < 2 or not np.isfinite(codes).all() or not (np.diff(codes) > 0).all():
        raise DataError(f"{path}: codes of categories are {saved['codes']}, not numbers that increase; {ADVICE}")
    if len(texts := tuple(saved.get("texts", ()))) not in (0, len(codes)):
        raise DataError(f"{path}: {len(texts)} texts of {len(codes)} categories; {ADVICE}")
    model = Model(saved["ordered"], len(codes), len(columns.columns) - 1)
    theta = _normal(path, saved, model.basis.shape[1], saved["columns"])
    return Categories(columns=columns, model=model, codes=codes, texts=texts, mean=theta.mean, cov=theta.cov)


def _of_hazards(path: Path, saved: SavedHazards) -> Hazards:
    names = [saved["duration"], saved["event"], *saved["features"]]
    wrong = f"{path}: the regression's law does not fit its columns {', '.join(names)}; {ADVICE}"
    events, groups = saved.get("texts", ([], []))
    try:
        columns = Columns(
            saved["duration"],
            saved["event"],
            tuple(saved["times"]),
            saved["group"],
            saved["groups"],
            tuple(saved["features"]),
            saved["censored"],
            saved["first_group"],
            texts=(tuple(events), tuple(groups)),
        )
    except DataError as error:
        raise DataError(f"{path}: {error}; {ADVICE}") from None
    centre, scale, shares = (np.array(saved[name], float) for name in ("centre", "scale", "group_shares"))
    d, further = len(columns.features), columns.groups - 1
    if centre.shape != (d,) or scale.shape != (d,) or shares.shape != (further,):
        raise DataError(wrong)
    if not np.isfinite(centre).all() or not (scale > 0).all() or not ((shares > 0) & (shares < 1)).all():
        raise DataError(wrong)
    theta = _normal(path, saved, len(columns.times) + further + d, names)
    features = Standardisation(columns.features, centre, scale, np.full(d, inf))
    return Hazards(columns=features, layout=columns, group_shares=shares, mean=theta.mean, cov=theta.cov)


def _least(cov: Array) -> float:
    """Return the least eigenvalue, relative to the sum of all."""
    return float(np.linalg.eigvalsh(cov).min() / max(float(np.trace(cov)), np.finfo(float).tiny))
