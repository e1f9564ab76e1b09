"""A feature with two values cannot be curved, so no job's warning of a curve names one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from check_false_alarms import warned
from inference.jobs import NAMES, find
from inference.jobs.examples import DESIGNS, Design
from inference.models.glm import curves
from inference.models.survival import doubts
from inference.problem import Problem, Schema

WARNING = ("logistic", "robust-regression", "poisson-regression", "ordinal-regression", "multinomial-regression",
           "survival-regression")  # fmt: skip


def with_codes(name: str) -> Design | None:
    """Return the first design of a job that has a feature with two values, and another one."""
    for design in DESIGNS[find(name).clean.designs]:
        schema = design(np.random.default_rng(0), 10).schema
        if find(name).regresses and 0 < len({*schema.two_valued} - {"event"}) < len(schema.features):
            return design
    return None


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_no_warning_of_a_curve_names_a_feature_with_two_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is estimated counts as clear here: every number is named, and no code."""
    design = with_codes(name)
    if design is None:
        assert name not in WARNING
        return
    monkeypatch.setattr(curves, "ndtri", lambda _: 0.0)
    monkeypatch.setattr(doubts, "ndtri", lambda _: 0.0)
    monkeypatch.setattr(curves, "MATTERS", -1.0)
    seen: list[Problem] = []

    def noted(rng: np.random.Generator, n: int) -> Problem:
        seen.append(design(rng, n))
        return seen[-1]

    found, schema = " ".join(one for one in warned(name, noted, 0) if "curved" in one), seen[0].schema
    named = {*re.findall(r"relation to (\w+) is", found)}
    named |= {*re.findall(r"\w+", re.sub(".*curved in (.*?), so.*|.*", r"\1", found))} - {"and"}
    assert bool(found) is (name in WARNING)
    assert not named & {*schema.two_valued}
    assert bool(named) is (name in WARNING)


def test_columns_of_two_values_are_known_by_their_bounds() -> None:
    labels = {"arm": ("placebo", "drug", "both"), "sex": ("f", "m"), "x": (0, 2), "code": (0, 1), "y": (0, 9)}
    schema = Schema(("arm", "sex", "x", "code"), "y", labels).with_indicators()
    assert schema.two_valued == ("arm=drug", "arm=both", "sex=m", "code")
