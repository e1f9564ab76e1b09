"""Helper for tests of the papers' experiments: passes invented results through tables, notes and figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from papers.experiment import Experiment


def shown(experiment: Experiment[Any, Any], found: Any, folder: Path) -> list[Table]:
    """Return the tables; check that the notes are plain data and that the figure is drawn."""
    assert isinstance(json.loads(json.dumps(dict(experiment.notes(found)), allow_nan=False)), dict)
    experiment.draw(found, folder / "figure.png")
    assert (folder / "figure.png").stat().st_size > 10_000
    return list(experiment.tables(found))
