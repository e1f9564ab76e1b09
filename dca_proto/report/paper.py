"""Tables for papers, from a job's summary: one line a figure, one column a group; as Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dca_proto.errors import UsageError
from dca_proto.privacy.rounding import claim_words
from dca_proto.report.blocks import PageTable, text_of
from inference.jobs.estimates import (
    COUNTED,
    WITHOUT_PRIVACY,
    difference_words,
    interval_words,
    names_of,
    rows_of,
)
from inference.jobs.summary import Row, Summary, TableCell, estimate_of

ALL = "all"
_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
            "²": "\\textsuperscript{2}",
            "³": "\\textsuperscript{3}", "Σ": r"$\Sigma$", "−": "$-$", "–": "--",
            "ε": r"$\varepsilon$", "δ": r"$\delta$", "μ": r"$\mu$", "σ": r"$\sigma$", "±": r"$\pm$", "≥": r"$\geq$",
            "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
            **{sign: f"\\{sign}" for sign in "&%$#_{}"}}  # fmt: skip
_MARKDOWN = re.compile(r"[\\`*<|&]|(?<!\w)_|_(?!\w)|(?<=\])\(")  # what starts markup; not an underscore within a word
_FORMULA = tuple("=+-@")  # spreadsheets compute a cell that starts so


class EstimateLine(NamedTuple):
    """One line: a column, its figure with the unit, and the estimate of each group, None if it has none."""

    column: str
    figure: str
    rows: list[Row | None]


def _place(row: Row, cells: dict[str, TableCell]) -> TableCell:
    return cells.get(row["name"]) or {"column": row["name"], "figure": "", "group": ALL}


def lines_of(summary: Summary) -> tuple[list[str], list[EstimateLine]]:
    """Return the groups, and the lines; a summary without cells has one line for each estimate.

    Differences whose intervals hold together have a table of their own.
    """
    cells, rows = summary.get("cells", {}), [row for row in rows_of(summary) if "family" not in row]
    groups = list(dict.fromkeys(_place(row, cells)["group"] for row in rows))
    found: dict[tuple[str, str], EstimateLine] = {}
    for row in rows:
        place = _place(row, cells)
        figure = " ".join(filter(None, (place["figure"], f"({row['unit']})" if row["unit"] else "")))
        line = found.setdefault((place["column"], figure), EstimateLine(place["column"], figure, [None] * len(groups)))
        line.rows[groups.index(place["group"])] = row
    return groups, list(found.values())


def table_of(summary: Summary, title: str = "", *, compared: bool = True) -> PageTable:
    """Return the table of the estimates with their 95 % intervals.

    Args:
        compared: with a column of the figures without privacy, if there are any and there is one group only.
    """
    groups, lines = lines_of(summary)
    with_others = compared and len(groups) == 1 and any(row["nonprivate"] is not None for row in rows_of(summary))
    kinds = ["estimate", *(["nonprivate"] if with_others else [])]
    header = [""]
    for group in groups:
        header.append(group)
        header += [f"not covered by ε:\n{group}, {WITHOUT_PRIVACY}"] * with_others
    texts = [
        [
            ", ".join(filter(None, (line.column, line.figure))),
            *(_words(row, kind) for row in line.rows for kind in kinds),
        ]
        for line in lines
    ]
    return PageTable(header, texts, title)


def differences_of(summary: Summary, most: int | None = None, *, compared: bool = True) -> PageTable | None:
    """Return the table of differences whose intervals hold together; None without any.

    Args:
        most: how many rows to show. compared: with the differences without privacy, if they are known.
    """
    cells, rows = summary.get("cells", {}), [row for row in rows_of(summary) if "family" in row]
    if not rows:
        return None
    compared = compared and any(row["nonprivate"] is not None for row in rows)
    others = [f"not covered by ε:\n{WITHOUT_PRIVACY}"] * compared
    shown, units = rows[:most], ", ".join(dict.fromkeys(row["unit"] for row in rows if row["unit"]))
    lines = [
        [
            difference_words(cells[row["name"]]) if row["name"] in cells else row["name"],
            _words(row),
            p_words(row["family"]["p_adjusted"]),
            *([_words(row, "nonprivate")] if compared else []),
        ]
        for row in shown
    ]
    column = ", ".join(dict.fromkeys(cells[row["name"]]["column"] for row in rows if row["name"] in cells))
    of = f"{len(shown)} of {len(rows)}, the JSON has all; " if len(shown) < len(rows) else ""
    unit = f" ({units})" if units else ""
    title = f"{of}differences of {column}{unit}: all 95 % intervals hold together"
    return PageTable(["", "difference", "adjusted p", *others], lines, title)


def p_words(value: float) -> str:
    """Format a p for people."""
    return f"{value:.2g}"


def _differences(summary: Summary) -> list[list[str]]:
    """Return the header and the lines of differences for a paper; empty without any."""
    found = differences_of(summary, compared=False)
    if found is None:
        return []
    column = lines_of(summary)[1][:1]
    names = [column[0].column if column else "", *[""] * (len(found.rows) - 1)]
    header = ["", "", *found.header[1:]]
    return [header, *([name, *map(text_of, row)] for name, row in zip(names, found.rows, strict=True))]


def _for_paper(summary: Summary) -> list[list[str]]:
    """Return the header and the lines; a column's name stands in its first line only.

    The header names a column of groups once, if all of them have texts: arm, placebo, drug.
    """
    groups, lines = lines_of(summary)
    column, groups = names_of(groups)
    found, last = [["", column, *groups]], ""
    for line in lines:
        found.append(["" if line.column == last else line.column, line.figure, *map(_words, line.rows)])
        last = line.column
    return found


def _words(row: Row | None, kind: str = "estimate") -> str:
    if row is None or (point := estimate_of(row, kind)).mean is None:
        return "–"
    if row["name"].startswith(f"{COUNTED} of ") and point.interval is not None:
        low, high = point.interval
        return f"{point.mean:,.0f} [{low:,.0f}, {high:,.0f}]"
    return interval_words(point.mean, point.interval, 3)


def written(summary: Summary, target: Path, contributors: int = 0) -> str:
    """Return the text of the table in the format of the file's suffix: .md, .tex or .csv.

    Args:
        contributors: the most of a round, for the note; 0 if unknown.

    Raises:
        UsageError: another suffix, or no estimates.
    """
    require_format(target)
    if not rows_of(summary):
        raise UsageError(f"--table {target}: the run has no estimates; give a result of dca learn or dca swarm")
    if target.suffix == ".csv":
        return _csv(summary)
    make = _markdown if target.suffix == ".md" else _latex
    return make(_for_paper(summary), _differences(summary), notes=_notes(summary, contributors))


def require_format(target: Path) -> None:
    """Raise `UsageError` unless the suffix names a format."""
    if target.suffix not in (".md", ".tex", ".csv"):
        raise UsageError(f"--table {target}: expected a name that ends in .md, .tex or .csv")


def _markdown(*tables: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    def text(words: str) -> str:
        return _MARKDOWN.sub(_with_backslash, words)

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(text, cells))} |"

    parts: list[str] = []
    for header, *lines in filter(None, tables):
        marks = [":--", ":--", *("--:" for _ in header[2:])]
        parts += [*([""] if parts else []), line(header), line(marks), *map(line, lines)]
    return "\n".join([*parts, *(f"\n{text(note)}" for note in notes), ""])


def _latex(*tables: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(_escaped, cells)) + r" \\"

    parts = ["% needs the package booktabs"]
    for header, *lines in filter(None, tables):
        parts += [r"\par\bigskip"] if len(parts) > 1 else []
        parts += [rf"\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}", r"\toprule", line(header), r"\midrule"]
        parts += [*map(line, lines), r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*parts, *(rf"\par{{\footnotesize {_escaped(note)}}}" for note in notes), ""])


def _escaped(text: str) -> str:
    """Return text for LaTeX; after the end of a line, [ and * would be arguments of it."""
    return "{}" * text.startswith(("[", "*")) + "".join(_ESCAPED.get(sign, sign) for sign in text)


def _with_backslash(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _cell(text: str) -> str:
    """Return text for a spreadsheet, which is no formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _notes(summary: Summary, contributors: int) -> list[str]:
    """Return what stands below a table: what its numbers are, with the claim and n, then the run's warnings."""
    note, n = "Estimates with 95 % intervals, which include the noise", [f"n = {contributors:,}"] * bool(contributors)
    epsilon, delta = summary.get("epsilon"), summary.get("delta")
    if not summary.get("private", True) or epsilon is None or delta is None:
        facts = ["not private", *n] if not summary.get("private", True) else n
    else:
        note, facts = f"{note} of differential privacy", [claim_words(epsilon, delta), *n]
    first = f"{note} ({'; '.join(facts)})." if facts else f"{note}."
    together = ["All intervals of differences hold together with 95 %, and their p are adjusted (Bonferroni)."]
    apart = together * any("family" in row for row in rows_of(summary))
    return [first, *apart, *(f"Warning: {text}." for text in summary.get("warnings", []))]


def _csv(summary: Summary) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    cells, rows = summary.get("cells", {}), rows_of(summary)
    further = ["p_adjusted"] * any("family" in row for row in rows)
    writer.writerow(["column", "figure", "group", "unit", "estimate", "sd", "low_95", "high_95", *further])
    for row in rows:
        place = _place(row, cells)
        ends = row["interval_95"] or (None, None)
        names = map(_cell, (place["column"], place["figure"], place["group"], row["unit"]))
        adjusted = [row["family"]["p_adjusted"] if "family" in row else None for _ in further]
        writer.writerow([*names, row["estimate"], row["estimate_sd"], *ends, *adjusted])
    return text.getvalue()
