"""`dca account` forecasts the cost, noise and signal of rounds before they run.

The picture has Okabe and Ito's colours, which colour-blind people can distinguish, and different dashes for grey
printers. Its first panel is Figure 1(b) of the DCA paper, computed from the noise that clients draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console

from dca_proto import drawing
from dca_proto.cli import options
from dca_proto.cli.account_options import Columns, named_statistics, parse_also, parse_shares
from dca_proto.cli.options import completing
from dca_proto.cli.output import Terminal, draw, require_plot_target, result_console, say, table
from dca_proto.errors import UsageError
from dca_proto.jobs.calendar import ADVERBS, EVERY, SLOTS_MAX, parse_period, require_every
from dca_proto.jobs.forecast import forecast
from dca_proto.jobs.job import FRACTION_BITS
from dca_proto.jobs.plan import DATA, JobForecast, JobPlan, PlannedRound, forecast_job
from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import at_least, claim_words
from dca_proto.protocol.terms import Windows, kind_of
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import KINDS, NODE_RELEASE, SECURE_SUM, LdpReport, SecureSum
from dca_proto.results.round import NORMAL_SDS, REPORT_SDS, liar_words
from dca_proto.runtime.files import write_json
from dca_proto.runtime.request import with_free_count
from dca_proto.wording import counted

EXAMPLES = """Examples:

  dca account --epsilon 1 --delta 1e-6 --clients 500 --tolerate 50        the cost of T = 10 %

  dca account --clients 500 --statistic mean --bounds "age=0:120,bmi=10:60" --plot account.png

  dca account --clients 400 --epsilon 2 --statistic second-moments,regression --dimension 5 --shares 0.1,0.9

  dca account --clients 400 --also laplace:0.1 --also gaussian:0.2        with other releases on the same clients

  dca account --clients 500 --statistic mean --bounds t=0:50 --epsilon 2 --every day --for 1y      365 daily means

  dca account --clients 5 --kind node-release --rows-max 200 --statistic mean --every week --for 1y

  dca account --clients 9000 --kind ldp-report --mechanism grid-laplace --rows-max 1 --every week --for 26w

  dca account --clients 1000 --verified --rows-max 1 --bounds t=0:50       each client proves its bounds

  dca account --clients 1000 --json - | jq .scale_factor
"""
OUTPUT = JobForecast
_SHOWN_MAX = 12  # more coordinates are not listed one by one
_GAIN_SHOWN = 0.01  # fraction of the noise; a smaller gain is not shown
_GRID_SHOWN = 0.2  # of a verified sum: more than the 15 % that its trainer allows itself
_LEFT_SHOWN = 0.999  # fraction of the budget's mu; several rounds leave less than the rest unspent, for rounding
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
"""By statistic: the signal that is compared with the noise; the values with a sampling error, and their scale."""
_ANY_SIGNAL = ("a mean over all {n} clients that is a third of the largest possible", "values", "the largest")


@options.with_options(
    JobPlan,
    without=("statistics", "times", *Windows.__struct_fields__),
    required=("clients",),
    shown={"tolerate": "N / 10"},
)
def account(
    context: typer.Context,
    chosen: options.Chosen,
    statistic: Annotated[
        list[str] | None, typer.Option(help="Statistic, by default sum; for several rounds repeat it, or give A,B.")
    ] = None,
    columns: options.ColumnNames = None,
    dimension: Annotated[
        int | None, typer.Option(help="Number of columns, or of a histogram's bins; by default the fewest possible.")
    ] = None,
    bound: Annotated[float | None, typer.Option(help=options.BOUND.help, show_default="1")] = None,
    bounds: options.Bounds = None,
    parameters: options.Parameters = None,
    shares: Annotated[str, typer.Option(help="Share of the budget (mu²) of each round, A,B,..., or best.")] = "best",
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Another release on the same clients, KIND:VALUE such as laplace:0.1, or many, laplace:0.01*365; "
            "repeatable."
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(help=f"The rounds run once in each: {', '.join(EVERY)}.", autocompletion=completing(EVERY)),
    ] = None,
    period: Annotated[
        str | None, typer.Option("--for", help="The budget is for a period, in which they run --every: 1y, 26w or 90d.")
    ] = None,
    plot_to: options.Plot = None,
    json_to: options.Json = None,
) -> None:
    """Forecast the privacy cost, noise and signal of rounds, once or in each slot of a period, before running any."""
    console = result_console(json_to)
    require_plot_target(plot_to)
    given = context.params  # parsed by the options' callbacks
    requested = Columns(names=given["columns"], dimension=dimension, bound=bound, bounds=given["bounds"])
    bits = chosen.get("fraction_bits", FRACTION_BITS)
    named = named_statistics(statistic or ["sum"], requested, options.parse_parameters(parameters) or {})
    kind = kind_of(chosen.get("kind", SECURE_SUM), chosen.get("mechanism", ""))
    if plot_to is not None and not kind.is_summed:
        raise UsageError("--plot draws what T costs in a secure sum; leave it out for rounds of other kinds")
    if not isinstance(kind, LdpReport):  # a report's count would have the noise of all clients
        named = tuple((name, with_free_count(name, own, bits)) for name, own in named)
    times, lasts = _times(every, period)
    job = JobPlan(
        **{"tolerate": chosen["clients"] // 10 if kind.is_summed else 0, **chosen},
        statistics=named,
        shares=parse_shares(shares),
        also=tuple(release for text in also or [] for release in parse_also(text)),
        times=times,
    )
    with Terminal(stderr=True).status("computing"):  # up to three seconds
        round_shares = job.round_shares()
        requests = job.rounds(round_shares)
        result = forecast_job(job, round_shares, requests, every or "", lasts)
    write_json(result, json_to)  # before the tables: `| head` must not cut it off
    show(console, result)
    caption = claim_words(job.epsilon, job.delta)
    if plot_to is not None and draw(console, plot_to, lambda place: plot(requests, place, caption)):
        say(console, "picture", str(plot_to))


def _times(every: str | None, period: str | None) -> tuple[int, str]:
    """Return how often the rounds run, and the period in words. Raises `UsageError`."""
    if (every is None) != (period is None):
        raise UsageError("--every and --for belong together, as in --every day --for 1y; give both or none")
    if every is None or period is None:
        return 1, ""
    require_every(every, "--every ")
    lasts = parse_period(period, "--for ")
    times = lasts.count(every)
    if times > SLOTS_MAX:
        raise UsageError(f"--every {every} --for {period}: found {times:,} times, expected at most {SLOTS_MAX:,}")
    return times, lasts.words


def show(console: Console, answer: JobForecast) -> None:
    """Print the answer as tables and sentences."""
    n, t, c = answer.clients, answer.tolerate, answer.colluders
    kind, is_summed = KINDS[answer.kind], answer.kind == SECURE_SUM
    who = f"{counted(n, kind.participant)}, {answer.computes} Compute nodes, T = {t} (c = {c} reserved for colluders)"
    if not is_summed:
        noise = f"{answer.mechanism} noise" if answer.mechanism else "all the noise for one row"
        who = f"{counted(n, kind.participant)}; each adds {noise}, without Compute nodes"
    say(console, "federation", who)
    say(console, "budget", _budget_in_words(answer))
    for warning in answer.warnings:
        say(console, "warning", warning)
    if answer.every:
        say(console, "schedule", _schedule_in_words(answer))
    columns = ("", *(planned.statistic for planned in answer.rounds))
    console.print(table(columns, ((label, *map(figure, answer.rounds)) for label, figure in _figures(answer))))
    for planned in answer.rounds:
        for label, line in _estimates_in_words(planned):
            say(console, label, line)
    if is_summed:
        for label, line in _sum_in_words(answer):
            say(console, label, line)
    say(console, "signal", _signal_in_words(answer))
    points = answer.curve[1::2]
    curve = [("epsilon", *(at_least(point.epsilon) for point in points))]
    if answer.also:
        curve.append(("with the other releases", *(at_least(point.epsilon_with_also or 0) for point in points)))
    console.print(table(("the whole job, at delta", *(at_least(point.delta) for point in points)), curve))
    if answer.also:
        say(console, "also", _also_in_words(answer))


def _budget_in_words(answer: JobForecast) -> str:
    """Return the budget, and what the rounds spend of it, if that is less."""
    whose = "row" if answer.kind == NODE_RELEASE else "client"
    budget = f"{claim_words(answer.epsilon, answer.delta)} for each {whose} in total (mu {at_least(answer.mu_budget)})"
    if answer.mu <= _LEFT_SHOWN * answer.mu_budget:
        rounds = "this round spends" if len(answer.rounds) * answer.times == 1 else "these rounds spend"
        budget += f", of which {rounds} epsilon {at_least(answer.epsilon_spent)} (mu {at_least(answer.mu)})"
    return budget


def _schedule_in_words(answer: JobForecast) -> str:
    """Return how often the rounds run, and what each slot may be off by."""
    adverb, rounds = ADVERBS[answer.every], [planned.statistic for planned in answer.rounds]
    what = f"{counted(answer.times, f'{adverb} slot')} with {' and '.join(rounds)}"
    text = f"{what} at epsilon {at_least(answer.epsilon)} for {answer.period}"
    first = answer.rounds[0]
    if len(rounds) == 1 and first.labels and first.noise_std:
        pairs = list(zip(first.labels, first.noise_std, strict=True))[:_SHOWN_MAX]
        sds = REPORT_SDS if answer.mechanism in PURE_MECHANISMS else NORMAL_SDS
        within = ", ".join(f"{label} ± {sds * std:.2g}" for label, std in pairs)
        text += f": each within {within} (95 % of the noise)"
    return f"{text}. The figures below are of one slot"


def _figures(answer: JobForecast) -> list[tuple[str, Callable[[PlannedRound], str]]]:
    """Return the rows of the table: a label, and a function that formats a round's figure."""
    share = "share of the budget (of mu²)" + f", each of {answer.times:,} times" * (answer.times > 1)
    protected = "row is" if answer.kind == NODE_RELEASE else "client's data are"
    ring = "field's 31" if answer.verified else "ring's 64"
    fewest = [(f"noise in the sum of the fewest, {answer.n_min}", lambda r: f"{r.sigma_sum_fewest:.4g}")]
    proven = [
        ("noise numbers of a client for each value, and their bits", lambda r: f"{r.noises} of {r.noise_bits}"),
        ("bytes of a contribution with its proof", lambda r: f"{r.contribution_bytes:,}"),
        ("what a contribution is proven to keep", lambda r: r.proven),
        ("largest shift by one liar, relative to the noise", lambda r: f"{r.liar_sds:.2g}"),
        ("  relative to an honest client's, L2", lambda r: f"{r.liar_factor:.2g}"),
    ]
    slack = [("slack of the round, beside mu", lambda r: at_least(r.slack))]
    return [
        (share, lambda r: f"{100 * r.share / answer.times:.3g} %"),
        ("mu of the round", lambda r: at_least(r.mu)),
        ("  quoted as epsilon", lambda r: at_least(r.epsilon)),
        *(slack if answer.verified else []),
        ("numbers that are summed", lambda r: f"{r.dimension}"),
        (f"sensitivity Δ, L2, when one {protected} replaced", lambda r: f"{r.sensitivity:.4g}"),
        ("noise multiplier σ_std/Δ", lambda r: f"{r.noise_multiplier:.4g}"),
        ("noise of a trusted aggregator σ_std", lambda r: f"{r.sigma_std:.4g}"),
        ("noise of each client's share", lambda r: f"{r.sigma_local:.4g}"),
        ("noise in the sum when nobody drops", lambda r: f"{r.sigma_sum:.4g}"),
        ("  its variance, relative to a trusted aggregator's", lambda r: f"× {r.scale_factor:.4g}"),
        ("  its standard deviation", lambda r: f"× {r.scale_factor_std:.4g}"),
        *(fewest if answer.kind == SECURE_SUM else []),
        ("least noise that is unknown to a coalition", lambda r: f"{r.sigma_floor:.4g}"),
        (f"bits of the {ring} that the sum can need", lambda r: f"{r.ring_bits}"),
        *(proven if answer.verified else []),
        ("noise in a mean over all, relative to the largest value", lambda r: f"{r.noise_of_mean:.3g}"),
        ("  for comparison, the sampling error of the values", lambda r: f"{r.sampling_error:.3g}"),
        ("signal to noise", lambda r: f"{r.signal_to_noise:.3g}"),
    ]


def _estimates_in_words(planned: PlannedRound) -> Iterator[tuple[str, str]]:
    """Yield the noise of each estimate in its own units, if they are few, and better weights of a regression."""
    if planned.labels is not None and planned.noise_std is not None and 1 < len(planned.labels) <= _SHOWN_MAX:
        parts = ", ".join(f"{label} {std:.3g}" for label, std in zip(planned.labels, planned.noise_std, strict=True))
        units = "" if planned.noise_std_units == DATA else f" ({planned.noise_std_units})"
        yield "estimates", f"{planned.statistic}{units}, standard deviation of the noise in each: {parts}"
    if planned.best_weights is not None and (gain := planned.best_weights_gain or 0) > _GAIN_SHOWN:
        weights = ",".join(map(str, planned.best_weights))
        saved = f"would save {100 * gain:.2g} % of the noise"
        yield "weights", f"--parameter weights=[{weights}] for xxᵀ, xy and y² {saved}"


def _sum_in_words(answer: JobForecast) -> Iterator[tuple[str, str]]:
    """Yield what a secure sum's noise is made of, what liars can do, and whom the guarantee covers."""
    n, honest = answer.clients, answer.honest
    grid = max(answer.scale_factor * honest / n - 1, 0)
    is_coarse = answer.verified and grid > _GRID_SHOWN
    coarse = ": a finer one makes no proof of the largest size; ask more clients, or for fewer numbers" * is_coarse
    yield (
        "factor",
        f"the noise of any {honest} clients (N - T - 1) suffices for the guarantee. The sum of all {n} has "
        f"{answer.scale_factor:.4g} times the variance that a trusted aggregator would add: N/(N - T - 1) = "
        f"{n / honest:.4g}, and a fraction of {grid:.1g} more for the grid{coarse}",
    )
    if answer.verified:
        yield "verified", _liars_in_words(answer)
    yield "colluders", _colluders_in_words(answer)


def _colluders_in_words(answer: JobForecast) -> str:
    """Return which coalitions the guarantee covers with the fewest contributors, and how many clients may drop out."""
    t, c, needed = answer.tolerate, answer.colluders, answer.n_min
    nodes = f"any {answer.computes - 1} of the Compute nodes"
    drops = f"at most {t - c} clients may drop out" if t > c else "no client may drop out"
    room = f"a sum of fewer than {needed} contributions is never released, so {drops}"
    if c:
        return (
            f"{room}. Even then the guarantee holds against a curious client that colludes with {c} other clients and "
            f"{nodes}"
        )
    if t == 0:
        return f"{room}. The guarantee holds against a single curious client that colludes with {nodes}"
    return (
        f"{room}. c = 0: the guarantee holds against a single curious client that colludes with {nodes}. Each "
        f"contribution above {needed} makes up for one more colluding client. But colluding Compute nodes can leave "
        f"clients out until {needed} remain, so rely on c only. --colluders c reserves c of the T for colluders; then "
        f"{t} - c clients may drop out"
    )


def _liars_in_words(answer: JobForecast) -> str:
    """Return what a verified sum is charged beside μ, and what liars and lying nodes can still do."""
    most = max(planned.liar_sds or 0.0 for planned in answer.rounds)
    farther = liar_words(max(planned.liar_factor or 0.0 for planned in answer.rounds))
    return (
        f"ledgers are charged mu {at_least(answer.mu)} and slack {at_least(answer.slack)}; epsilon includes both. A "
        "client whose proof fails is left out and named. One that lies within the bounds moves a value by at most "
        f"{most:.2g} standard deviations of its noise if nobody drops out, K liars by K times that: {farther}. One "
        "lying Compute node passes or fails any client, unseen"
    )


def _signal_in_words(answer: JobForecast) -> str:
    """Compare signal and noise in the round with the weakest signal."""
    number, n = answer.weakest_round, answer.clients
    weakest = answer.rounds[number - 1]
    which = f"weakest in round {number}, {weakest.statistic}: " if len(answer.rounds) > 1 else ""
    verb = "drowns in" if weakest.signal_to_noise < 1 else "stands above"
    far = f"{weakest.signal_to_noise:.3g} standard deviations of its noise from 0: it {verb} the noise"
    if weakest.statistic == "histogram":
        return (
            f"{which}a bin with a third of what all {n} clients contribute is {far}. Every bin's noise has a "
            f"standard deviation of {weakest.sigma_sum:.3g}"
        )
    what, values, scale = _SIGNALS.get(weakest.statistic, _ANY_SIGNAL)
    signal = what.format(n=n)
    if answer.kind == NODE_RELEASE:
        signal = signal.replace(f"{n} clients", f"rows of {n} data nodes")
    return (
        f"{which}{signal} is {far}. The noise is {weakest.noise_of_mean / weakest.sampling_error:.3g} times "
        f"the sampling error of {values} with a standard deviation of a third of {scale}; that error exists without "
        "privacy, too"
    )


def _also_in_words(answer: JobForecast) -> str:
    combined = f"epsilon {at_least(answer.epsilon_with_also or 0)} at delta {at_least(answer.delta)}"
    charged = f"epsilon {at_least(answer.epsilon_charged_with_also or 0)}"
    if pure := sum(getattr(release, "epsilon", 0.0) for release in answer.also):
        apart = at_least(answer.epsilon_charged_apart_with_also or 0)
        charged += f", or {apart} with epsilon_for_reports = {at_least(pure)} in [policy]"
    return (
        f"with the other releases on the same clients, it costs them at most {combined}. If their ledgers are charged "
        f"for all of it, they count {charged}"
    )


# --- the picture ------------------------------------------------------------------------------------------------------

_STYLES = (("#0072B2", "-"), ("#E69F00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#000000", "-"))
_POINTS, _POINTS_VERIFIED = 80, 30  # the trainer's choice of a proof takes longer to compute
_N_LEAST, _N_SHOWN, _N_MOST = 3, 1000, 1_000_000


def plot(rounds: Sequence[OpenRound], path: Path, caption: str) -> None:
    """Draw the picture and mark the requested N and T; the suffix selects the format (png, svg, pdf)."""
    with drawing.picture(7.2, 2.2 + 2.7 * (1 + len(rounds))) as figure:
        _draw(figure, rounds, caption)
        figure.savefig(path, dpi=150)


def _draw(figure: Any, rounds: Sequence[OpenRound], caption: str) -> None:
    first, *others = figure.subplots(1 + len(rounds), 1, sharex=True, squeeze=False)[:, 0]
    _panel(first, rounds[0], "scale_factor", "noise variance in the sum,\n× trusted aggregator")
    first.set_ylim(1, max(5.0, 1.15 * forecast(rounds[0]).scale_factor))
    for panel, request in zip(others, rounds, strict=True):
        _panel(panel, request, "signal_to_noise", f"{request.statistic}:\nbound/3 over noise of the mean")
        panel.axhline(1, color="0.5", linewidth=1)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        panel.yaxis.set_minor_formatter(lambda value, _: "")
    others[-1].set_xlabel("N, number of clients")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"The cost of distributed noise, and the remaining signal\n{caption}", fontsize=11, wrap=True)


def _panel(axes: Any, request: OpenRound, name: str, label: str) -> None:
    """Draw one figure of a `Forecast` over N: a line for each T, and a ring at the requested N and T."""
    assert isinstance(request.kind, SecureSum), "`JobPlan` makes secure sums only"
    asked_n, asked_t = request.kind.clients, request.kind.tolerate
    curves = [*((f"T = {t}", t, 0) for t in (0, 5, 10)), ("T = 10 % of N", 0, 10)]  # T = fixed + N * percent / 100
    if asked_t not in (0, 5, 10):
        curves.append((f"T = {asked_t:,}, as requested", asked_t, 0))
    most = min(max(_N_SHOWN, 10 * asked_n), _N_MOST)
    points = _POINTS_VERIFIED if request.kind.is_verified else _POINTS
    clients = sorted({*np.geomspace(_N_LEAST, most, points).round().astype(int).tolist(), asked_n})
    for (title, fixed, percent), (colour, dashes) in zip(curves, _STYLES, strict=False):
        figures = ((n, _figure(request, n, fixed + n * percent // 100, name)) for n in clients)
        known = [(n, figure) for n, figure in figures if figure is not None]
        axes.plot(*zip(*known, strict=True), color=colour, linestyle=dashes, linewidth=2, label=title)
    axes.plot(
        asked_n, getattr(forecast(request), name), "o", markersize=11, markerfacecolor="none",
        markeredgecolor="#D55E00", markeredgewidth=2.5, label=f"requested: N = {asked_n:,}, T = {asked_t:,}",
    )  # fmt: skip
    axes.set(xscale="log", ylabel=label)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(request: OpenRound, clients: int, tolerate: int, name: str) -> float | None:
    """Return the figure for other N and T, without colluders; None if no such round is possible."""
    kind = msgspec.structs.replace(request.kind, clients=clients, tolerate=tolerate, colluders=0)
    try:
        return float(getattr(forecast(msgspec.structs.replace(request, kind=kind)), name))
    except UsageError:
        return None
