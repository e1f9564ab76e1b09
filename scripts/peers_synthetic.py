#!/usr/bin/env python
"""Synthetic rows by central generators, to compare with: MST, AIM and PrivBayes of `dpmm`, MST of `smartnoise-synth`.

They learn from a table that `scripts/check_synthetic.py --write-table` has written, at one place and at the same ε and
δ. Run this in an environment of its own, as these packages need older ones: `pip install dpmm smartnoise-synth`. A
generator that fails is named, and others go on.

Examples:

    scripts/check_synthetic.py --write-table adult.csv
    scripts/peers_synthetic.py adult.csv folder            writes folder/dpmm-mst.csv, ...
    scripts/check_synthetic.py --peer dpmm-mst=folder/dpmm-mst.csv
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EPSILON, DELTA = 1.0, 1e-5


def _dpmm(kind: str) -> Callable[[Any, dict[str, int]], Any]:
    def made(frame: Any, domain: dict[str, int]) -> Any:
        from dpmm import pipelines

        model = getattr(pipelines, kind)(epsilon=EPSILON, delta=DELTA, disable_processing=True)
        model.fit(frame, domain)
        return model.generate(len(frame))

    return made


def _smartnoise(frame: Any, domain: dict[str, int]) -> Any:
    from snsynth import Synthesizer

    model = Synthesizer.create("mst", epsilon=EPSILON, delta=DELTA)
    return model.fit_sample(frame, categorical_columns=list(frame.columns), preprocessor_eps=0.0)


GENERATORS = {
    "dpmm-mst": _dpmm("MSTPipeline"),
    "dpmm-aim": _dpmm("AIMPipeline"),
    "dpmm-privbayes": _dpmm("PrivBayesPipeline"),
    "smartnoise-mst": _smartnoise,
}


def main() -> int:
    """Run all generators and return 0."""
    import pandas

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="names of generators, separated by commas")
    options = parser.parse_args()
    sizes, frame = (part.reset_index(drop=True) for part in _split(pandas.read_csv(options.table)))
    domain = {name: int(sizes[name][0]) for name in frame.columns}
    options.folder.mkdir(exist_ok=True)
    for name in (options.only or ",".join(GENERATORS)).split(","):
        began_s = time.monotonic()
        try:
            rows = GENERATORS[name](frame.copy(), domain)
            rows.to_csv(options.folder / f"{name}.csv", index=False)
            print(f"{name}: {time.monotonic() - began_s:.0f} s", flush=True)
        except Exception as error:  # a peer may fail in any way
            print(f"{name} failed after {time.monotonic() - began_s:.0f} s: {error}", flush=True)
    return 0


def _split(frame: Any) -> tuple[Any, Any]:
    return frame.iloc[:1], frame.iloc[1:]


if __name__ == "__main__":
    sys.exit(main())
