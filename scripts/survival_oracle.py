#!/usr/bin/env python
"""Writes survival_oracle.json beside its tests: the results of lifelines on the simulated trial, without privacy.

lifelines needs an older pandas than the tests, so it runs in a separate environment, from the checkout:

    python -m venv oracle && oracle/bin/pip install lifelines && export PYTHONPATH=. PATH=oracle/bin:$PATH
    scripts/survival_oracle.py

Kaplan and Meier's curves, lifelines' bands, numbers at risk and the log-rank test are for the 600 patients of the data
set and for 5,000 from another seed; Cox's proportional hazards for 20,000.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from inference.datasets.simulated_trial import simulated_trial
from inference.problem import Problem

TARGET = Path(__file__).parent.parent / "tests/inference/models/survival/survival_oracle.json"
TIMES = [3.0 * k for k in range(1, 13)]
SIZES, COX_PATIENTS, SEED = {"600": (600, 20261123), "5000": (5_000, 1)}, 20_000, 1


def frame(problem: Problem) -> Any:
    """Return the rows by name, as a pandas data frame."""
    import pandas as pd

    return pd.DataFrame(problem.rows, columns=list(problem.schema.columns))


def curves(trial: Any) -> dict[str, Any]:
    """Return both arms' curves at the times, and the test of equal hazards."""
    from lifelines import KaplanMeierFitter
    from lifelines.statistics import logrank_test

    found: dict[str, Any] = {"survival": [], "band_width": [], "at_risk": []}
    arms = [trial[trial.arm == arm] for arm in (0, 1)]
    for own in arms:
        fit = KaplanMeierFitter().fit(own.months, own.event)
        found["survival"].append(fit.survival_function_at_times(TIMES).tolist())
        ends = fit.confidence_interval_.reindex(fit.confidence_interval_.index.union(TIMES)).ffill().loc[TIMES]
        found["band_width"].append((ends.iloc[:, 1] - ends.iloc[:, 0]).tolist())
        found["at_risk"].append([int((own.months >= time).sum()) for time in TIMES])
    first, second = arms
    test = logrank_test(first.months, second.months, first.event, second.event)
    return {**found, "log_rank": float(test.test_statistic), "log_rank_p": float(test.p_value)}


def main() -> None:
    """Write the file."""
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    from lifelines import CoxPHFitter, __version__

    cox = CoxPHFitter().fit(frame(simulated_trial(COX_PATIENTS, SEED)), "months", "event")
    found = {
        "lifelines": __version__,
        "times": TIMES,
        "curves": {name: curves(frame(simulated_trial(*size))) for name, size in SIZES.items()},
        "cox": cox.params_[["arm", "age", "severity"]].tolist(),
        "cox_sd": cox.standard_errors_[["arm", "age", "severity"]].tolist(),
    }
    TARGET.write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
