"""An invented measurement of scaling, as the command writes it with `--json`, to make its page of."""

from __future__ import annotations

import math
from typing import Any

PAPER = {
    10: {100: 1.72, 1_000: 1.89, 10_000: 2.99, 100_000: 8.58},
    100: {100: 2.03, 1_000: 2.86, 10_000: 12.36, 100_000: 65.64},
    1_000: {100: 3.43, 1_000: 10.56, 10_000: 101.2},
    10_000: {100: 15.30, 1_000: 84.95},
}


def scaling() -> dict[str, Any]:
    """Table 1's cells, with dropouts swept at one size."""
    cells = [cell(n, d, paper) for d, row in PAPER.items() for n, paper in row.items()]
    swept = [{**cell(1_000, 10, 1.89), "tolerate": t, "noise_sd": 8.4 / math.sqrt(1 - t / 1000)} for t in (100, 300)]
    return {
        "kind": "scaling",
        "versions": {"dca-proto": "0.1.0", "python": "3.11.7", "numpy": "2.1.0"},
        "machine": {"system": "Linux x86_64", "processor": "two cores of 2.6 GHz", "cores": 2},
        "options": {"clients": [100, 1_000, 10_000, 100_000], "dimension": [*PAPER], "computes": [10],
                    "tolerate": [0.0], "drop_rates": [0.0], "backend": "emulated", "repeats": 5},
        "cells": [*cells, *swept],
        "fits": {"wall_s": {"exponents": {"N": exponent(0.97), "d": exponent(0.31)}, "cells": 14, "spread": 0.2}},
        "calibration": {"core_s": {"all": {"client": 3.1e-4, "pair": 4.4e-5}}},
        "held_out": [
            {"clients": 10_000, "dimension": 100, "computes": 10, "quantity": "core seconds", "measured": 4.1,
             "predicted": 4.4, "error": 0.073},
        ],
        "prediction": prediction(),
    }  # fmt: skip


def exponent(value: float) -> dict[str, Any]:
    return {"value": value, "interval": [value - 0.04, value + 0.04]}


def prediction() -> dict[str, Any]:
    def role(actors: int, core_s: float, machines: int | None) -> dict[str, Any]:
        core = {"value": core_s, "interval": [0.8 * core_s, 1.3 * core_s]}
        each = {"core_s_each": core_s / actors, "bytes_each": 9.1e4, "memory_bytes_each": 4.8e9, "messages": 4e7}
        return {"actors": actors, "core_s": core, **each, "bytes": 1e12, "machines": machines, "tightest": "cores"}

    return {
        "clients": 10_000_000,
        "dimension": 10_000,
        "computes": 10,
        "round_s": 3600.0,
        "roles": {"client": role(10_000_000, 8e4, None), "compute": role(10, 3e4, 20), "trainer": role(1, 900.0, 1)},
        "broker": {"messages": 3e8, "messages_s": 83_000.0, "bytes": 2e12, "bytes_s": 5.5e8, "machines": 2,
                   "tightest": "messages"},
        "agreement_s": 4e3,
        "sessions_s": 2e3,
        "assumptions": ["costs grow with the number of pairs as measured", "the broker is on machines of its own"],
    }  # fmt: skip


def cell(clients: int, dimension: int, paper_s: float | None) -> dict[str, Any]:
    wall = 0.02 + 4e-4 * clients + 9e-8 * clients * dimension * 10
    return {
        "clients": clients,
        "dimension": dimension,
        "computes": 10,
        "backend": "emulated",
        "tolerate": 0,
        "drop_rate": 0.0,
        "repeats": 5,
        "wall_s": wall,
        "wall_s_spread": [0.93 * wall, 1.2 * wall],
        "core_s": wall,
        "phases": {"collect": 0.8 * wall, "agree": 0.2 * wall},
        "us_per_contribution": {"client": 71.0, "compute": 52.0, "trainer": 0.5, "emulator": 21.0},
        "floor_us": {"client": 21.0, "compute": 22.0, "trainer": 0.0},
        "sessions_wall_s": 0.7 * wall,
        "first_round_wall_s": 2.4 * wall,
        "bytes": {"client": 900 * clients, "compute": 80 * dimension, "trainer": 40 * clients},
        "messages": {"client": 4 * clients, "compute": 31, "trainer": 12},
        "core_s_by_role": {
            "client": 0.6 * wall,
            "compute": 0.3 * wall,
            "trainer": 0.02 * wall,
            "emulator": 0.08 * wall,
        },
        "agreement_s": 0.4 * wall,
        "peak_rss_mb": 120.0 + clients / 400,
        "compute_memory_bytes": 900 * clients,
        "compute_memory_least_bytes": 24 * clients,
        "compute_memory_after_bytes": 450 * clients,
        "paper_s": paper_s,
        "ratio": None if paper_s is None else wall / paper_s,
        "success_rate": 1.0,
        "noise_sd": 8.4,
    }
