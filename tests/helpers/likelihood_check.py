"""The references of scripts/check_local_likelihoods.py for tests, and likelihoods with an error planted in them."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from mpmath import mp, mpf

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_local_likelihoods.py"


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("check_local_likelihoods", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


script = _loaded()


@cache
def _references(cell: Any) -> tuple[Any, ...]:
    """Return ln p of the cell's reports, by numerical integration."""
    with mp.workdps(script.DIGITS):
        return tuple(script.reference(cell, z) for z in cell.z)


def largest_error(cell: Any) -> float:
    """Return the largest error of ln p at the cell's reports; infinite if a value is not finite."""
    found = script.ours(cell)[0](cell.z)
    if not np.isfinite(found).all():
        return np.inf
    return max(abs(float(mpf(ours) - true)) for ours, true in zip(found.tolist(), _references(cell), strict=True))


def planted(module: ModuleType, right: str, wrong: str) -> Any:
    """Return the module with one piece of its text replaced."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(right) == 1, f"{right!r} is there {source.count(right)} times"
    changed = ModuleType(f"{module.__name__}_changed")
    sys.modules[changed.__name__] = changed
    exec(compile(source.replace(right, wrong), str(module.__file__), "exec"), changed.__dict__)
    return changed
