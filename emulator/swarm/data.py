"""The data that a learning swarm distributes to its clients: a data set by name, or a user's table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.categories import parse_categories
from inference.bounds import MissingBoundsError, given_bounds
from inference.datasets import from_csv, load
from inference.datasets.csv_file import MISSING, REFUSE
from inference.problem import Problem

TEST_FRACTION = 0.225
_BOUNDS_ADVICE = (
    "give --bounds COL=LO:HI,... or a TOML file, from what is known of the measurement, or --categories COL=A,B,C of "
    "texts (or, for a trial that is not private, --bounds-from-data)"
)


class DataOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which data, as the options say.

    Attributes:
        dataset: name of a known one. data_folder: where its files are.
        csv, target, bounds: a table of one's own, its column to predict, its public bounds.
        categories: of its text columns. missing: what becomes of rows that lack a value.
        bounds_from_data: read them from the data instead; then nothing is private.
        features: columns to predict from, or None for all others.
    """

    dataset: str | None = None
    data_folder: Path | None = None
    csv: Path | None = None
    target: str | None = None
    bounds: str | None = None
    bounds_from_data: bool = False
    categories: list[str] | None = None
    missing: str | None = None
    features: list[str] | None = None


def problem_of(
    options: DataOptions, *, default: str = "diabetes", alone: bool = False, needed: tuple[str, ...] = ()
) -> Problem:
    """The problem that the options name.

    Args:
        default: the data set where they name none. needed: a table's columns that are read beside such a target.
        alone: whether a table's target is described and not predicted, so that no other column of it is needed.

    Raises:
        UsageError: the options exclude each other.
        DataError: the data cannot be had or used.
    """
    if options.csv is None:
        named = {"target": options.target, "bounds": options.bounds, "bounds-from-data": options.bounds_from_data,
                 "categories": options.categories, "missing": options.missing}  # fmt: skip
        if own := [f"--{name}" for name, value in named.items() if value]:
            raise UsageError(f"{', '.join(own)}: only with --csv; built-in data have their own")
        return load(options.dataset or default, options.features, folder=options.data_folder)
    if options.dataset is not None or options.data_folder is not None:
        other = "--dataset" if options.dataset is not None else "--data-folder"
        raise UsageError(f"--csv and {other} exclude each other; keep one")
    if options.target is None:
        raise UsageError("--csv needs --target COLUMN, the column to predict")
    if options.bounds is not None and options.bounds_from_data:
        raise UsageError("--bounds and --bounds-from-data exclude each other; keep one")
    if options.missing not in (None, *MISSING):
        raise UsageError(f"--missing {options.missing}: expected one of {', '.join(MISSING)}")
    given = {} if options.bounds is None else given_bounds(options.bounds)
    features = list(needed) if alone and options.features is None else options.features
    try:
        return from_csv(
            options.csv,
            options.target,
            given,
            features,
            trial_bounds=options.bounds_from_data,
            alone=alone,
            categories=parse_categories(options.categories or ()),
            missing=options.missing or REFUSE,
        )
    except MissingBoundsError as error:
        raise MissingBoundsError(error.columns, _BOUNDS_ADVICE) from None


def first_rows(train: Problem, clients: int) -> Problem:
    """As many rows as clients, each of whom reports one. Raises `UsageError` where there are fewer."""
    rows = len(train.y)
    if not 1 <= clients <= rows:
        raise UsageError(f"--clients {clients}: each reports one of the {rows} training rows, so give 1 to {rows}")
    return train.take(np.arange(clients))


def assign(rows: NDArray[np.float64], clients: int) -> list[NDArray[np.float64]]:
    """Deal rows to clients as evenly as possible; each contributes the mean of its own, a data node the sum."""
    return [rows[index::clients] for index in range(clients)]
