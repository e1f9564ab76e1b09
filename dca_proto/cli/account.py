"""`dca account`: what a round would cost and carry, answered before anybody runs anything.

The picture has Okabe and Ito's colours, which colour-blind people can distinguish; dashes differ, too, for a grey
printer. Its first panel is Figure 1(b) of the DCA paper, from the noise that is really drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console

from dca_proto.cli import options
from dca_proto.cli.account_plan import (
    DATA,
    Answer,
    Columns,
    Enquiry,
    PlannedRound,
    answer,
    parse_also,
    parse_shares,
    questions,
)
from dca_proto.cli.output import require_plot_target, result_console, say, table, whole_file, write_json
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import forecast
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import at_least, claim_words
from dca_proto.protocol.trainer.request import AskSecureSum, OpenRound

EXAMPLES = """Examples:

  dca account --epsilon 1 --delta 1e-6 --clients 500 --tolerate 50        what T = 10 % costs

  dca account --clients 500 --statistic mean --bounds "age=0:120,bmi=10:60" --plot account.png

  dca account --clients 400 --epsilon 2 --statistic second-moments,regression --dimension 5 --shares 0.1,0.9

  dca account --clients 400 --also laplace:0.1 --also gaussian:0.2        beside what else is spent

  dca account --clients 1000 --json - | jq .scale_factor
"""
OUTPUT = Answer
_SHOWN_MAX = 12  # coordinates up to which each one's noise is shown
_GAIN_SHOWN = 0.01  # of the noise; less is not worth showing
_LEFT_SHOWN = 0.999  # of the budget's mu: what several rounds keep back for rounding is above it
_SIGNALS = {
    "sum": ("a sum over all {n} clients that is a third of the largest possible", "values", "their bound"),
    "mean": ("a mean over all {n} clients that is a third of its bound", "values", "their bound"),
    "second-moments": ("a mean square that is a third of the largest possible", "squares", "the largest"),
    "moments": ("a mean or mean square that is a third of the largest possible", "values", "the largest"),
    "phases": ("a mean cosine or sine of a third", "waves", "the largest"),
    "mixture": (
        "a mean of one component's statistics that is a third of the largest possible",
        "values",
        "the largest",
    ),
    "regression": ("a mean product of two columns that is a third of the largest possible", "products", "the largest"),
    "gradient": ("a mean gradient that has a third of the clip in one coordinate", "gradients", "the clip"),
}
"""What is held against the noise, by statistic; then what spreads, and a third of what, for the sampling error."""
_ANY_SIGNAL = ("a mean over all {n} clients that is a third of the largest possible", "values", "the largest")


def account(
    context: typer.Context,
    clients: Annotated[int, options.CLIENTS],
    epsilon: Annotated[float, options.EPSILON] = 1.0,
    delta: Annotated[float, options.DELTA_OF_BUDGET] = options.DELTA,
    tolerate: Annotated[int | None, options.TOLERATE_TENTH] = None,
    colluders: Annotated[int, options.COLLUDERS] = 0,
    computes: Annotated[int, options.COMPUTES] = 3,
    statistic: Annotated[
        list[str] | None, typer.Option(help="What is computed, by default sum; several rounds: repeat it, or A,B.")
    ] = None,
    columns: options.ColumnNames = None,
    dimension: Annotated[
        int | None, typer.Option(help="Or how many columns (bins, of a histogram); by default the fewest.")
    ] = None,
    bound: Annotated[float | None, typer.Option(help="Every column lies within ± this; by default 1.")] = None,
    bounds: options.Bounds = None,
    parameters: options.Parameters = None,
    rows_max: Annotated[int, typer.Option(help="R, to add up to R rows of a client; 0 for their mean.")] = 0,
    fraction_bits: Annotated[int, typer.Option(help="f of the grid 2^-f, even.")] = 24,
    shares: Annotated[str, typer.Option(help="Of the budget (of mu²) for each round, A,B,..., or best.")] = "best",
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="What else is spent on the same clients, KIND:VALUE such as laplace:0.1 or pure:0.5; repeat."
        ),
    ] = None,
    plot_to: options.Plot = None,
    json_to: options.Json = None,
) -> None:
    """Compute what a round would cost and carry, before anybody runs anything: noise, factor, signal."""
    console = result_console(json_to)
    require_plot_target(plot_to)
    given = context.params  # parsed by the options' callbacks
    asked = Columns(names=given["columns"], dimension=dimension, bound=bound, bounds=given["bounds"])
    enquiry = Enquiry(
        budget=Budget(epsilon, delta),
        clients=clients,
        tolerated=clients // 10 if tolerate is None else tolerate,
        colluders=colluders,
        computes=computes,
        questions=questions(statistic or ["sum"], asked, given["parameters"] or {}),
        shares=parse_shares(shares),
        rows_max=rows_max,
        fraction_bits=fraction_bits,
        also=tuple(map(parse_also, also or [])),
    )
    with Console(stderr=True).status("working it out"):  # up to three seconds, where much is asked
        divided = enquiry.divided()
        requests = enquiry.rounds(divided)
        found = answer(enquiry, divided, requests)
        if plot_to is not None:
            with whole_file(plot_to) as place:
                plot(requests, place, claim_words(epsilon, delta))
    write_json(found, json_to)  # before the tables: whoever reads only their head gets it whole
    show(console, found)
    if plot_to is not None:
        say(console, "picture", str(plot_to))


def show(console: Console, found: Answer) -> None:
    """Everything, from the federation down to what else is spent."""
    n, t, c, honest = found.clients, found.tolerated, found.colluders, found.honest_shares
    say(console, "federation", f"{n} clients, {found.computes} Compute nodes, T = {t} (c = {c} reserved for colluders)")
    budget = f"{claim_words(found.epsilon, found.delta)} of every client in all (mu {at_least(found.mu_budget)})"
    if found.mu <= _LEFT_SHOWN * found.mu_budget:
        rounds = "this round spends" if len(found.rounds) == 1 else "these rounds spend"
        budget += f", of which {rounds} epsilon {at_least(found.epsilon_spent)} (mu {at_least(found.mu)})"
    say(console, "budget", budget)
    for warning in found.warnings:
        say(console, "warning", warning)
    columns = ("", *(one.statistic for one in found.rounds))
    console.print(table(columns, ((label, *map(figure, found.rounds)) for label, figure in _figures(found))))
    for one in found.rounds:
        for label, line in _estimates_in_words(one):
            say(console, label, line)
    factor = (
        f"the noise of any {honest} clients (N - T - 1) is enough for the promise. The sum of all {n} carries "
        f"{found.scale_factor:.4g} times the variance that a trusted aggregator would add: N/(N - T - 1) = "
        f"{n / honest:.4g}, and a part of {max(found.scale_factor * honest / n - 1, 0):.1g} on top for the grid"
    )
    say(console, "factor", factor)
    say(console, "colluders", _colluders_in_words(found))
    say(console, "signal", _signal_in_words(found))
    points = found.curve[1::2]
    curve = [("epsilon", *(at_least(point.epsilon) for point in points))]
    if found.also:
        curve.append(("with what else is spent", *(at_least(point.epsilon_with_also or 0) for point in points)))
    console.print(table(("the whole job, at delta", *(at_least(point.delta) for point in points)), curve))
    if found.also:
        say(console, "also", _also_in_words(found))


def _figures(found: Answer) -> list[tuple[str, Callable[[PlannedRound], str]]]:
    """A label and the text of a round's figure, for each row of the table."""
    return [
        ("share of the budget (of mu²)", lambda r: f"{100 * r.share:.3g} %"),
        ("mu of the round", lambda r: at_least(r.mu)),
        ("  quoted as epsilon", lambda r: at_least(r.epsilon)),
        ("dimension d", lambda r: f"{r.dimension}"),
        ("sensitivity Δ, L2, when one client's data are replaced", lambda r: f"{r.sensitivity:.4g}"),
        ("noise multiplier σ_std/Δ", lambda r: f"{r.noise_multiplier:.4g}"),
        ("noise of a trusted aggregator σ_std", lambda r: f"{r.sigma_std:.4g}"),
        ("noise of each client's share", lambda r: f"{r.sigma_local:.4g}"),
        ("noise in the sum when nobody drops", lambda r: f"{r.sigma_sum:.4g}"),
        ("  its variance, beside a trusted aggregator's", lambda r: f"× {r.scale_factor:.4g}"),
        ("  its standard deviation", lambda r: f"× {r.scale_factor_std:.4g}"),
        (f"noise in the sum of the fewest, {found.contributors_needed}", lambda r: f"{r.sigma_sum_fewest:.4g}"),
        ("floor: noise that is unknown to a coalition", lambda r: f"{r.sigma_floor:.4g}"),
        ("bits of the ring's 64 that the sum can need", lambda r: f"{r.ring_bits}"),
        ("noise in a mean over all, in parts of the largest value", lambda r: f"{r.noise_of_mean:.3g}"),
        ("  beside it, the sampling error of the values", lambda r: f"{r.sampling_error:.3g}"),
        ("signal to noise", lambda r: f"{r.signal_to_noise:.3g}"),
    ]


def _estimates_in_words(one: PlannedRound) -> Iterator[tuple[str, str]]:
    """The noise of each estimate in its own units, where there are few; and better weights of a regression."""
    if one.labels is not None and one.noise_std is not None and 1 < len(one.labels) <= _SHOWN_MAX:
        parts = ", ".join(f"{label} {std:.3g}" for label, std in zip(one.labels, one.noise_std, strict=True))
        units = "" if one.noise_std_units == DATA else f" ({one.noise_std_units})"
        yield "estimates", f"{one.statistic}{units}, standard deviation of the noise in each: {parts}"
    if one.best_weights is not None and (gain := one.best_weights_gain or 0) > _GAIN_SHOWN:
        weights = ",".join(map(str, one.best_weights))
        saved = f"would save {100 * gain:.2g} % of the noise"
        yield "weights", f"--parameter weights=[{weights}] for xxᵀ, xy and y² {saved}"


def _colluders_in_words(found: Answer) -> str:
    """Against whom the promise holds when as few contribute as may, and what that leaves for others."""
    t, c, needed = found.tolerated, found.colluders, found.contributors_needed
    nodes = f"any {found.computes - 1} of the Compute nodes"
    drops = f"at most {t - c} clients may drop out" if t > c else "no client may drop out"
    room = f"a sum of fewer than {needed} contributions is never released, so {drops}"
    if c:
        return (
            f"{room}; even then the promise holds against a curious client with {c} other clients that share their "
            f"noise, and {nodes}"
        )
    if t == 0:
        return f"{room}, and the promise holds against a curious client that is alone, and {nodes}"
    return (
        f"{room}. c = 0: the promise holds against a curious client that is alone, and {nodes}. Each contribution "
        f"above {needed} makes up for one more client that shares its noise, but Compute nodes that collude can leave "
        f"clients out until {needed} remain: count on c others only. --colluders c reserves room for them; then "
        f"{t} - c may drop out"
    )


def _signal_in_words(found: Answer) -> str:
    """Of the round in which the signal is weakest."""
    number, n = found.weakest_round, found.clients
    one = found.rounds[number - 1]
    which = f"weakest in round {number}, {one.statistic}: " if len(found.rounds) > 1 else ""
    verb = "drowns in" if one.signal_to_noise < 1 else "stands above"
    far = f"{one.signal_to_noise:.3g} standard deviations of its noise from 0: it {verb} it"
    if one.statistic == "histogram":
        return (
            f"{which}a bin that holds a third of what all {n} clients contribute is {far}. Every bin's noise has a "
            f"standard deviation of {one.sigma_sum:.3g}"
        )
    what, spread, of = _SIGNALS.get(one.statistic, _ANY_SIGNAL)
    return (
        f"{which}{what.format(n=n)} is {far}. The noise is {one.noise_of_mean / one.sampling_error:.3g} times the "
        f"sampling error of {spread} spread by a third of {of}, which there is without privacy, too"
    )


def _also_in_words(found: Answer) -> str:
    together = f"epsilon {at_least(found.epsilon_with_also or 0)} at delta {at_least(found.delta)}"
    charged = f"epsilon {at_least(found.epsilon_charged_with_also or 0)}"
    if pure := sum(getattr(one, "epsilon", 0.0) for one in found.also):
        apart = at_least(found.epsilon_charged_apart_with_also or 0)
        charged += f", or {apart} with epsilon_for_reports = {at_least(pure)} in [policy]"
    return (
        f"together with what else is spent on the same clients, it costs them at most {together}; their ledgers, "
        f"charged for all of it, would count {charged}"
    )


# --- the picture ------------------------------------------------------------------------------------------------------

_STYLES = (("#0072B2", "-"), ("#E69F00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#000000", "-"))
_POINTS = 80
_N_LEAST, _N_SHOWN, _N_MOST = 3, 1000, 1_000_000


def plot(rounds: Sequence[OpenRound], path: Path, caption: str) -> None:
    """Write the picture, in which the given N and T are marked; the suffix says the format (png, svg, pdf)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and of no use without --plot
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.2 + 2.7 * (1 + len(rounds))), layout="constrained")
    FigureCanvasAgg(figure)
    first, *others = figure.subplots(1 + len(rounds), 1, sharex=True, squeeze=False)[:, 0]
    _panel(first, rounds[0], "scale_factor", "noise variance in the sum,\n× trusted aggregator")
    first.set_ylim(1, max(5.0, 1.15 * forecast(rounds[0]).scale_factor))
    for panel, request in zip(others, rounds, strict=True):
        _panel(panel, request, "signal_to_noise", f"{request.statistic}:\nbound/3 over noise of the mean")
        panel.axhline(1, color="0.5", linewidth=1)
        panel.set_yscale("log")
    others[-1].set_xlabel("N, number of clients")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"What distributing the noise costs, and what signal is left\n{caption}", fontsize=11, wrap=True)
    figure.savefig(path, dpi=150)


def _panel(axes: Any, request: OpenRound, name: str, label: str) -> None:
    """One figure of a `Forecast` over N, a line for each T and a ring at the given N and T."""
    assert isinstance(request.ask, AskSecureSum), "an enquiry is about secure sums"
    asked_n, asked_t = request.clients_expected, request.ask.tolerated
    curves = [*((f"T = {t}", t, 0) for t in (0, 5, 10)), ("T = 10 % of N", 0, 10)]  # T = fixed + N * percent / 100
    if asked_t not in (0, 5, 10):
        curves.append((f"T = {asked_t}, as asked", asked_t, 0))
    most = min(max(_N_SHOWN, 10 * asked_n), _N_MOST)
    clients = sorted({*np.geomspace(_N_LEAST, most, _POINTS).round().astype(int).tolist(), asked_n})
    for (title, fixed, percent), (colour, dashes) in zip(curves, _STYLES, strict=False):
        figures = ((n, _figure(request, n, fixed + n * percent // 100, name)) for n in clients)
        points = [(n, figure) for n, figure in figures if figure is not None]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, linewidth=2, label=title)
    axes.plot(
        asked_n, getattr(forecast(request), name), "o", markersize=11, markerfacecolor="none",
        markeredgecolor="#D55E00", markeredgewidth=2.5, label=f"asked: N = {asked_n}, T = {asked_t}",
    )  # fmt: skip
    axes.set(xscale="log", ylabel=label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(request: OpenRound, clients: int, tolerated: int, name: str) -> float | None:
    """The figure for other N and T, without colluders; None where no round can be held."""
    ask = AskSecureSum(computes=request.ask.computes, tolerated=tolerated)
    try:
        return float(getattr(forecast(msgspec.structs.replace(request, ask=ask, clients_expected=clients)), name))
    except UsageError:
        return None
