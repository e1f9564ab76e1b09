#!/usr/bin/env python
"""The main job through the exact ideal functionality, over many seeds: how near it comes to learning without privacy.

Each seed draws its own split and its own drops; noise comes from the operating system, as always. Prints the ratio of
test RMSE with and without privacy; exit code 4 if the median is above 1.06 or fewer than 80 % are at most 1.10.

    scripts/check_main_job.py               200 seeds, both cores, about 15 s
    scripts/check_main_job.py --seeds 50 --epsilon 1
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from emulator import engine as engines
from emulator.ideal import IdealSwarm
from emulator.swarm.data import TEST_FRACTION, assign
from emulator.swarm.dropout import Dropouts
from inference.datasets import diabetes, split
from inference.models.coefficients import rmse
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.job import regression_with_projection
from inference.rounds import run

MEDIAN_MAX, WITHIN, SHARE_MIN = 1.06, 1.10, 0.8
COMPUTES = tuple(bytes([index]) * 16 for index in range(3))


def ratio(seed: int, epsilon: float) -> float:
    """Test RMSE with privacy over test RMSE without, for one split."""
    problem = diabetes()
    train, test = split(problem, round(TEST_FRACTION * len(problem.y)), seed)
    clients = len(train.y)
    tolerated = clients // 10
    terms = JobTerms(budget=Budget(epsilon, 1e-5), clients=clients, tolerated=tolerated, computes=COMPUTES)
    schema = train.schema
    job = regression_with_projection(schema)
    ids = [index.to_bytes(16, "big") for index in range(clients)]
    dropouts = Dropouts(ids, tolerated // 2, seed)
    absent = [frozenset(ids.index(bytes.fromhex(one)) for one in dropouts.next_round()) for _ in range(2)]
    result = run(job, IdealSwarm(assign(train.rows, clients), schema.columns, terms, absent=absent))
    private = rmse(result.predict(test.X)[0], test.y)
    return private / rmse(nonprivate_regression(train).predict(test.X)[0], test.y)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--engine", default=engines.LOCAL, help=engines.HELP)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    options = parser.parse_args()
    with engines.open_engine(options.engine) as engine:
        held = engine.map(partial(ratio, epsilon=options.epsilon), range(options.seeds), ordered=True)
        ratios = [
            done.value() for done in track(held, total=options.seeds, description="seeds", console=Console(stderr=True))
        ]
    figures = {
        "seeds": options.seeds,
        "epsilon": options.epsilon,
        "median": float(np.median(ratios)),
        "quantiles_5_95": [float(value) for value in np.quantile(ratios, [0.05, 0.95])],
        "share_within": float(np.mean(np.array(ratios) <= WITHIN)),
    }
    holds = figures["median"] <= MEDIAN_MAX and figures["share_within"] >= SHARE_MIN
    low, high = figures["quantiles_5_95"]
    print(
        f"{options.seeds} seeds: median RMSE ratio {figures['median']:.4f} (5 to 95 %: {low:.3f} to {high:.3f}), "
        f"{100 * figures['share_within']:.1f} % at most {WITHIN}; "
        f"asked: median <= {MEDIAN_MAX}, {100 * SHARE_MIN:.0f} %: {'holds' if holds else 'does not hold'}",
        file=sys.stderr if options.json == "-" else sys.stdout,
    )
    text = json.dumps({**figures, "ratios": ratios, "holds": holds}, indent=2)
    if options.json == "-":
        print(text)
    elif options.json:
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0 if holds else 4


if __name__ == "__main__":
    sys.exit(main())
