"""GDSC: gene expression of cancer cell lines, and how sensitive they are to drugs (release 6.1, as in the DCA paper).

Genomics of Drug Sensitivity in Cancer, https://www.cancerrxgene.org. Its terms of use forbid redistribution, so nothing
is downloaded: get the files there, and name their folder. Two files are read, in the formats of that release:

    Cell_line_RMA_proc_basalExp.txt               tab separated: GENE_SYMBOLS, GENE_title, and DATA.<COSMIC id> of each
                                                  cell line; or instead of it
    sanger1018_brainarray_ensemblgene_rma.txt     tab separated: ensembl_gene, and <COSMIC id> of each cell line
    v17_fitted_dose_response.xlsx                 a row for each tested pair: COSMIC_ID, DRUG_ID,
                                                  MAX_CONC_MICROMOLAR, LN_IC50 and others; or its export as .csv

Expression is RMA-normalised on a log2 scale. No hash of these files is published, so none is checked.

**The task** (DCA paper, supplement, section 4): predict LN_IC50, the logarithm of the concentration of a drug that
halves a line's growth, from the expression of ten genes. Each drug has one regression, on the lines it was tested on.
Each client scales its own row to an L2 norm of 1, because the genes' relative expression matters.

**Centring.** The published code subtracts the means of the rows, which is not private. The default are public
constants: a typical expression, and for a drug the logarithm of its largest tested concentration.

**Simulated files** (`write_simulated`) have the same formats, to try the experiment without the real ones: 940 cell
lines, 265 drugs, the ten genes among others; about a tenth of the pairs is not tested. LN_IC50 depends on the relative
expression as weakly as in the paper's Figure 3 (a rank correlation of about 0.25 without privacy). Nothing else
resembles biology. Both files are marked as simulated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log, nan
from pathlib import Path

import numpy as np

from inference.bounds import Interval
from inference.errors import DataError, unknown
from inference.problem import Array, Problem, Schema, stream
from papers.workbook import rows as sheet_rows

EXPRESSION_FILES = ("Cell_line_RMA_proc_basalExp.txt", "sanger1018_brainarray_ensemblgene_rma.txt")
RESPONSE_FILES = ("v17_fitted_dose_response.csv", "v17_fitted_dose_response.xlsx")
COLUMNS = (
    "DATASET_VERSION", "IC50_RESULTS_ID", "COSMIC_ID", "DRUG_ID", "MAX_CONC_MICROMOLAR", "LN_IC50", "AUC", "RMSE"
)  # fmt: skip
VERSION, LINE, DRUG, CONCENTRATION, RESPONSE = COLUMNS[0], *COLUMNS[2:6]
SIMULATED = "SIMULATED"
"""The version in simulated files."""
ENSEMBL = {
    "JAK2": "ENSG00000096968", "BRAF": "ENSG00000157764", "KRAS": "ENSG00000133703", "TP53": "ENSG00000141510",
    "EGFR": "ENSG00000146648", "FLT3": "ENSG00000122025", "PIK3CA": "ENSG00000121879", "IDH1": "ENSG00000138413",
    "KIT": "ENSG00000157404", "CTNNB1": "ENSG00000168036",
}  # fmt: skip
GENES = tuple(ENSEMBL)
"""The ten genes that mutate most in cancer among 70 preselected ones. The counts (45,860 for JAK2 down to 5,826 for
CTNNB1) and the preselection are published with the code of Honkela et al. 2018, whose procedure the DCA paper uses."""
EXPRESSION_CENTRE = 6.0  # log2 intensities of such arrays go from about 2 (not expressed) to 14
RESPONSE_HALF_WIDTH = 7.5  # the paper's assumed range


@dataclass(frozen=True, eq=False)
class Gdsc:
    """Expression of g genes and responses to k drugs, for the n lines that are in both files."""

    lines: tuple[str, ...]  # COSMIC ids
    genes: tuple[str, ...]  # symbols
    drugs: tuple[str, ...]  # ids
    expression: Array  # log2, (n, g)
    response: Array  # LN_IC50 in ln(µM), (n, k); NaN where a line was not tested
    concentration: Array  # largest tested concentration of each drug, in µM, (k,): public
    simulated: bool  # True if the files are marked as simulated

    def problem(self, drug: str, *, centred_as_published: bool = False) -> Problem:
        """Return the regression problem of one drug: rows of norm 1 of the lines that were tested.

        Args:
            centred_as_published: subtract the means of these rows; the schema is then not private.

        Raises:
            DataError: the drug is unknown.
        """
        if drug not in self.drugs:
            raise unknown("drug", drug, "the response file", self.drugs)
        place = self.drugs.index(drug)
        tested = ~np.isnan(self.response[:, place])
        x, y = self.expression[tested], self.response[tested, place]
        centres, middle = np.full(len(self.genes), EXPRESSION_CENTRE), log(self.concentration[place])
        reason = "the largest concentration tested, give or take e^7.5"
        if centred_as_published:
            centres, middle, reason = x.mean(axis=0), float(y.mean()), "the mean of these rows: not private"
        ends = middle - RESPONSE_HALF_WIDTH, middle + RESPONSE_HALF_WIDTH
        bounds = {gene: Interval(-1, 1, "rows have norm 1") for gene in self.genes}
        bounds[RESPONSE] = Interval(*ends, reason, public=not centred_as_published)
        return Problem(
            f"gdsc-{drug}", Schema(self.genes, RESPONSE, bounds, {RESPONSE: "ln(µM)"}), unit_rows(x - centres), y
        )


def unit_rows(x: Array) -> Array:
    """Divide each row by its L2 norm, as each client does with its own; leave a row of zeros as it is."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(norms > 0, norms, 1.0))


def read_gdsc(folder: Path, genes: Sequence[str] = GENES) -> Gdsc:
    """Read both files of a folder.

    Args:
        genes: symbols; the reader finds those of `GENES` by their Ensembl ids, too.

    Raises:
        DataError: a file, a column or a gene is missing, a file cannot be read, or a cell is no number.
    """
    try:
        expression = read_expression(_one_of(folder, EXPRESSION_FILES), genes)
        value, top, simulated = read_response(_one_of(folder, RESPONSE_FILES))
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}; make it readable") from None
    tested = {line for line, _ in value}
    lines = tuple(line for line in expression if line in tested)
    if not lines:
        raise DataError(
            f"{folder}: the expression and the response file have no cell line in common; take one release's"
        )
    drugs = tuple(sorted(top, key=lambda drug: (len(drug), drug)))
    cells = np.array([[value.get((line, drug), np.nan) for drug in drugs] for line in lines])
    rows, tops = (np.array(one) for one in ([expression[line] for line in lines], [top[drug] for drug in drugs]))
    return Gdsc(lines, tuple(genes), drugs, rows, cells, tops, simulated)


def _one_of(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{folder} holds no {' or '.join(names)}; get release 6.1 from https://www.cancerrxgene.org (see its terms of "
        "use), or run on simulated files"
    )


def read_expression(path: Path, genes: Sequence[str] = GENES) -> dict[str, list[float]]:
    """Return the expression of these genes by cell line. Reads line by line, because the file has some 18,000 genes."""
    names = {ENSEMBL.get(gene, gene): gene for gene in genes} | {gene: gene for gene in genes}
    found: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", errors="replace") as file:  # unused titles of genes have any encoding
        header = file.readline().rstrip("\n").split("\t")
        first = 2 if header[0].strip('"') == "GENE_SYMBOLS" else 1
        for line in file:
            gene = names.get(line.split("\t", 1)[0].strip('"'))
            if gene is not None:
                found[gene] = [_number(cell, path, gene) for cell in line.rstrip("\n").split("\t")[first:]]
    missing = [gene for gene in genes if gene not in found]
    if missing:
        raise DataError(f"{path.name} has no gene {', '.join(missing)}; choose genes that are in its first column")
    if any(len(found[gene]) != len(header) - first for gene in genes):
        raise DataError(f"{path.name}: a row is shorter or longer than the first line; the file is damaged")
    columns = [name.strip('"').removeprefix("DATA.") for name in header[first:]]
    # A line that was measured twice has ".1" after its id the second time; the first measurement counts.
    return {line: [found[gene][place] for gene in genes] for place, line in enumerate(columns) if line.isdigit()}


def read_response(path: Path) -> tuple[dict[tuple[str, str], float], dict[str, float], bool]:
    """Read the workbook, or its export as CSV.

    Returns:
        LN_IC50 by (line, drug), the largest concentration of each drug, and whether the file is simulated.
    """
    table, needed = _table(path), (LINE, DRUG, CONCENTRATION, RESPONSE)
    header = next(table, [])
    if missing := [name for name in needed if name not in header]:
        raise DataError(f"{path.name} has no column {', '.join(missing)}; expected the table of fitted dose responses")
    value, top, simulated = dict[tuple[str, str], float](), dict[str, float](), False
    for row in table:
        cells = dict(zip(header, row, strict=False))
        if cells.get(RESPONSE) and cells.keys() >= set(needed):
            drug = cells[DRUG]
            value[cells[LINE], drug] = _number(cells[RESPONSE], path, RESPONSE)
            top[drug] = max(_number(cells[CONCENTRATION], path, CONCENTRATION), top.get(drug, 0.0))
            simulated |= cells.get(VERSION) == SIMULATED
    return value, top, simulated


def _table(path: Path) -> Iterator[list[str]]:
    if path.suffix == ".xlsx":
        try:
            yield from sheet_rows(path)
        except ValueError as error:
            raise DataError(f"{path.name}: {error}; export it as CSV: {RESPONSE_FILES[0]}") from None
        return
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        yield from csv.reader(file)


def _number(cell: str, path: Path, column: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise DataError(f"{path.name}: found {cell!r} in {column}, expected a number; is the file in English?")
    return number


# Simulated files

LINES, DRUGS, OTHER_GENES = 940, 265, 90
TESTED = (0.75, 1.0)  # range of the share of lines that a drug was tested on
EXPLAINED = 0.1  # explained part of a response's variance
SPREAD = 1.5  # standard deviation of a drug's LN_IC50; ranges in GDSC are 8.6 wide on average
CONCENTRATIONS = (1.0, 2.0, 4.0, 8.0, 10.0)  # µM


def write_simulated(folder: Path, seed: int, *, lines: int = LINES, drugs: int = DRUGS) -> None:
    """Write both files, about 15 MB in all; the same for the same seed."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = stream(seed, "simulated GDSC")
    genes = [*GENES, *(f"GENE{number}" for number in range(OTHER_GENES))]
    means = EXPRESSION_CENTRE + rng.normal(0, 0.5, len(genes))
    expression = means + rng.normal(size=(lines, len(genes))) * rng.uniform(0.5, 1.5, len(genes))
    ids = [str(683_665 + 101 * number) for number in range(lines)]
    with (folder / EXPRESSION_FILES[0]).open("w", encoding="utf-8") as file:
        file.write("\t".join(["GENE_SYMBOLS", "GENE_title", *(f"DATA.{one}" for one in ids)]) + "\n")
        for gene, row in zip(genes, expression.T, strict=True):
            file.write("\t".join([gene, SIMULATED, *(f"{value:.6f}" for value in row)]) + "\n")
    x = unit_rows(expression[:, : len(GENES)] - EXPRESSION_CENTRE)
    with (folder / RESPONSE_FILES[0]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number in range(drugs):
            writer.writerows(_responses(str(1 + 4 * number), ids, x, rng))


def _responses(drug: str, ids: list[str], x: Array, rng: np.random.Generator) -> Iterator[list[str]]:
    """Yield the rows of one drug, for the lines that it was tested on."""
    signal = (x - x.mean(axis=0)) @ rng.normal(size=x.shape[1])
    signal *= SPREAD * EXPLAINED**0.5 / signal.std()
    top = rng.choice(CONCENTRATIONS)
    y = log(top) + rng.normal(1, 0.7) + signal + rng.normal(size=len(ids)) * SPREAD * (1 - EXPLAINED) ** 0.5
    tested = rng.random(len(ids)) < rng.uniform(*TESTED)
    for place in np.flatnonzero(tested):
        yield [SIMULATED, f"{drug}-{place}", ids[place], drug, f"{top:g}", f"{y[place]:.6f}", "", ""]
