"""What a job has learned, from its summary: for a terminal and for a page, the same words and the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypedDict

import msgspec

from dca_proto.wording import counted
from emulator.report.blocks import Block, Line, Note, Section, Table, settings, table
from emulator.report.charts import GRID, INK, ROWS_MAX, Axis, Chart, Series, bars, lines, panels
from emulator.report.figures import UNKNOWN, count, number, plain, seconds
from emulator.results import Node, Reports
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
from inference.jobs.picture import Kind, forest, kinds_of
from inference.jobs.summary import INTERVAL_NOTE, HeldOut, Row, Score, Summary, estimate_of

BY_ITSELF = "each report is private by itself; nobody had to be trusted"
_PANELS_MAX, _NAME_MAX = 8, 60
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


def read(found: dict[str, Any]) -> Summary:
    """The summary in a run's file, as it was before `separated` wrote it. Raises `msgspec.ValidationError`.

    What epsilon does not cover is read from its block and from nowhere else.
    """
    msgspec.convert(found, _Written)
    apart = found.get(NOT_COVERED) or {}
    iterations = apart.get("iterations", found.get("iterations", []))
    whole = {"private": True, **found, "test": apart.get("test"), "iterations": iterations}
    for key in ("coefficients", "estimates"):
        others = {str(one.get("name")): one for one in apart.get(key, [])}
        whole[key] = [_whole(one, others.get(str(one.get("name")), {})) for one in found.get(key, [])]
    if found.get("intercept"):
        whole["intercept"] = _whole(found["intercept"], apart.get("intercept") or {})
    return msgspec.convert(whole, Summary)


def _whole(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A row with its estimate without privacy."""
    return {**row, **{key: other.get(key) for key in _NONPRIVATE}}


# --- estimates --------------------------------------------------------------------------------------------------------


def estimates(summary: Summary, most: int | None = None) -> Table:
    """Posterior means and 95 % intervals, private beside non-private, in the user's units.

    Args:
        most: how many are shown; of more coefficients, those that are farthest from zero for their spread.
    """
    every = rows_of(summary)
    shown = every[:most]
    if most is not None and len(every) > most and summary.get("coefficients"):
        shown = sorted(every, key=_strength, reverse=True)[:most]
    compared = any(row["nonprivate"] is not None for row in every)
    title, names, rows = table_of(summary, shown, compared=compared)
    of = f"{len(shown)} of {len(every)}; " if len(shown) < len(every) else ""
    return Table(names, rows, f"{of}{title}")


def _strength(row: Row) -> float:
    return abs(row["estimate"] or 0.0) / row["estimate_sd"] if row["estimate_sd"] else math.inf


def _label(summary: Summary) -> str:
    return "private" if summary.get("private", True) else "not private"


def _apart(what: str) -> str:
    return f"{what}, {UNCOVERED}"


# --- scores -----------------------------------------------------------------------------------------------------------


def scores_of(test: HeldOut | None) -> list[tuple[Score, str]]:
    """Each score on held-out rows with its unit, the root mean square error among them."""
    if test is None:
        return []
    unit = test.get("unit", "")
    found = [(one, unit if one["name"].endswith("error") else "") for one in test.get("scores", [])]
    if (error := test.get("rmse_private")) is not None:
        one = Score(name=_RMSE, private=error, nonprivate=test.get("rmse_nonprivate"), constant=test.get("rmse_zero"),
                    higher_is_better=False)  # fmt: skip
        found.insert(0, (one, unit))
    return found


def scores(summary: Summary) -> list[Block]:
    """Each score, beside the one without privacy and that of a constant prediction."""
    test = summary.get("test")
    return table(
        scores_of(test),
        {
            "": lambda one: _ERROR if one[0]["name"] == _RMSE else one[0]["name"],
            _label(summary): lambda one: _said(one[0]["private"]),
            WITHOUT_PRIVACY: lambda one: _said(one[0]["nonprivate"]),
            "constant": lambda one: _said(one[0]["constant"]),
            "better is": lambda one: "higher" if one[0]["higher_is_better"] else "lower",
            "unit": lambda one: one[1],
        },
        title=f"{counted(test['rows'], 'held-out row')}: {UNCOVERED}" if test else "",
    )


def _said(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:.4g} {unit}".strip()


def _constant(one: Score) -> str:
    """What a prediction without learning is called."""
    return _BY_CONSTANT.get(one["name"], "a constant prediction")


def score_facts(summary: Summary) -> list[Line]:
    """The first score and that of a constant prediction, as figures."""
    return [
        line
        for one, unit in scores_of(summary.get("test"))[:1]
        for line in (
            (_apart(f"test {one['name']}"), _said(one["private"], unit)),
            (_apart(f"{one['name']} by {_constant(one)}"), _said(one["constant"], unit)),
        )
    ]


def headline(summary: Summary) -> str:
    """The result in a few words: the first score, else the first estimate; empty where there is neither."""
    for one, unit in scores_of(summary.get("test")):
        other = f"{_said(one['constant'], unit)} by {_constant(one)}"
        if one["nonprivate"] is not None:
            other = f"{_said(one['nonprivate'], unit)} {WITHOUT_PRIVACY}"
        return f": test {one['name']} {_said(one['private'], unit)} ({other}; {UNCOVERED})"
    for row in rows_of(summary):
        other = "" if row["nonprivate"] is None else f" ({number(row['nonprivate'])} {_apart(WITHOUT_PRIVACY)})"
        return f": {row['name']} {_words(row)}{other}"
    return ""


def _words(row: Row) -> str:
    return UNKNOWN if row["estimate"] is None else interval_words(row["estimate"], row["interval_95"])


# --- for a terminal ---------------------------------------------------------------------------------------------------


def closing_lines(summary: Summary) -> Iterator[Line]:
    """What speaks for and against the result, and the first score, a label and a text each."""
    yield from learned_lines(summary)
    yield from remarks(summary)
    if (sampling := summary.get("sampling")) is not None:
        yield "sampling", sampling_words(sampling)
    test = summary.get("test")
    for one, unit in scores_of(test)[:1]:
        assert test is not None, "it has the scores"
        without = "" if one["nonprivate"] is None else f"{WITHOUT_PRIVACY} {_said(one['nonprivate'])}; "
        others = f"{without}{_constant(one)} {_said(one['constant'])}; {counted(test['rows'], 'held-out row')}; "
        yield "test", f"{one['name']} {_said(one['private'], unit)} ({others}{UNCOVERED})"
        sign = 1 if one["higher_is_better"] else -1
        private, constant = one["private"], one["constant"]
        if private is not None and constant is not None and sign * private <= sign * constant:
            yield "", _NO_BETTER.format(_constant(one))


def remarks(summary: Summary) -> Iterator[Line]:
    """What else the job has to say: about its intervals, why it stopped early, a repair."""
    if note := summary.get(INTERVAL_NOTE):
        yield "intervals", note
    if why := summary.get("stopped"):
        held = counted(len(summary.get("iterations", [])), "iteration")
        yield "stopped", f"before all planned rounds were held, after {held}: {why}; the result is of these"
    yield from summary.get("remarks", {}).items()
    if repair := summary.get("repair"):
        yield "repair", repair


# --- for a page -------------------------------------------------------------------------------------------------------


def lead_of(summary: Summary) -> list[Section]:
    """Estimates with their intervals, and what speaks against taking them at their word."""
    title = "Coefficients" if summary.get("coefficients") else "Estimates"
    warnings = [Note(f"{text[:1].upper()}{text[1:]}.") for text in summary.get("warnings", [])]
    return [(title, _estimates(summary)), ("Warnings", warnings)]


def sections_of(summary: Summary) -> list[Section]:
    """Scores, the course of iterations, what draws are worth, and what else the job has to say."""
    return [
        ("Score", scores(summary)),
        ("Iterations", _course(summary)),
        ("Draws", _draws(summary)),
        ("Remarks", settings(remarks(summary))),
    ]


def _estimates(summary: Summary) -> list[Block]:
    every, kinds = rows_of(summary), kinds_of(summary, summary.get("private", True))
    if not kinds:
        return []
    curved = [one for one in every if "at" in one]
    groups: dict[str, list[Row]] = {}
    for one in every:
        if "at" not in one and one["name"] != INTERCEPT and one["estimate"] is not None:
            unit = one["standard"]["unit"] if "standard" in one else one["unit"]
            groups.setdefault(unit, []).append({**one, "name": plain(one["name"], _NAME_MAX)})
    drawn: list[Block] = [_curves(curved, kinds)] if curved else []
    if 0 < len(groups) <= _PANELS_MAX:
        draw = partial(forest, kinds=kinds, faint=GRID, ink=INK)
        shown_rows = {unit: rows[:ROWS_MAX] for unit, rows in groups.items()}
        caption = "Lines reach over 95 % intervals; a dotted line is zero."
        caption += "".join(
            f" The first {ROWS_MAX} of {len(rows):,} estimates." for rows in groups.values() if len(rows) > ROWS_MAX
        )
        drawn_by = [(unit, len(rows), partial(draw, rows=rows)) for unit, rows in shown_rows.items()]
        drawn.append(panels(drawn_by, [kind.label for kind in kinds], caption=caption))
    shown = estimates(summary)
    parts = [one.get("contraction") for one in every]
    if any(one is not None for one in parts):
        added = [
            [*row, UNKNOWN if part is None else percent(part)] for row, part in zip(shown.rows, parts, strict=True)
        ]
        shown = Table([*shown.header, "contraction"], added, shown.title)
        told = "Contraction is the part of the prior's variance that the data took away; 0 % is the prior."
        return [*drawn, shown, Note(told)]
    return [*drawn, shown]


def _curves(rows: Sequence[Row], kinds: Sequence[Kind]) -> Chart:
    """Points of curves, each curve from 1 at 0, with their intervals."""
    series = []
    for tone, label in enumerate(dict.fromkeys(one["at"]["series"] for one in rows)):
        own = [(one["at"]["x"], one) for one in rows if one["at"]["series"] == label]
        for kind, name, *_ in kinds:
            points = [(0.0, 1.0), *((x, mean) for x, one in own if (mean := estimate_of(one, kind).mean) is not None)]
            spread = (
                [(x, ends[0], ends[1]) for x, one in own if (ends := one["interval_95"])] if kind == "estimate" else []
            )
            line: Any = "-" if kind == "estimate" else "--"
            series.append(Series(f"{label}, {name}", points, tone, line, "o" if spread else "", spread))
    caption = "Posterior means with 95 % intervals, each of which holds by itself (pointwise)."
    return lines(series, Axis("time", low=0.0), Axis("probability", low=0.0, high=1.02), caption=caption)


def _course(summary: Summary) -> list[Block]:
    """The score over the iterations, and where it would have ended without privacy."""
    course, test = summary.get("iterations", []), summary.get("test")
    known = [(float(one["number"]), one["value"]) for one in course if one["value"] is not None]
    if len(known) < 2:
        return []
    name, ends = course[-1]["name"], (known[0][0], known[-1][0])
    levels = [one["nonprivate"] for one, _ in scores_of(test) if one["name"] in name]
    series = [Series(name, known, 0, "-", "o")]
    series += [
        Series(_apart(WITHOUT_PRIVACY), [(at, level) for at in ends], 1, "--") for level in levels if level is not None
    ]
    caption = "How well the parameters of each iteration do; each has cost one round."
    caption += f" Scores on held-out rows are {UNCOVERED}." if test else ""
    return [lines(series, Axis("iteration", whole=True), Axis(name), caption=caption)]


def _draws(summary: Summary) -> list[Block]:
    """What the draws are worth, figure by figure."""
    found = summary.get("sampling")
    if found is None:
        return []
    if found["r_hat_max"] is None and not found["acceptance"]:
        return [Note(f"Method {found['method']} has the posterior in closed form; its draws are independent.")]
    return settings([
        ("method", found["method"]),
        ("chains × draws", f"{count(found['chains'])} × {count(found['draws'])}"),
        ("R-hat, at most", UNKNOWN if found["r_hat_max"] is None else f"{found['r_hat_max']:.4f}"),
        ("effective draws for the middle, at least", _floor(found["ess_bulk_min"])),
        ("effective draws for the tails, at least", _floor(found["ess_tail_min"])),
        *((f"accepted moves of {block}", percent(rate)) for block, rate in found["acceptance"].items()),
        ("iterations that failed", count(found["divergences"])),
        ("time", seconds(found["seconds"])),
    ])  # fmt: skip


def _floor(value: float | None) -> str:
    return UNKNOWN if value is None else count(math.floor(value))


# --- what was released one by one -------------------------------------------------------------------------------------


def badge(ok: bool, private: bool) -> tuple[str, Any]:
    """The verdict on a run, and its sense."""
    if not ok:
        return "ended without a result", "bad"
    return ("private", "good") if private else ("not private", "bad")


def nodes_of(nodes: Sequence[Node], most: int | None = None) -> list[Block]:
    """One line for each data node, the first `most`."""
    of = f" ({most} of {len(nodes)})" if most is not None and len(nodes) > most else ""
    return table(
        [*enumerate(nodes, 1)][:most],
        {
            "data node": lambda one: f"{one[0] if one[1].number is None else one[1].number} {one[1].id[:6]}".strip(),
            "rows": lambda one: count(one[1].rows),
            "noise in each value (sd)": lambda one: number(one[1].noise_sd),
        },
        title=f"data nodes{of}",
    )


def reports_of(
    mechanism: str | None, rounds: Sequence[tuple[int, float | None, Reports | None]], names: Sequence[str]
) -> list[Block]:
    """Of a job on reports: how many there are, and of its only round what they are like.

    Args:
        rounds: of each, how many reports, the variance of the noise in their sum, and what they are like.
        names: of the categories, where they have any.
    """
    known = [(n, variance, one) for n, variance, one in rounds if one is not None]
    if not known or mechanism is None:
        return []
    told = f"{counted(sum(n for n, _, _ in known), 'report')} by {mechanism}, of one client each. A report had its "
    blocks: list[Block] = [
        Note(f"{told}whole noise before it left its client, so that nobody had to be trusted, whoever colludes.")
    ]
    n, variance, last = known[-1]
    if len(known) == 1:
        blocks += _spread(n, last, names)
    if variance is not None and n:
        sizes = (("in one report", variance / n), (f"in the sum of {count(n)}", variance))
        rows = [(label, number(math.sqrt(one))) for label, one in sizes]
        blocks.append(Table(("noise in each value, in the statistic's units", "sd at most"), rows))
    return blocks


def _spread(n: int, one: Reports, names: Sequence[str]) -> list[Block]:
    """How the reports of a round are spread over categories, or over numbers."""
    if one.counts is not None and one.probabilities is not None:
        labels = names if len(names) == len(one.counts) else [f"category {place}" for place in range(len(one.counts))]
        caption = "How many reports name each category. One that nobody is in would be named by about "
        caption += f"{count(round(n * one.probabilities[1]))}, by chance."
        return [bars([(label, float(many), count(many)) for label, many in zip(labels, one.counts, strict=True)],
                     caption=caption)]  # fmt: skip
    found = one.histogram
    if found is None or len(found.counts) < 2:
        return []
    width = (found.high - found.low) / len(found.counts)
    points = [(found.low + (place + 0.5) * width, float(many)) for place, many in enumerate(found.counts)]
    caption = "How the reports are spread. What is beyond the public bounds, ±1, is noise; the model weighs it so."
    x, y = Axis("report, in units of the public bounds"), Axis("reports", low=0.0)
    return [lines([Series("reports", points, 0, "-", "o")], x, y, caption=caption)]
