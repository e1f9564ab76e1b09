#!/usr/bin/env python
"""Times what an analyst waits for: the first and the second call of each job of the registry in a new process.

A call is a job's rounds over the ideal functionality, its fit, and the summary, on the job's clean data: 5,000 clients
at epsilon 2, unless the job states more (`inference.jobs.examples`). The first call of a job that samples includes the
import of JAX and the compilation of its sampler. By default nothing compiled is kept; with --cache a first process
fills an empty cache and a second one reads it. CPU seconds are those of all threads: they depend less on what else runs
than wall seconds do.

Examples:

    scripts/bench_learning.py                                    3 processes for each job
    scripts/bench_learning.py --against ../old --jobs ldp-mean   beside another checkout, in turns, with ratios
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dca_proto.runtime.files import STDOUT, write_json
from inference.jobs import NAMES

NODES, DELTA = 10, 1e-5
FIGURES = ("first_s", "first_cpu_s", "second_s", "second_cpu_s")


def learn(name: str, seed: int) -> tuple[float, float]:
    """Run a job over ideal rounds; return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    import numpy as np

    from dca_proto.cli.job_settings import best_weights
    from dca_proto.jobs.job import JobTerms
    from dca_proto.privacy.budget import Budget
    from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
    from emulator.ideal import IdealSwarm
    from inference.jobs import find
    from inference.jobs.base import Conditions
    from inference.jobs.examples import DESIGNS
    from inference.jobs.settings import settings_from
    from inference.rounds import run

    job, rng = find(name), np.random.default_rng(seed)
    clean, kind = job.clean, job.kinds[0]
    data = DESIGNS[clean.designs][0](rng, clean.clients)
    own, local, nodes = settings_from(job.settings, clean.settings, name), kind is LdpReport, kind is NodeRelease
    parts = np.array_split(data.rows, NODES) if nodes else data.rows
    budget, tolerate = Budget(clean.epsilon, DELTA), 0 if local or nodes else len(parts) // 10
    computes = () if local or nodes else tuple(bytes([index]) * 16 for index in range(3))
    terms = JobTerms(
        epsilon=budget.epsilon, delta=budget.delta, clients=len(parts), tolerate=tolerate, computes=computes
    )
    known = Conditions(len(parts), tolerate, budget.mu, rng, kind=kind, epsilon=budget.epsilon, weights=best_weights)
    released = run(job.make(data.schema, own, known), IdealSwarm(parts, data.schema.columns, terms))
    job.summarise(job.finish(released, data.schema, own, known), None, None, None, data.schema)
    return time.perf_counter() - wall, time.process_time() - cpu


def calls(name: str) -> dict[str, float]:
    """Return the figures of two calls in this process."""
    return dict(zip(FIGURES, (*learn(name, 0), *learn(name, 1)), strict=True))


def in_new_process(name: str, checkout: Path, cache: Path | None) -> dict[str, float]:
    """Return the figures of a new process that imports the packages of a checkout."""
    kept = {"JAX_COMPILATION_CACHE_DIR": str(cache)} if cache else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--inside", name]
    environment = {**os.environ, **kept, "PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measured(name: str, checkouts: list[Path], repeats: int, *, cached: bool) -> list[dict[str, Any]]:
    """Return the figures of each checkout, its processes in turn with the others'."""
    runs: list[list[dict[str, float]]] = [[] for _ in checkouts]
    for _ in range(repeats):
        for place, checkout in enumerate(checkouts):
            with tempfile.TemporaryDirectory() as folder:
                cache = Path(folder) if cached else None
                if cached:
                    in_new_process(name, checkout, cache)
                runs[place].append(in_new_process(name, checkout, cache))
    return [
        {"job": name, "checkout": str(checkout)}
        | {figure: statistics.median(one[figure] for one in own) for figure in FIGURES}
        | {f"{figure}_all": [one[figure] for one in own] for figure in FIGURES}
        for checkout, own in zip(checkouts, runs, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="processes for each job (default: 3)")
    parser.add_argument("--jobs", nargs="+", choices=NAMES, default=list(NAMES), help="by default all")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--cache", action="store_true", help="measure a process that reads a filled cache")
    parser.add_argument("--inside", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(calls(options.inside)))
        return 0
    checkouts = [Path(__file__).parent.parent, *([options.against] if options.against else [])]
    rows = [row for name in options.jobs for row in measured(name, checkouts, options.repeats, cached=options.cache)]
    about = {"python": platform.python_version(), "cores": os.cpu_count(), "repeats": options.repeats}
    write_json({**about, "cache": options.cache, "jobs": rows}, options.json)
    if options.json == STDOUT:
        return 0
    print(f"Python {about['python']}, {about['cores']} cores, medians of {options.repeats} processes, in seconds")
    for row in rows:
        first, second = (
            f"{call} {row[f'{call}_s']:6.2f} ({min(row[f'{call}_s_all']):.2f} to {max(row[f'{call}_s_all']):.2f}), "
            f"CPU {row[f'{call}_cpu_s']:6.2f}"
            for call in ("first", "second")
        )
        print(f"{row['job']:<22} {first};  {second}  {row['checkout'] if options.against else ''}")
    if options.against:
        for own, other in zip(rows[::2], rows[1::2], strict=True):
            ratios = ", ".join(f"{figure} {own[figure] / other[figure]:.2f}" for figure in FIGURES)
            print(f"{own['job']:<22} ratio: {ratios}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
