"""What the page of a scaling sweep says beside its tables: memory that must be kept, how far off predictions are."""

from __future__ import annotations

from pages import outline_of, text_of
from scaling_samples import prediction, scaling


def test_the_page_states_what_a_node_keeps_of_each_client() -> None:
    said = text_of(scaling())
    assert "a Compute node uses 900 B for each client" in said
    assert "24 B of that are contributions, kept until the set is agreed" in said
    bare = [{key: value for key, value in one.items() if "memory" not in key} for one in scaling()["cells"]]
    assert "a Compute node uses" not in text_of({**scaling(), "cells": bare})


def test_held_out_figures_have_their_units_and_rough_figures_are_named() -> None:
    size = {"clients": 600, "dimension": 10, "computes": 3}
    held_out = [
        {**size, "quantity": "client messages", "measured": 10_240.0, "predicted": 10_241.0, "error": 1e-4},
        {**size, "quantity": "client bytes", "measured": 5e6, "predicted": 6e6, "error": 0.2},
        {**size, "quantity": "key agreement core seconds", "measured": 0.5, "predicted": 0.25, "error": -0.5},
    ]
    said = text_of({**scaling(), "held_out": held_out, "prediction": prediction()})
    assert "client messages 10,240 10,241 +0.01 %" in said
    assert "err by at most 20 % (client bytes): within 25 %; sessions and key agreement are rough figures" in said
    assert "key agreement takes roughly 66.7 min of core time" in said


def test_growth_has_its_intervals_in_brackets() -> None:
    rows = outline_of(scaling()).rows
    assert ["wall time", "0.97 [0.93, 1.01]", "0.31 [0.27, 0.35]", "20 %", "14"] in rows
