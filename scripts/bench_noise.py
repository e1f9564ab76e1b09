#!/usr/bin/env python3
"""Speed of the exact discrete Gaussian sampler on one core.

    python scripts/bench_noise.py [--variance S] [--repeats R] [--json FILE|-]

Three figures, each the median of R repeats with the quartiles: samples per second of one long draw (10,000 from one
key), samples per second of many short ones (1,000 keys, 10 each), and microseconds of a single short draw (10 from one
key). Beside them the time to build the table of a variance, paid once, and the bare ChaCha20 stream of the long draw.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import nacl
import numpy as np
from nacl.bindings import randombytes_buf_deterministic

from dca_proto.core.noise import KEY_BYTES, DiscreteGaussian

KEYS = [secrets.token_bytes(KEY_BYTES) for _ in range(1000)]


def seconds(call: Callable[[], object], loops: int, repeats: int) -> list[float]:
    """Seconds per call, one figure per repeat, after one call to warm up."""
    call()
    figures = []
    for _ in range(repeats):
        start = perf_counter()
        for _ in range(loops):
            call()
        figures.append((perf_counter() - start) / loops)
    return figures


def spread(figures: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(figures, n=4)
    return {"median": median, "quartile_low": low, "quartile_high": high}


def measure(variance: int, repeats: int) -> dict[str, dict[str, float]]:
    sampler = DiscreteGaussian(variance)
    long = seconds(lambda: sampler.sample(10_000, KEYS[0]), 20, repeats)
    many = seconds(lambda: sampler.sample_many(KEYS, 10), 5, repeats)
    single = seconds(lambda: [sampler.sample(10, key) for key in KEYS], 1, repeats)
    build = seconds(lambda: DiscreteGaussian(variance), 2, repeats)
    stream = seconds(lambda: [randombytes_buf_deterministic(2**14, key) for key in KEYS[:10]], 20, repeats)
    return {
        "long_samples_per_s": spread([1e4 / s for s in long]),
        "many_samples_per_s": spread([1e4 / s for s in many]),
        "single_call_us": spread([s * 1e3 for s in single]),
        "build_ms": spread([s * 1e3 for s in build]),
        "stream_bytes_per_s": spread([10 * 2**14 / s for s in stream]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variance", type=int, default=2**40, help="S, in grid units squared (default 2^40)")
    parser.add_argument("--repeats", type=int, default=15, help="at least 2 (default 15)")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures as one JSON object")
    options = parser.parse_args()
    report = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pynacl": nacl.__version__,
        "machine": platform.machine(),
        "variance": options.variance,
        "repeats": options.repeats,
        "figures": measure(options.variance, options.repeats),
    }
    if options.json == "-":
        json.dump(report, sys.stdout, indent=1)
        return
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1))
    for name, value in report.items():
        if name != "figures":
            print(f"{name:>20}  {value}")
    for name, figure in report["figures"].items():
        print(f"{name:>20}  {figure['median']:.4g}  ({figure['quartile_low']:.4g} to {figure['quartile_high']:.4g})")


if __name__ == "__main__":
    main()
