"""Clients' rows as people have them, a data frame or a table with texts, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.categories import Categories, check_categories, encode_category, numeric_columns

OF_TEXTS = "for columns of texts give their lists: categories=schema.labelled"


def numbers(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows as floats. Raises `UsageError` for a text."""
    try:
        return np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"rows have cells that are not numbers: {str(error)[:100]}; {OF_TEXTS}") from None


def encoded(rows: Any, columns: Sequence[str], categories: Categories) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return rows of one for each client with codes and indicators of texts, and the names of the columns.

    Args:
        categories: of each column of texts. Those of other columns do not matter.

    Raises:
        UsageError: rows are no table of one for each client, or have texts in other columns.
    """
    is_frame = hasattr(rows, "to_numpy")
    if is_frame:
        _require_columns(rows, columns)
    table = np.empty((0, 0)) if is_frame else np.asarray(rows, dtype=object)
    if not is_frame and (table.ndim != 2 or table.shape[1] != len(columns)):
        raise UsageError(f"rows with texts have shape {table.shape}; expected (N, {len(columns)}), one for each client")
    listed = check_categories({name: categories[name] for name in columns if name in categories})
    found = []
    for place, name in enumerate(columns):
        cells = rows[name].to_numpy() if is_frame else table[:, place]
        if name not in listed:
            found.append(numbers(cells)[:, None])
            continue
        found.append(np.array([encode_category(cell, listed[name]) for cell in cells]).reshape(len(cells), -1))
    return np.hstack(found), numeric_columns(columns, listed)


def _require_columns(frame: Any, columns: Sequence[str]) -> None:
    lacking = [name for name in columns if name not in frame]
    if lacking:
        known = ", ".join(map(str, frame.columns))[:200]
        raise UsageError(f"the data frame has no column {lacking[0]!r}; it has {known}")


def of_frame(frame: Any, columns: tuple[str, ...]) -> NDArray[np.float64]:
    """Return the columns of a data frame, shape (N, number of columns); a missing value is NaN."""
    _require_columns(frame, columns)
    try:
        return np.asarray(frame[list(columns)].to_numpy(dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the data frame has values that are not numbers: {str(error)[:100]}; encode texts as numbers; {OF_TEXTS}"
        ) from None
