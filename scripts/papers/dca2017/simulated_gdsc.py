"""Files in the formats of GDSC release 6.1 whose content is made up, for trying what will run on the real ones.

940 cell lines, 265 drugs, ten genes among others, and about a tenth of the pairs not tested. Expression has a mean and
a spread of each gene's own; LN_IC50 depends on the relative expression so weakly as the paper's Figure 3 finds (a rank
correlation of about 0.25 without privacy). Nothing else about them is like biology. Both files say that they are
simulated: in the title of each gene, and in the version of each response.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from math import log
from pathlib import Path

import numpy as np

from inference.problem import Array, stream
from papers.dca2017.gdsc_files import (
    CONCENTRATION,
    DRUG,
    EXPRESSION_CENTRE,
    EXPRESSION_FILES,
    GENES,
    LINE,
    RESPONSE,
    RESPONSE_FILES,
    SIMULATED,
    VERSION,
    unit_rows,
)

LINES, DRUGS, OTHER_GENES = 940, 265, 90
TESTED = (0.75, 1.0)  # the share of lines that a drug was tested on lies between these
EXPLAINED = 0.1  # of a response's variance
SPREAD = 1.5  # standard deviation of a drug's LN_IC50: ranges in GDSC are 8.6 wide on average
CONCENTRATIONS = (1.0, 2.0, 4.0, 8.0, 10.0)  # µM
COLUMNS = (VERSION, "IC50_RESULTS_ID", LINE, DRUG, CONCENTRATION, RESPONSE, "AUC", "RMSE")


def write_simulated(folder: Path, seed: int, *, lines: int = LINES, drugs: int = DRUGS) -> None:
    """Both files, the same for the same seed, some 15 MB in all."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = stream(seed, "simulated GDSC")
    genes = [*GENES, *(f"GENE{number}" for number in range(OTHER_GENES))]
    means = EXPRESSION_CENTRE + rng.normal(0, 0.5, len(genes))
    expression = means + rng.normal(size=(lines, len(genes))) * rng.uniform(0.5, 1.5, len(genes))
    ids = [str(683_665 + 101 * number) for number in range(lines)]
    _write_expression(folder / EXPRESSION_FILES[0], genes, ids, expression)
    x = unit_rows(expression[:, : len(GENES)] - EXPRESSION_CENTRE)
    with (folder / RESPONSE_FILES[0]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number in range(drugs):
            writer.writerows(_responses(str(1 + 4 * number), ids, x, rng))


def _write_expression(path: Path, genes: list[str], ids: list[str], expression: Array) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("\t".join(["GENE_SYMBOLS", "GENE_title", *(f"DATA.{one}" for one in ids)]) + "\n")
        for gene, row in zip(genes, expression.T, strict=True):
            file.write("\t".join([gene, SIMULATED, *(f"{value:.6f}" for value in row)]) + "\n")


def _responses(drug: str, ids: list[str], x: Array, rng: np.random.Generator) -> Iterator[list[str]]:
    """Rows of one drug, of the lines that it was tested on."""
    signal = (x - x.mean(axis=0)) @ rng.normal(size=x.shape[1])
    signal *= SPREAD * EXPLAINED**0.5 / signal.std()
    top = rng.choice(CONCENTRATIONS)
    y = log(top) + rng.normal(1, 0.7) + signal + rng.normal(size=len(ids)) * SPREAD * (1 - EXPLAINED) ** 0.5
    tested = rng.random(len(ids)) < rng.uniform(*TESTED)
    for place in np.flatnonzero(tested):
        yield [SIMULATED, f"{drug}-{place}", ids[place], drug, f"{top:g}", f"{y[place]:.6f}", "", ""]
