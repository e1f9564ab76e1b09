"""GDSC's file formats, the simulated files, and Figure 3's arithmetic."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest
from paper_samples import shown
from scipy.stats import spearmanr

from dca_proto.privacy.budget import Budget
from inference.errors import DataError
from papers.dca2017.figure_3 import (
    BALL,
    DDP,
    METHODS,
    NP,
    PROJ_DDP,
    PROJ_NP,
    PROJ_TA,
    TA,
    Cell,
    Figure3,
    chosen_drugs,
    rank_correlation,
)
from papers.dca2017.gdsc_files import (
    COLUMNS,
    EXPRESSION_FILES,
    GENES,
    RESPONSE_FILES,
    read_expression,
    read_gdsc,
    unit_rows,
    write_simulated,
)

HEADER = ",".join(COLUMNS)
EXPRESSION = (
    "GENE_SYMBOLS\tGENE_title\tDATA.11\tDATA.12\tDATA.13\tDATA.11.1\n"
    "TP53\ttumor protein\t7\t4\t6.5\t9\n"
    "KIT\t\t6\t9\t5\t9\n"
)
ROWS = ["17,1,11,1003,2,-0.5,0.9,0.1", "17,2,12,1003,2,1.5,0.9,0.1", "17,3,13,999,8,2.5,0.9,0.1", "17,4,99,999,8,,,"]


def write(folder: Path, expression: str = EXPRESSION, rows: list[str] | None = None, header: str = HEADER) -> Path:
    (folder / EXPRESSION_FILES[0]).write_text(expression)
    (folder / RESPONSE_FILES[0]).write_text("\n".join([header, *(ROWS if rows is None else rows)]) + "\n")
    return folder


def test_both_files_are_joined_by_cell_line(tmp_path: Path) -> None:
    gdsc = read_gdsc(write(tmp_path), ["KIT", "TP53"])
    assert (gdsc.lines, gdsc.drugs, gdsc.simulated) == (("11", "12", "13"), ("999", "1003"), False)
    np.testing.assert_array_equal(gdsc.expression, [[6, 7], [9, 4], [5, 6.5]])  # the first measurement of line 11
    (tmp_path / EXPRESSION_FILES[0]).write_bytes(EXPRESSION.encode().replace(b"tumor protein", b"prot\xe9ine"))
    assert read_expression(tmp_path / EXPRESSION_FILES[0], ["KIT"])["12"] == [9]
    np.testing.assert_array_equal(gdsc.response, [[np.nan, -0.5], [np.nan, 1.5], [2.5, np.nan]])


def test_a_problem_has_unit_rows_and_public_centres(tmp_path: Path) -> None:
    problem = read_gdsc(write(tmp_path), ["KIT", "TP53"]).problem("1003")
    np.testing.assert_allclose(problem.X, unit_rows(np.array([[0.0, 1.0], [3.0, -2.0]])))
    np.testing.assert_allclose(np.linalg.norm(problem.X, axis=1), 1)
    target = problem.schema.bounds["LN_IC50"]
    assert (target.centre, target.half_width, problem.schema.private) == (pytest.approx(log(2)), 7.5, True)
    np.testing.assert_array_equal(unit_rows(np.zeros((1, 2))), 0)


def test_centring_by_the_rows_is_marked_as_not_private(tmp_path: Path) -> None:
    problem = read_gdsc(write(tmp_path), ["KIT", "TP53"]).problem("1003", centred_as_published=True)
    assert not problem.schema.private
    assert problem.schema.bounds["LN_IC50"].centre == pytest.approx(0.5)
    np.testing.assert_allclose(problem.X, unit_rows(np.array([[-1.5, 1.5], [1.5, -1.5]])))


def test_the_file_of_the_published_run_has_ensembl_ids(tmp_path: Path) -> None:
    path = tmp_path / EXPRESSION_FILES[1]
    path.write_text("ensembl_gene\t11\t12\nENSG00000157404\t6\t9\nENSG00000141510\t7\t4\n")
    assert read_expression(path, ["TP53", "KIT"]) == {"11": [7, 6], "12": [4, 9]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expression": EXPRESSION.replace("KIT", "KIT2")}, "has no gene KIT; choose genes"),
        ({"expression": EXPRESSION.replace("\t5\t9\n", "\t5\n")}, "shorter or longer"),
        ({"expression": EXPRESSION.replace("6.5", "6,5")}, "found '6,5' in TP53, expected a number"),
        ({"header": HEADER.replace("LN_IC50", "IC50")}, "has no column LN_IC50"),
        ({"expression": EXPRESSION.replace("6.5", "nan")}, "found 'nan' in TP53, expected a number"),
        ({"rows": ["17,1,11,1003,2,n/a,,"]}, "found 'n/a' in LN_IC50"),
        ({"rows": ["17,1,77,1003,2,1.0,,"]}, "no cell line in common"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_gdsc(write(tmp_path, **changes), ["KIT", "TP53"])


def unreadable(path: Path, **_: object) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_missing_files_and_drugs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"holds no Cell_line_RMA.*cancerrxgene\.org"):
        read_gdsc(tmp_path)
    (tmp_path / RESPONSE_FILES[1]).write_bytes(b"no workbook")
    (tmp_path / EXPRESSION_FILES[0]).write_text(EXPRESSION)
    with pytest.raises(DataError, match=r"not a workbook .*export it as CSV"):
        read_gdsc(tmp_path, ["KIT"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", unreadable)
        with pytest.raises(DataError, match=r"cannot read .*\.txt: Permission denied; make it readable"):
            read_gdsc(tmp_path, ["KIT"])
    with pytest.raises(DataError, match=r"drug '1030' .*did you mean '1003'"):
        read_gdsc(write(tmp_path), ["KIT"]).problem("1030")


def test_simulated_files_are_marked_and_are_the_same_for_a_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_simulated(tmp_path / name, 3, lines=50, drugs=2)
    for file in (EXPRESSION_FILES[0], RESPONSE_FILES[0]):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    gdsc = read_gdsc(tmp_path / "a")
    assert gdsc.simulated
    assert (gdsc.expression.shape, gdsc.response.shape) == ((50, len(GENES)), (50, 2))
    assert 0 < np.isnan(gdsc.response).mean() < 0.3


def test_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 9, (2, 40)).astype(float)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert rank_correlation(np.ones(40), b) == 0


def test_summary_is_the_mean_and_spread_over_runs_of_means_over_drugs() -> None:
    runs = ((0, 0.1), (0, 0.3), (1, 0.4), (1, 0.8))
    results = [{"correlation": {method: [value] for method in METHODS}} for _, value in runs]
    found = Figure3(epsilons=(2.0,)).gather([Cell(str(value), run) for run, value in runs], results)
    assert found[NP].mean == pytest.approx([0.4])
    assert found[NP].sd == pytest.approx([np.std([0.2, 0.6], ddof=1)])


def test_a_cell_learns_without_privacy_and_with_a_large_budget(tmp_path: Path) -> None:
    """At ε = 250 the noise is so small that every method but input perturbation ranks as the non-private one does."""
    write_simulated(tmp_path, 1, lines=400, drugs=3)
    experiment = Figure3(data_folder=tmp_path, genes=",".join(GENES[:3]), epsilons=(250.0,), drugs=1, repeats=1)

    assert len(chosen_drugs(read_gdsc(tmp_path), 2, 1)) == 2
    with pytest.raises(DataError, match="asked for 4 drugs; 3 were tested"):
        chosen_drugs(read_gdsc(tmp_path), 4, 1)
    compared = experiment.methods(Cell("1", 0), Budget(250.0, experiment.delta))
    assert set(compared) == set(METHODS)

    result = experiment.work(Cell("1", 0))
    plain = result["correlation"][NP][0]
    assert result["learned_from"] > 150
    for method in (TA, DDP, PROJ_TA, PROJ_DDP, BALL, PROJ_NP):
        assert result["correlation"][method][0] == pytest.approx(plain, abs=0.15)
    (table,) = shown(experiment, experiment.gather([Cell("1", 0)], [result]), tmp_path)
    assert "SIMULATED" in str(table.title)
