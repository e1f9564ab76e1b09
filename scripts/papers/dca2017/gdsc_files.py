"""GDSC: gene expression of cancer cell lines, and how sensitive they are to drugs (release 6.1, as in the DCA paper).

Genomics of Drug Sensitivity in Cancer, https://www.cancerrxgene.org. Its terms of use forbid handing the files on, so
they are not downloaded: get them there, and name the folder. Two files are read, in the formats of that release:

    Cell_line_RMA_proc_basalExp.txt               tab separated: GENE_SYMBOLS, GENE_title, and DATA.<COSMIC id> of each
                                                  cell line; or instead of it
    sanger1018_brainarray_ensemblgene_rma.txt     tab separated: ensembl_gene, and <COSMIC id> of each cell line
    v17_fitted_dose_response.xlsx                 a row for each pair that was tested: COSMIC_ID, DRUG_ID,
                                                  MAX_CONC_MICROMOLAR, LN_IC50 and others; or its export as .csv

Expression is RMA-normalised on a log2 scale. No hash of these files is published, so none is checked.

**The task** (DCA paper, supplement, section 4): predict LN_IC50, the logarithm of the concentration of a drug that
halves a line's growth, from the expression of ten genes; one regression for each drug, on the lines that it was tested
on. Each client scales its own row to an L2 norm of 1, for what counts is the genes' relative expression.

**Centring.** The published code subtracts the means of the rows themselves, which is not private. Public constants are
the default: a typical expression, and for a drug the logarithm of the largest concentration that it was tested at.

Symbols: n cell lines, g genes, k drugs.
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
from inference.problem import Array, Problem, Schema
from papers.workbook import rows as sheet_rows

EXPRESSION_FILES = ("Cell_line_RMA_proc_basalExp.txt", "sanger1018_brainarray_ensemblgene_rma.txt")
RESPONSE_FILES = ("v17_fitted_dose_response.csv", "v17_fitted_dose_response.xlsx")
VERSION, LINE, DRUG, CONCENTRATION, RESPONSE = (
    "DATASET_VERSION",
    "COSMIC_ID",
    "DRUG_ID",
    "MAX_CONC_MICROMOLAR",
    "LN_IC50",
)
SIMULATED = "SIMULATED"
"""Stands for the version in files that are simulated."""

ENSEMBL = {
    "JAK2": "ENSG00000096968",
    "BRAF": "ENSG00000157764",
    "KRAS": "ENSG00000133703",
    "TP53": "ENSG00000141510",
    "EGFR": "ENSG00000146648",
    "FLT3": "ENSG00000122025",
    "PIK3CA": "ENSG00000121879",
    "IDH1": "ENSG00000138413",
    "KIT": "ENSG00000157404",
    "CTNNB1": "ENSG00000168036",
}
GENES = tuple(ENSEMBL)
"""The ten that mutate most in cancer among 70 preselected ones: the counts (45,860 for JAK2 down to 5,826 for CTNNB1)
and the preselection are published with the code of Honkela et al. 2018, whose procedure the DCA paper takes over."""

EXPRESSION_CENTRE = 6.0  # log2 intensities of such arrays go from about 2 (not expressed) to 14
RESPONSE_HALF_WIDTH = 7.5  # the paper's assumed range


@dataclass(frozen=True, eq=False)
class Gdsc:
    """Expression and responses of the lines that are in both files.

    Attributes:
        lines: COSMIC ids. genes: symbols. drugs: ids.
        expression: log2, shape ``(n, g)``.
        response: LN_IC50 in ln(µM), shape ``(n, k)``; NaN where a line was not tested.
        concentration: largest one tested of each drug, in µM, shape ``(k,)``: public.
        simulated: whether the files say that they are.
    """

    lines: tuple[str, ...]
    genes: tuple[str, ...]
    drugs: tuple[str, ...]
    expression: Array
    response: Array
    concentration: Array
    simulated: bool

    def problem(self, drug: str, *, centred_as_published: bool = False) -> Problem:
        """The regression of one drug: rows of norm 1, lines that were not tested left out.

        Args:
            centred_as_published: subtract the means of these very rows; the schema is then not private.

        Raises:
            DataError: the drug is unknown.
        """
        if drug not in self.drugs:
            raise unknown("drug", drug, "the response file", self.drugs)
        place = self.drugs.index(drug)
        tested = ~np.isnan(self.response[:, place])
        x, y = self.expression[tested], self.response[tested, place]
        centres = x.mean(axis=0) if centred_as_published else np.full(len(self.genes), EXPRESSION_CENTRE)
        middle = float(y.mean()) if centred_as_published else log(self.concentration[place])
        schema = _schema(self.genes, middle, centred_as_published)
        return Problem(f"gdsc-{drug}", schema, unit_rows(x - centres), y)


def unit_rows(x: Array) -> Array:
    """Each row divided by its L2 norm, which its client does alone; a row of zeros stays one."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    scaled: Array = x / np.where(norms > 0, norms, 1.0)
    return scaled


def _schema(genes: tuple[str, ...], middle: float, from_data: bool) -> Schema:
    reason = (
        "the mean of these rows: not private" if from_data else "the largest concentration tested, give or take e^7.5"
    )
    target = Interval(middle - RESPONSE_HALF_WIDTH, middle + RESPONSE_HALF_WIDTH, reason, public=not from_data)
    bounds = {gene: Interval(-1, 1, "rows have norm 1") for gene in genes} | {RESPONSE: target}
    return Schema(genes, RESPONSE, bounds, {RESPONSE: "ln(µM)"})


def read_gdsc(folder: Path, genes: Sequence[str] = GENES) -> Gdsc:
    """Both files of a folder.

    Args:
        genes: symbols; those of `GENES` are found by their Ensembl ids as well.

    Raises:
        DataError: a file, a column or a gene is missing, a file cannot be read, or a cell is no number.
    """
    try:
        expression = read_expression(_one_of(folder, EXPRESSION_FILES), genes)
        response = read_response(_one_of(folder, RESPONSE_FILES))
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}; make it readable") from None
    tested = {line for line, _ in response.value}
    lines = tuple(line for line in expression if line in tested)
    if not lines:
        raise DataError(
            f"{folder}: the expression and the response file have no cell line in common; take one release's"
        )
    drugs = tuple(sorted(response.concentration, key=lambda drug: (len(drug), drug)))
    cells = np.array([[response.value.get((line, drug), np.nan) for drug in drugs] for line in lines])
    return Gdsc(
        lines,
        tuple(genes),
        drugs,
        np.array([expression[line] for line in lines]),
        cells,
        np.array([response.concentration[drug] for drug in drugs]),
        response.simulated,
    )


def _one_of(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{folder} holds no {' or '.join(names)}; get release 6.1 from https://www.cancerrxgene.org (see its terms of "
        "use), or run on simulated files"
    )


def read_expression(path: Path, genes: Sequence[str] = GENES) -> dict[str, list[float]]:
    """Expression of these genes by cell line. The file is read line by line, for it has some 18,000 genes."""
    names = {ENSEMBL.get(gene, gene): gene for gene in genes} | {gene: gene for gene in genes}
    found: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", errors="replace") as file:  # titles of genes, which nobody reads, are in any
        header = file.readline().rstrip("\n").split("\t")
        first = 2 if header[0].strip('"') == "GENE_SYMBOLS" else 1
        for line in file:
            gene = names.get(line.split("\t", 1)[0].strip('"'))
            if gene is not None:
                cells = line.rstrip("\n").split("\t")
                found[gene] = [_number(cell, path, gene) for cell in cells[first:]]
    missing = [gene for gene in genes if gene not in found]
    if missing:
        raise DataError(f"{path.name} has no gene {', '.join(missing)}; choose genes that are in its first column")
    if any(len(found[gene]) != len(header) - first for gene in genes):
        raise DataError(f"{path.name}: a row is shorter or longer than the first line; the file is damaged")
    columns = [name.strip('"').removeprefix("DATA.") for name in header[first:]]
    # A line that was measured twice has ".1" behind its id the second time, and goes by the first.
    return {line: [found[gene][place] for gene in genes] for place, line in enumerate(columns) if line.isdigit()}


@dataclass(frozen=True, eq=False)
class Responses:
    """LN_IC50 by (line, drug), and the largest concentration of each drug."""

    value: dict[tuple[str, str], float]
    concentration: dict[str, float]
    simulated: bool


def read_response(path: Path) -> Responses:
    """The table of responses, of a workbook or of its export as CSV."""
    table = _table(path)
    header = next(table, [])
    missing = [name for name in (LINE, DRUG, CONCENTRATION, RESPONSE) if name not in header]
    if missing:
        raise DataError(f"{path.name} has no column {', '.join(missing)}; expected the table of fitted dose responses")
    line, drug, top, response = (header.index(name) for name in (LINE, DRUG, CONCENTRATION, RESPONSE))
    version = header.index(VERSION) if VERSION in header else None
    value: dict[tuple[str, str], float] = {}
    concentration: dict[str, float] = {}
    simulated = False
    for row in table:
        if len(row) <= max(line, drug, top, response) or not row[response]:
            continue
        value[row[line], row[drug]] = _number(row[response], path, RESPONSE)
        concentration[row[drug]] = max(_number(row[top], path, CONCENTRATION), concentration.get(row[drug], 0.0))
        simulated |= version is not None and row[version] == SIMULATED
    return Responses(value, concentration, simulated)


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
