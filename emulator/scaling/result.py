"""A sweep over sizes, typed: `dca scaling --json` writes it, and the report reads it."""

from __future__ import annotations

from typing import Any

import msgspec

from emulator.scaling.calibration import HeldOut
from emulator.scaling.fit import Growth
from emulator.scaling.held import Figures
from emulator.scaling.predict import Prediction


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and what follows from it.

    Attributes:
        cells: as measured. versions, machine, options: of what, on what, and how.
        warnings: what speaks against the figures. fits: exponents. calibration: figure, role, term -> its cost.
        held_out: cells predicted from the others. prediction: of a larger round, if one was asked for.
    """

    kind: str = "scaling"
    cells: list[Figures]
    versions: Any = None
    machine: Any = None
    options: Any = None
    warnings: list[str] = msgspec.field(default_factory=list)
    fits: dict[str, Growth] = msgspec.field(default_factory=dict)
    calibration: dict[str, dict[str, dict[str, float]]] | None = None
    held_out: list[HeldOut] = msgspec.field(default_factory=list)
    prediction: Prediction | None = None
