#!/usr/bin/env python
"""Figure 4 of the LDP paper: linear regression of wine quality from local reports, test RMSE over ε.

Some 35 minutes on two cores (20 of the 30 repeats took 23), nearly all of it NUTS.

Sufficient statistics with a noise-aware posterior (this library's tight noise, and the paper's), LDP-SGD, the same
models without privacy, and the mean, on 30 splits of 6,497 wines into 80 % and 20 %, at eight ε from 0.1 to 12.8; as
published (which reads centres and principal components from the rows, and so is not private) and valid. What the paper
leaves open, and what was chosen, stands at the heads of scripts/papers/ldp2021/regression_*.py and
inference/models/glm/sgd.py: 4 components, R the median norm, δ = 1e-5, LDP-SGD's groups and steps.

Exit code 4 where the order of the methods is not the paper's (sufficient statistics ahead of LDP-SGD over ε <= 0.4, and
LDP-SGD no longer behind at the largest), anything private is ahead of no privacy, or chains have not mixed.

    scripts/ldp_figure_4.py --json ldp_figure_4.json --plot ldp_figure_4.png --resume ldp_figure_4.jsonl
    scripts/ldp_figure_4.py --quick
"""

from __future__ import annotations

import sys
from functools import partial

from emulator.experiments.runner import main
from papers.ldp2021.regression_script import parser_of, run
from papers.ldp2021.regression_work import FIGURE_4

if __name__ == "__main__":
    sys.exit(main(partial(run, task=FIGURE_4), parser_of(__doc__)))
