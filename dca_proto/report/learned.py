"""Shows what a job has learned, from its summary; a terminal and a page get the same words and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypedDict

import msgspec

from dca_proto.drawing import ROWS_MAX
from dca_proto.report import paper
from dca_proto.report.blocks import Block, Line, Note, PageTable, Section, settings, table
from dca_proto.report.charts import Axis, Chart, Curve, Panel, bars, lines, panels, whole
from dca_proto.report.formats import UNKNOWN, count, number, seconds
from dca_proto.results.round import Node, Reports
from dca_proto.wording import JsonObject, counted, digits, with_minus
from inference.contraction import percent
from inference.jobs.estimates import (
    INTERCEPT,
    NOT_COVERED,
    UNCOVERED,
    WITHOUT_PRIVACY,
    interval_words,
    learned_lines,
    rows_of,
    sampling_words,
    table_of,
)
from inference.jobs.picture import Kind, curves, forest, kinds_of, panels_of, risk_words
from inference.jobs.summary import INTERVAL_NOTE, HeldOut, Row, Score, Summary

BY_ITSELF = "each report is private by itself; nobody had to be trusted"
_GROUPS_MAX = 3  # of a terminal's table
_NONPRIVATE = ("nonprivate", "nonprivate_sd", "nonprivate_interval_95")
_RMSE = "RMSE"
_BY_CONSTANT = {_RMSE: "predicting the mean"}
_ERROR = "root mean square error"
_NO_BETTER = "no better than {}: more clients or a larger epsilon would help"


class _Rows(TypedDict, total=False):
    coefficients: list[dict[str, Any]]
    estimates: list[dict[str, Any]]
    intercept: dict[str, Any] | None


class _Written(_Rows, total=False):
    not_covered_by_epsilon: _Rows | None


def read(found: JsonObject) -> Summary:
    """Return the summary in a run's file: undo `separated`, which wrote it. Raises `msgspec.ValidationError`.

    Results that epsilon does not cover are read from their own block only.
    """
    msgspec.convert(found, _Written)
    uncovered = found.get(NOT_COVERED) or {}
    iterations = uncovered.get("iterations", found.get("iterations", []))
    whole = {"private": True, **found, "test": uncovered.get("test"), "iterations": iterations}
    for key in ("coefficients", "estimates"):
        others = {str(row.get("name")): row for row in uncovered.get(key, [])}
        whole[key] = [_with_nonprivate(row, others.get(str(row.get("name")), {})) for row in found.get(key, [])]
    if found.get("intercept"):
        whole["intercept"] = _with_nonprivate(found["intercept"], uncovered.get("intercept") or {})
    return msgspec.convert(whole, Summary)


def _with_nonprivate(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**row, **{key: other.get(key) for key in _NONPRIVATE}}


# --- estimates --------------------------------------------------------------------------------------------------------


def estimates(summary: Summary, most: int | None = None) -> PageTable:
    """Return a table of posterior means and 95 % intervals, private beside non-private, in the user's units.

    Estimates with places in a table are shown in it, all of them, if a terminal has room for its groups.

    Args:
        most: how many rows to show. If there are more coefficients, show those with the largest |mean| / sd; of curves,
            as many points of each, the last ones included, but all if their times are named.
    """
    every = [row for row in rows_of(summary) if "family" not in row]
    groups = {cell["group"] for row in every if (cell := summary.get("cells", {}).get(row["name"])) is not None}
    if groups and (most is None or len(groups) <= _GROUPS_MAX):
        return paper.table_of(summary, "posterior: mean [95 % interval]")
    shown = every[:most]
    if most is not None and len(every) > most:
        by_strength = sorted(every, key=_strength, reverse=True)
        shown = every if summary.get("named_times") else thinned(every, most)
        shown = by_strength[:most] if summary.get("coefficients") else shown
    compared = any(row["nonprivate"] is not None for row in every)
    title, names, rows = table_of(summary, shown, compared=compared)
    of = f"{len(shown)} of {len(every)}, the JSON has all; " if len(shown) < len(every) else ""
    return PageTable(names, rows, f"{of}{title}")


def tables(summary: Summary, most: int | None = None) -> list[PageTable]:
    """Return the table of differences whose intervals hold together, if there are some, and that of `estimates`."""
    found = paper.differences_of(summary, most)
    return [*([found] if found else []), estimates(summary, most)]


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most `most` rows, but at least one point of each curve: evenly spaced points, and other rows first."""
    curves = [[row for row in rows if "at" in row and row["at"]["series"] == name]
              for name in dict.fromkeys(row["at"]["series"] for row in rows if "at" in row)]  # fmt: skip
    others = [row for row in rows if "at" not in row]
    if not curves:
        return others[:most]
    each = max(1, (most - len(others)) // len(curves))
    kept = []
    for curve in curves:
        places = {len(curve) - 1 - len(curve) * step // each for step in range(each)}
        kept += [row for place, row in enumerate(curve) if place in places]
    return [*kept, *others]


def _strength(row: Row) -> float:
    return abs(row["estimate"] or 0.0) / row["estimate_sd"] if row["estimate_sd"] else math.inf


def _label(summary: Summary) -> str:
    return "private" if summary.get("private", True) else "not private"


def _uncovered(label: str) -> str:
    return f"{label}, {UNCOVERED}"


# --- scores -----------------------------------------------------------------------------------------------------------


def scores_of(test: HeldOut | None) -> list[tuple[Score, str]]:
    """Return each score on held-out rows with its unit; the root mean square error comes first."""
    if test is None:
        return []
    unit = test.get("unit", "")
    found = [(score, unit if score["name"].endswith("error") else "") for score in test.get("scores", [])]
    if (error := test.get("rmse_private")) is not None:
        rmse = Score(name=_RMSE, private=error, nonprivate=test.get("rmse_nonprivate"), constant=test.get("rmse_zero"),
                     higher_is_better=False)  # fmt: skip
        found.insert(0, (rmse, unit))
    return found


def scores(summary: Summary) -> list[Block]:
    """Return a table of the scores, beside those without privacy and those of a constant prediction."""
    test = summary.get("test")
    return table(
        scores_of(test),
        {
            "": lambda pair: _ERROR if pair[0]["name"] == _RMSE else pair[0]["name"],
            _label(summary): lambda pair: _figure(pair[0]["private"]),
            WITHOUT_PRIVACY: lambda pair: _figure(pair[0]["nonprivate"]),
            "constant": lambda pair: _figure(pair[0]["constant"]),
            "better is": lambda pair: "higher" if pair[0]["higher_is_better"] else "lower",
            "unit": lambda pair: pair[1],
        },
        title=f"{counted(test['rows'], 'held-out row')}: {UNCOVERED}" if test else "",
    )


def _figure(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{digits(value, 4)} {unit}".strip()


def _constant(score: Score) -> str:
    """Return a phrase for the prediction that learns nothing."""
    return _BY_CONSTANT.get(score["name"], "a constant prediction")


def result(summary: Summary) -> Line | None:
    """Return the most telling result that epsilon covers, as a label and a text; None if there is none.

    That is the log-rank test of a trial, or a test between groups, else the clearest coefficient, else the last point
    of the first curve, else the one that the job names, an estimate or a remark, else the first estimate.
    """
    if (test := summary.get("log_rank")) is not None:
        return "log-rank test", f"p = {test['p_value']:.2g}"
    if len(tests := summary.get("tests", [])) == 1:
        return f"{tests[0]['test']} of {tests[0]['column']}", f"p = {tests[0]['p_value']:.2g}"
    if (label := summary.get("headline", "")) in (said := summary.get("remarks", {})):
        return label, said[label].partition(";")[0]
    rows = [row for row in rows_of(summary) if row["estimate"] is not None]
    if not rows:
        return None
    row = next((row for row in rows if row["name"] == summary.get("headline")), rows[0])
    if summary.get("coefficients"):
        row = max((row for row in rows if row["name"] != INTERCEPT), key=_strength, default=row)
    elif "at" in row:
        row = [one for one in rows if "at" in one and one["at"]["series"] == row["at"]["series"]][-1]
    assert row["estimate"] is not None, "the others are left out"
    words = with_minus(interval_words(row["estimate"], row["interval_95"]))  # as in the page's tables
    return row["name"], f"{words} {row['unit']}".strip()


def headline(summary: Summary) -> str:
    """Return the `result` in a few words; empty if there is none."""
    found = result(summary)
    if found is None:
        return ""
    if found[0] in summary.get("remarks", {}):
        return f": {found[1]}"
    return f": {found[0]}{':' * found[0][-1].isdigit()} {found[1]}"  # a digit would run into the figure


# --- for a terminal ---------------------------------------------------------------------------------------------------


def closing_lines(summary: Summary) -> Iterator[Line]:
    """Yield the quality of the result, warnings, remarks and the first score, each as a label and a text."""
    yield from learned_lines(summary)
    yield from remarks(summary)
    if (sampling := summary.get("sampling")) is not None:
        yield "sampling", sampling_words(sampling)
    test = summary.get("test")
    for score, unit in scores_of(test)[:1]:
        assert test is not None, "the scores come from it"
        without = "" if score["nonprivate"] is None else f"{WITHOUT_PRIVACY} {_figure(score['nonprivate'])}; "
        others = f"{without}{_constant(score)} {_figure(score['constant'])}; {counted(test['rows'], 'held-out row')}; "
        yield "test", f"{score['name']} {_figure(score['private'], unit)} ({others}{UNCOVERED})"
        sign = 1 if score["higher_is_better"] else -1
        private, constant = score["private"], score["constant"]
        if private is not None and constant is not None and sign * private <= sign * constant:
            yield "", _NO_BETTER.format(_constant(score))


def remarks(summary: Summary) -> Iterator[Line]:
    """Yield the job's remarks: a note on its intervals, why it stopped early, a repair of its input."""
    if note := summary.get(INTERVAL_NOTE):
        yield "intervals", note
    if why := summary.get("stopped"):
        ran = counted(len(summary.get("iterations", [])), "iteration")
        yield "stopped", f"before all planned rounds, after {ran}: {why}; the result uses the rounds so far"
    yield from summary.get("remarks", {}).items()
    if repair := summary.get("repair"):
        yield "repair", repair


# --- for a page -------------------------------------------------------------------------------------------------------


def lead_of(summary: Summary) -> list[Section]:
    """Return the section under the headline: estimates with intervals."""
    title = "Coefficients" if summary.get("coefficients") else "Estimates"
    return [(title, _estimates(summary))]


def sections_of(summary: Summary) -> list[Section]:
    """Return the further sections: scores, iterations, the quality of the draws, remarks."""
    return [
        ("Score", scores(summary)),
        ("Iterations", _iterations(summary)),
        ("Draws", _diagnostics(summary)),
        ("Remarks", settings(remarks(summary))),
    ]


def _estimates(summary: Summary) -> list[Block]:
    all_rows, kinds = rows_of(summary), kinds_of(summary, summary.get("private", True))
    if not kinds:
        return []
    curve_rows = [row for row in all_rows if "at" in row]
    charts: list[Block] = [_curves(curve_rows, kinds), *_at_risk(summary)] if curve_rows else []
    drawn, every = panels_of(summary)
    if drawn:
        has_zero = any("standard" in row for one in drawn for row in one.rows)
        caption = f"Lines show 95 % intervals{'; the dotted line is zero' if has_zero else ''}."
        caption += f" The first {ROWS_MAX} of {every:,} estimates." if every > ROWS_MAX else ""
        parts = [
            Panel(one.unit, len(one.rows), partial(forest, kinds=kinds, rows=one.rows), one.title) for one in drawn
        ]
        charts.append(panels(parts, [kind.label for kind in kinds], caption=caption))
    if summary.get("cells"):  # the table is the result
        return [*tables(summary), *charts]
    shown = estimates(summary)
    contractions = [row.get("contraction") for row in all_rows]
    if all(value is None for value in contractions):
        return [*charts, shown]
    cells = [UNKNOWN if value is None else percent(value) for value in contractions]
    rows_with = [[*row, cell] for row, cell in zip(shown.rows, cells, strict=True)]
    note = "Contraction is the part of the prior's variance that the data removed; at 0 % the data taught nothing."
    return [*charts, PageTable([*shown.header, "contraction"], rows_with, shown.title), Note(note)]


def _curves(rows: list[Row], kinds: list[Kind]) -> Chart:
    """Return a chart of curves with bands, as the picture of the result has it."""
    names = [f"{name}, {kind.label}" for name in dict.fromkeys(row["at"]["series"] for row in rows) for kind in kinds]
    caption = "Posterior means with pointwise 95 % intervals."
    return whole(partial(curves, rows=rows, kinds=kinds), names, caption=caption)


def _at_risk(summary: Summary) -> list[Block]:
    """Return a table of the numbers at risk, each with the 95 % interval of its noise."""
    numbers = summary.get("at_risk", [])
    if not numbers:
        return []
    cells = zip(*(map(risk_words, one["number"], one["sd"]) for one in numbers), strict=True)
    rows = [[f"{time:g}", *row] for time, row in zip(numbers[0]["x"], cells, strict=True)]
    return [PageTable(["time", *(one["series"] for one in numbers)], rows, "At risk, with the noise's 95 % interval")]


def _iterations(summary: Summary) -> list[Block]:
    """Return a chart of the score by iteration, with the final score without privacy as a line."""
    iterations, test = summary.get("iterations", []), summary.get("test")
    known = [(float(step["number"]), step["value"]) for step in iterations if step["value"] is not None]
    if len(known) < 2:
        return []
    name, ends = iterations[-1]["name"], (known[0][0], known[-1][0])
    levels = [score["nonprivate"] for score, _ in scores_of(test) if score["name"] in name]
    series = [Curve(name, known, 0, "-", "o")]
    series += [
        Curve(_uncovered(WITHOUT_PRIVACY), [(x, level) for x in ends], 1, "--") for level in levels if level is not None
    ]
    caption = "The score of the parameters after each iteration; an iteration costs one round."
    caption += f" Scores on held-out rows are {UNCOVERED}." if test else ""
    return [lines(series, Axis("iteration", whole=True), Axis(name), caption=caption)]


def _diagnostics(summary: Summary) -> list[Block]:
    sampling = summary.get("sampling")
    if sampling is None:
        return []
    if sampling["r_hat_max"] is None and not sampling["acceptance"]:
        return [Note(f"Method {sampling['method']} has the posterior in closed form; its draws are independent.")]
    return settings([
        ("method", sampling["method"]),
        ("chains × draws", f"{count(sampling['chains'])} × {count(sampling['draws'])}"),
        ("R-hat, at most", UNKNOWN if sampling["r_hat_max"] is None else f"{sampling['r_hat_max']:.4f}"),
        ("bulk effective sample size, at least", _floor(sampling["ess_bulk_min"])),
        ("tail effective sample size, at least", _floor(sampling["ess_tail_min"])),
        *((f"accepted moves of {block}", percent(rate)) for block, rate in sampling["acceptance"].items()),
        ("iterations that failed", count(sampling["divergences"])),
        ("time", seconds(sampling["seconds"])),
    ])  # fmt: skip


def _floor(value: float | None) -> str:
    return UNKNOWN if value is None else count(math.floor(value))


# --- single releases and reports --------------------------------------------------------------------------------------


def nodes_of(nodes: Sequence[Node], most: int | None = None) -> list[Block]:
    """Return a table with a row for each data node, at most `most`."""
    of = f" ({most} of {len(nodes)})" if most is not None and len(nodes) > most else ""
    return table(
        [(node, place if node.number is None else node.number) for place, node in enumerate(nodes, 1)][:most],
        {
            "data node": lambda pair: f"{pair[1]} {pair[0].id[:6]}".strip(),
            "rows": lambda pair: count(pair[0].rows),
            "noise in each value (sd)": lambda pair: number(pair[0].noise_sd),
        },
        title=f"data nodes{of}",
    )


def reports_of(
    mechanism: str | None, rounds: Sequence[tuple[int, float | None, Reports | None]], names: Sequence[str]
) -> list[Block]:
    """Return the blocks of a job on LDP reports: their number, their distribution (if one round), their noise.

    Args:
        rounds: for each round, the number of reports, the variance of the noise in their sum, and the reports.
        names: of the categories, if there are any.
    """
    known = [(n, variance, reports) for n, variance, reports in rounds if reports is not None]
    if not known or mechanism is None:
        return []
    total = counted(sum(n for n, _, _ in known), "report")
    blocks: list[Block] = [
        Note(f"{total} by {mechanism}, each from one client. Each client added all the noise to its report before "
             "sending it, so nobody had to be trusted.")
    ]  # fmt: skip
    n, variance, last = known[-1]
    if len(known) == 1:
        blocks += _spread(n, last, names)
    if variance is not None and n:
        sizes = (("in one report", variance / n), (f"in the sum of {count(n)}", variance))
        rows = [(label, number(math.sqrt(value))) for label, value in sizes]
        blocks.append(PageTable(("noise in each value, in the statistic's units", "sd at most"), rows))
    return blocks


def _spread(n: int, reports: Reports, names: Sequence[str]) -> list[Block]:
    """Return a chart of the distribution of a round's reports, over categories or over numbers."""
    if (counts := reports.counts) is not None and reports.probabilities is not None:
        labels = names if len(names) == len(counts) else [f"category {place}" for place in range(len(counts))]
        caption = "How many reports name each category. An empty category would be named by about "
        caption += f"{count(round(n * reports.probabilities[1]))}, by chance."
        return [bars([(label, float(many), count(many)) for label, many in zip(labels, counts, strict=True)],
                     caption=caption)]  # fmt: skip
    histogram = reports.histogram
    if histogram is None or len(histogram.counts) < 2:
        return []
    width = (histogram.high - histogram.low) / len(histogram.counts)
    points = [(histogram.low + (place + 0.5) * width, float(many)) for place, many in enumerate(histogram.counts)]
    caption = (
        "The distribution of the reports. Values beyond the public bounds, ±1, are noise; the model allows for it."
    )
    x, y = Axis("report, in units of the public bounds"), Axis("reports", low=0.0)
    return [lines([Curve("reports", points, 0, "-", "o")], x, y, caption=caption)]
