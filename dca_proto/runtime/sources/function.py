"""A function of the owner's that returns the present rows."""

from __future__ import annotations

import importlib
import re
from typing import Any, ClassVar

import msgspec
import numpy as np

from dca_proto.errors import InputError
from dca_proto.runtime.sources.base import Listed, Source, TimeoutSeconds, check_columns, check_listed
from dca_proto.runtime.table import Say, Table, numbers_of

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class FunctionSource(Source, frozen=True, kw_only=True):
    """``python``: a function, which is called before a round for the present rows.

    It gets no argument; with a window, the window's begin in Unix seconds. It returns the rows as anything that NumPy
    takes for an array of shape ``(m, len(columns))``; None and NaN are missing values. It runs in a thread of its own.

    Args:
        python: ``module:function``. The module is one that Python can import.
        columns: names of the columns that it returns.
        categories: of its columns of texts, in the order of their codes (`dca_proto.statistics.categories`).
        timeout_s: how long it may take. A call that takes longer counts as no data.
    """

    key: ClassVar[str] = "python"
    advice: ClassVar[str] = "correct the function"

    python: str
    columns: tuple[str, ...]
    timeout_s: TimeoutSeconds = 10.0
    categories: Listed = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.python):
            raise InputError(f"[data] python: found {self.python!r}, expected module:function")
        check_columns("[data] columns", self.columns)
        check_listed("[data] columns", self.columns, self.categories)

    def read(self, say: Say) -> Table:
        function = self._function()
        found = function(self.since_s) if self.window_s else function()
        if self.categories:
            texts = Table(self.columns, found, categories=self.categories, say=say)
            names, rows = texts.columns, texts.rows(texts.columns)
        else:
            names, rows = self.columns, numbers_of(found)
        if rows.size == 0:
            rows = rows.reshape(0, len(names))
        return Table(names, np.where(np.isfinite(rows), rows, np.nan))

    def _function(self) -> Any:
        module, _, name = self.python.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            raise InputError(f"[data] python: {module!r} cannot be imported: {error}; is it installed here?") from None
        if not callable(found):
            raise InputError(f"[data] python: found no function {name!r} in {module!r}; give module:function")
        return found
