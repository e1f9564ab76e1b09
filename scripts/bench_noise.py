#!/usr/bin/env python3
"""Times the exact discrete Gaussian sampler on one core, the inexact one, and the local mechanisms.

    scripts/bench_noise.py
    scripts/bench_noise.py --variance 1000000 --repeats 5 --json -

Two figures, each the median of R repeats with the quartiles: samples per second of one long draw (10,000 from one key),
and microseconds of a single short draw (10 from one key). Further figures are the time to build the table of a
variance, which is needed once, and the bare ChaCha20 stream of the long draw. `fast_...` are the same figures for the
rounded normals that are not private (`dca swarm --fast-noise`).

`local_..._reports_per_s` are for reports of 10,000 clients at epsilon 1: vectors of 10 coordinates with an L1
sensitivity of 2^28 grid units, and categories out of 10; `..._one_us` is the time of a device's single report.
"""

from __future__ import annotations

import argparse
import platform
import secrets
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter

import nacl
import numpy as np
from nacl.bindings import randombytes_buf_deterministic

from dca_proto.crypto.sealing import KEY_BYTES
from dca_proto.privacy.local import AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding
from dca_proto.privacy.noise import DiscreteGaussian
from dca_proto.runtime.files import STDOUT, write_json
from dca_proto.statistics.sensitivity import Sensitivity
from emulator.inexact import RoundedGaussian

KEYS = [secrets.token_bytes(KEY_BYTES) for _ in range(1000)]
CLIENTS = 10_000
GRID = Sensitivity(l1=2**28, l2_squared=2**54, bound=2**27)
VECTORS = np.zeros((CLIENTS, 10), dtype=np.int64)
CATEGORIES = np.arange(CLIENTS) % 10
LOCAL = (
    (AnalyticGaussian(1.0, 1e-6, GRID, 10), VECTORS),
    (GridLaplace(1.0, GRID, 10), VECTORS),
    (RandomisedResponse(1.0, 10), CATEGORIES),
    (UnaryEncoding(1.0, 10), CATEGORIES),
)


def seconds(call: Callable[[], object], loops: int, repeats: int) -> list[float]:
    """Return the seconds per call of each repeat, after one call to warm up."""
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
    single = seconds(lambda: [sampler.sample(10, key) for key in KEYS], 1, repeats)
    build = seconds(lambda: DiscreteGaussian(variance), 2, repeats)
    stream = seconds(lambda: [randombytes_buf_deterministic(2**14, key) for key in KEYS[:10]], 20, repeats)
    return {
        "long_samples_per_s": spread([1e4 / s for s in long]),
        "single_call_us": spread([s * 1e3 for s in single]),
        "build_ms": spread([s * 1e3 for s in build]),
        "stream_bytes_per_s": spread([10 * 2**14 / s for s in stream]),
    }


def measure_inexact(variance: int, repeats: int) -> dict[str, dict[str, float]]:
    sampler = RoundedGaussian()
    long = seconds(lambda: sampler.sample(variance, 10_000, KEYS[0]), 20, repeats)
    single = seconds(lambda: sampler.sample(variance, 10, KEYS[0]), 100, repeats)
    return {
        "fast_long_samples_per_s": spread([1e4 / s for s in long]),
        "fast_single_call_us": spread([s * 1e6 for s in single]),
    }


def measure_local(repeats: int) -> dict[str, dict[str, float]]:
    figures = {}
    for mechanism, values in LOCAL:
        name = f"local_{mechanism.name.replace('-', '_')}"
        many = seconds(partial(mechanism.randomise, values, KEYS[0]), 1, repeats)
        one = seconds(partial(mechanism.randomise, values[:1], KEYS[0]), 20, repeats)
        figures[f"{name}_reports_per_s"] = spread([CLIENTS / s for s in many])
        figures[f"{name}_one_us"] = spread([s * 1e6 for s in one])
    return figures


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
        "figures": {
            **measure(options.variance, options.repeats),
            **measure_inexact(options.variance, options.repeats),
            **measure_local(options.repeats),
        },
    }
    write_json(report, options.json)
    if options.json == STDOUT:
        return
    for name, value in report.items():
        if name != "figures":
            print(f"{name:>41}  {value}")
    for name, figure in report["figures"].items():
        print(f"{name:>41}  {figure['median']:.4g}  ({figure['quartile_low']:.4g} to {figure['quartile_high']:.4g})")


if __name__ == "__main__":
    main()
