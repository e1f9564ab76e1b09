"""Rows of a summary to draw, and the texts in an SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree


def texts_of(svg: Path) -> str:
    return " ".join("".join(one.itertext()) for one in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text"))


def row(text: str, **more: Any) -> dict[str, Any]:
    figures = {"estimate": 1.0, "estimate_sd": 0.1, "interval_95": [0.8, 1.2], "prior_interval_95": None}
    others = {"nonprivate": 1.1, "nonprivate_sd": 0.1, "nonprivate_interval_95": [0.9, 1.3]}
    return {"name": text, "unit": text, "contraction": None, **figures, **others, **more}
