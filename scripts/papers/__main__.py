"""Run an experiment of the papers: ``python scripts/papers NAME --help``. Without a name, list the experiments."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

EXPERIMENTS = {
    "figure_1b": "dca2017.figure_1b:ScalingFactor",
    "figure_2": "dca2017.figure_2:Figure2",
    "figure_3": "dca2017.figure_3:Figure3",
    "efficiency": "dca2017.efficiency:Efficiency",
    "ldp_calibration": "ldp2021.calibration:Calibration",
    "ldp_figure_2": "ldp2021.click_distance:ClickDistance",
    "ldp_figure_3": "ldp2021.share_estimates:ShareEstimates",
    "ldp_figure_4": "ldp2021.regression:Figure4",
    "ldp_figure_5": "ldp2021.regression:Figure5",
    "ldp_figure_6": "ldp2021.sigmoid_gap:SigmoidGap",
    "ldp_or_dca": "ldp2021.trust:Trust",
    "mcmc_tables": "mcmc2023.tables:Tables",
    "mcmc_figure_2": "mcmc2023.simulated:Figure2",
    "mcmc_figure_3": "mcmc2023.timing:Timing",
    "mcmc_figure_4": "mcmc2023.simulated:Figure4",
    "mcmc_calibration": "mcmc2023.calibration:Calibration",
    "mcmc_efficiency": "mcmc2023.efficiency:Efficiency",
    "check_samplers": "mcmc2023.sampler_checks:SamplerChecks",
}
SAMPLERS = ("jax", "numpyro", "arviz")


def main(arguments: list[str]) -> int:
    """Run the named experiment with the remaining arguments; return the exit code."""
    name = arguments[0] if arguments else ""
    if name not in EXPERIMENTS:
        print(f"usage: python scripts/papers NAME [--help]; the names are {', '.join(EXPERIMENTS)}", file=sys.stderr)
        return 2
    module, _, experiment = EXPERIMENTS[name].partition(":")
    try:
        for needed in () if module.startswith("dca2017") else SAMPLERS:
            import_module(needed)
        found = getattr(import_module(f"papers.{module}"), experiment)
    except ModuleNotFoundError as error:
        if error.name not in SAMPLERS:
            raise
        print(f"{name} needs {error.name}, which is not installed: pip install -e '.[samplers]'", file=sys.stderr)
        return 2
    sys.argv = [name, *arguments[1:]]
    code: int = found.main(name)
    return code


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))  # of workers
    sys.exit(main(sys.argv[1:]))
