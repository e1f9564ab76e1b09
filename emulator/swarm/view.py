"""What a person sees of a swarm that has run: tables, and the answer in words. Nothing here decides anything."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.table import Table

from dca_proto.cli.learn_view import BY_ITSELF
from dca_proto.privacy.rounding import at_least, claim_words
from dca_proto.wording import listed
from emulator.results import Round, Run, grouped
from inference.jobs.estimates import (
    UNCOVERED,
    WITHOUT_PRIVACY,
    learned_lines,
    rounded,
    rows_of,
    sampling_words,
    table_of,
)
from inference.jobs.summary import INTERVAL_NOTE, HeldOut, Row, Score, Summary

_SHOWN_ABSENT = 4
_SHOWN_ROUNDS = 4
_SHOWN_ESTIMATES = 12
_SHOWN_NODES = 12
_LOOKER = "no colluding client beside the one who looks"
Line = tuple[str, str]
"""A label and a text, as `say` prints them."""


def rounds_table(run: Run) -> Table:
    """Who took part in each round, and the noise in its sum; many rounds of one sort share a line."""
    came = _came(run)
    late = ("late",) if any(one.late for one in run.rounds) else ()
    names = ("round", "numbers", *came, *late, "dropped", "closed", "σ of noise")
    rows = [
        (
            _name(group),
            str(group[0].dimension),
            *(_range([getattr(one, field) for one in group]) for field in (*came.values(), *late, "dropped")),
            ", ".join(sorted({one.closed for one in group if one.closed})) or "–",
            _noise(group),
        )
        for group in grouped(run.rounds)
    ]
    return _table("rounds", names, rows, texts=(0,))


def _came(run: Run) -> dict[str, str]:
    """What those did that took part, and the field with their number."""
    fields = {"contributed": "contributors"} if run.is_summed else {run.came: "arrived"}
    return fields | ({"rows": "contributors"} if run.has_nodes else {})


def aborted_lines(run: Run) -> list[Line]:
    """Why rounds were aborted."""
    found = [
        ("aborted", f"round{'s' * (len(numbers) > 1)} {listed([*map(str, numbers)], _SHOWN_ROUNDS)}: {reason}")
        for reason, numbers in run.aborts.items()
    ]
    more = [("", f"{len(found) - _SHOWN_ROUNDS} more reasons are in the JSON")] if len(found) > _SHOWN_ROUNDS else []
    return found[:_SHOWN_ROUNDS] + more


def reporters_words(clients: int, mechanism: str, dropped: int, times: int = 1) -> str:
    """Who takes part in rounds of reports.

    Args:
        clients: N. mechanism: by which they report, the first time. dropped: K. times: how often each reports.
    """
    drop = f"; K = {dropped} drop{'s' if dropped == 1 else ''} in each round" if dropped else ""
    who = "1 client with one row; it" if clients == 1 else f"{clients} clients with one row each; each"
    often = f"once, by {mechanism}," if times == 1 else f"{times} times, at first by {mechanism}, each"
    return f"{who} reports {often} private by itself; no Compute nodes, nobody to be trusted{drop}"


def nodes_words(sizes: Sequence[int], dropped: int) -> str:
    """Who takes part in rounds of data nodes.

    Args:
        sizes: rows of each data node. dropped: K.
    """
    rows = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    who, each = ("1 data node adds", "") if len(sizes) == 1 else (f"{len(sizes)} data nodes, each adds", " each")
    drop = f"; K = {dropped} drop{'s' if dropped == 1 else ''} in each round" if dropped else ""
    return f"{who} the whole noise for one row; {rows} rows{each}, dealt at random; no Compute nodes{drop}"


def nodes_table(run: Run) -> Table:
    """What each data node released in the last round: how many rows it is of, and the noise in it."""
    rows = [(f"{one.number} ({one.id[:6]})", str(one.rows), f"{one.noise_sd:.3g}") for one in run.nodes]
    of = f" ({_SHOWN_NODES} of {len(rows)})" if len(rows) > _SHOWN_NODES else ""
    return _table(f"data nodes{of}", ("node", "rows", "σ of its noise"), rows[:_SHOWN_NODES])


def times_table(run: Run) -> Table:
    """Seconds of each round and phase, and what all actors sent; those of a line with many rounds are added up."""
    phases = list(dict.fromkeys(phase for one in run.rounds for phase in one.phases))
    names = ("seconds", *phases, "in all", "messages", "MB")
    rows = [
        (
            _name(group),
            *(_seconds(group, phase) for phase in phases),
            f"{sum(one.wall_s for one in group):.2f}",
            str(sum(one.messages for one in group)),
            f"{sum(one.bytes for one in group) / 1e6:.2f}",
        )
        for group in grouped(run.rounds)
    ]
    return _table("times", names, rows, texts=(0,))


def _name(group: Sequence[Round]) -> str:
    times = f" ×{len(group)}" if len(group) > 1 else ""
    return f"{group[0].name}{times}{'' if group[0].ok else ' aborted'}"


def _range(counts: list[int | None]) -> str:
    known = [count for count in counts if count is not None]
    if not known:
        return "–"
    low, high = min(known), max(known)
    return str(low) if low == high else f"{low}–{high}"


def _noise(group: Sequence[Round]) -> str:
    known = [one.noise_sd for one in group if one.noise_sd is not None]
    return f"{max(known):.3g}" if known else "no result"


def _seconds(group: Sequence[Round], phase: str) -> str:
    known = [one.phases[phase] for one in group if phase in one.phases]
    return f"{sum(known):.2f}" if known else "–"


def roles_table(run: Run) -> Table:
    """What each role of a fleet sent and what processor time it took, in all rounds and before."""
    names = ("role", "messages", "MB", "core seconds", "MiB at most")
    rows = []
    for role, core_s in run.core_s_by_role.items():
        sent = run.roles.get(role)
        figures = (str(sent.messages), f"{sent.bytes / 1e6:.2f}") if sent else ("–", "–")
        peak = max(size for name, size in run.peak_rss_mb_by_process.items() if name.startswith(role))
        rows.append((role, *figures, f"{core_s:.1f}", f"{peak:.0f}"))
    return _table("roles; memory of the largest process of each", names, rows)


def fleet_lines(run: Run) -> list[Line]:
    """Who was missing in a fleet's rounds and why, how far off the last sum is, and how long it took to connect."""
    lines = []
    if run.connect_s is not None and run.sessions is not None:
        sessions = f"of all clients at all Compute nodes after {run.sessions.wall_s:.1f} s"
        lines = [("connected", f"in {run.connect_s:.1f} s, keys and certificates included"), ("sessions", sessions)]
    for number, one in enumerate(run.rounds, 1):
        if one.failed:
            lines.append(("failed", f"round {number}: {one.failed} clients neither declined nor contributed"))
        lines += [("declined", f"round {number}: {count} clients, {why}") for why, count in one.declined.items()]
    last = run.rounds[-1]
    if last.value is not None and last.exact is not None:
        off = max(abs(value - exact) for value, exact in zip(last.value, last.exact, strict=True))
        lines.append(
            ("sum", f"at most {off:.3g} off the exact one, with noise of standard deviation {last.noise_sd:.3g}")
        )
    return lines


def dropped_lines(run: Run) -> list[Line]:
    """Who is not in a result, by number (which the seed fixes) and the first digits of the id (new in each run)."""
    found = [(number, one) for number, one in enumerate(run.rounds, 1) if one.absent]
    lines = []
    for number, one in found[:_SHOWN_ROUNDS]:
        absent = zip(one.absent_clients, one.absent, strict=True)
        names = listed([f"{place} ({name[:6]})" for place, name in absent], _SHOWN_ABSENT)
        label = "missing" if one.late or one.declined else "dropped"
        lines.append((label, f"round {number}: {run.who}s {names}"))
    if len(found) > _SHOWN_ROUNDS:
        lines.append(("", f"others in {len(found) - _SHOWN_ROUNDS} more rounds"))
    return lines


def _table(title: str, names: Iterable[str], rows: Iterable[Iterable[str]], texts: Collection[int] = ()) -> Table:
    """A table whose first column is text and whose others are figures.

    Args:
        texts: places of columns that give way to the others where the console is narrow.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=index not in texts, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def estimates_table(summary: Summary) -> Table:
    """Posterior means and 95 % intervals, private beside non-private, in the user's units.

    Of many, those that stand out most from zero are shown.
    """
    entries = rows_of(summary)
    if len(entries) > _SHOWN_ESTIMATES and summary.get("coefficients"):
        entries = sorted(entries, key=_strength, reverse=True)[:_SHOWN_ESTIMATES]
    every = rows_of(summary)
    title, names, rows = table_of(summary, entries, compared=any(row["nonprivate"] is not None for row in every))
    of = f"{len(rows)} of {len(every)}; " if len(rows) < len(every) else ""
    return _table(f"{of}{title}", names, rows, texts=(0, *(names.index(name) for name in ("unit",) if name in names)))


def _strength(row: Row) -> float:
    return abs(row["estimate"] or 0.0) / row["estimate_sd"] if row["estimate_sd"] else math.inf


def scores_table(summary: Summary) -> Table | None:
    """Scores on the held-out rows: private, without privacy, of a constant prediction; None where there are none."""
    test = summary["test"]
    scores = test.get("scores") if test else None
    if not test or not scores:
        return None
    label = "private" if summary["private"] else "not private"
    rows = [(one["name"], *map(rounded, (one["private"], one["nonprivate"], one["constant"]))) for one in scores]
    title = f"{test['rows']} held-out rows: {UNCOVERED}"
    return _table(title, ("", label, WITHOUT_PRIVACY, "constant"), rows)


def closing_lines(run: Run, summary: Summary) -> list[Line]:
    """The answer in words: what speaks against it, test error, what was spent, what the guarantee assumes."""
    return [*_score_lines(summary), *(_privacy_lines(run) if run.private else _trial_lines(run))]


def _score_lines(summary: Summary) -> list[Line]:
    lines = learned_lines(summary)
    if summary.get("coefficients") and len(rows_of(summary)) > _SHOWN_ESTIMATES:
        lines.append(("shown", "the coefficients farthest from zero for their spread; all are in the files"))
    if summary.get(INTERVAL_NOTE):
        lines.append(("intervals", summary[INTERVAL_NOTE]))
    if summary.get("stopped"):
        held = len(summary.get("iterations", []))
        lines.append(("stopped", f"after {held} iterations: {summary['stopped']}; the result is of these"))
    lines.extend(summary.get("remarks", {}).items())
    if repair := summary.get("repair"):
        lines.append(("repair", repair))
    if sampling := summary.get("sampling"):
        lines.append(("sampling", sampling_words(sampling)))
    test = summary["test"]
    if test and "rmse_private" in test:
        lines += _error_lines(test)
    if test and "scores" in test:
        lines += _score_line(test["scores"][0], test["rows"])
    apart = ["what is learned without privacy"] * any(row["nonprivate"] is not None for row in rows_of(summary))
    apart += ["errors and scores on held-out rows"] * bool(test)
    if apart:
        what = f"{' and '.join(apart)}; --no-reference leaves this out"
        lines.append(("not covered", f"by epsilon, since it comes from rows as they are: {what}"))
    return lines


def _score_line(one: Score, rows: int) -> list[Line]:
    others = f"without privacy {rounded(one['nonprivate'])}; constant prediction {rounded(one['constant'])}"
    lines = [("test", f"{one['name']} {rounded(one['private'])} ({others}; {rows} held-out rows)")]
    sign = 1 if one["higher_is_better"] else -1
    private, constant = one["private"], one["constant"]
    if private is not None and constant is not None and sign * private <= sign * constant:
        lines.append(("", "no better than a constant prediction: more clients or a larger epsilon would help"))
    return lines


def _error_lines(test: HeldOut) -> list[Line]:
    others = (
        f"without privacy {rounded(test['rmse_nonprivate'])}; predicting the mean {test['rmse_zero']:.4g}; "
        f"{test['rows']} held-out rows"
    )
    unit = test.get("unit", "")
    lines = [("test RMSE", f"{test['rmse_private']:.4g} {unit} ({others})".replace("  ", " "))]
    if test["rmse_private"] >= test["rmse_zero"]:
        lines.append(("", "no better than predicting the mean: more clients or a larger epsilon would help"))
    return lines


def _trial_lines(run: Run) -> list[Line]:
    return [("not private", f"{'; '.join(run.not_private_because)}: no privacy may be claimed (a trial only)")]


def _privacy_lines(run: Run) -> list[Line]:
    """What was spent, and whom the guarantee covers."""
    unit, said, holds = "client", BY_ITSELF, ""
    if run.has_nodes:
        nodes = len(run.nodes)
        alone = "the data node adds" if nodes == 1 else f"each of the {nodes} data nodes adds"
        unit, said = "row", "each row is one person's, at one data node"
        holds = f"everybody but a row's own data node: {alone} the whole noise for one row before anything leaves it, "
        holds += "and tells how many rows it has"
    elif run.reports:
        holds = "everybody but a client itself, however many collude: its report had its whole noise before it left"
    else:
        said = "nobody saw a single client's numbers"
        beyond = f"{run.colluders} more colluding clients" if run.colluders else _LOOKER
        unknown = "1 unknown noise is" if run.unknown_noises == 1 else f"{run.unknown_noises} unknown noises are"
        holds = f"up to {run.computes - 1} of {run.computes} Compute nodes and the broker colluding, and {beyond}: "
        holds += f"at least {unknown} in each sum"
    assert run.epsilon is not None, "it is private"
    assert run.delta is not None, "so it has both"
    epsilon, _, delta = claim_words(run.epsilon, run.delta).partition(", ")
    spent = f"epsilon {at_least(run.epsilon_spent or 0.0)} of {epsilon.removeprefix('epsilon ')} per {unit}, {delta}"
    return [("spent", f"{spent}; {said}"), ("holds for", holds)]
