"""`dca account`: what a round would cost and carry, answered before anybody runs anything."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console

from dca_proto import privacy_loss
from dca_proto.cli.account_enquiry import Enquiry, parse_also, parse_shares, question, total_mu
from dca_proto.cli.account_plot import plot
from dca_proto.cli.account_view import show
from dca_proto.cli.options import parse_bounds, parse_names, parse_parameter
from dca_proto.cli.output import STDOUT, require_json_target, require_writable, write_json
from dca_proto.core import accounting
from dca_proto.core.budget import Budget
from dca_proto.core.errors import UsageError
from dca_proto.core.forecast import forecast
from dca_proto.core.messages import Announcement
from dca_proto.core.plan import Plan
from dca_proto.statistics.base import parameter_names
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.regression import Regression
from dca_proto.statistics.regression_sensitivity import Weights
from dca_proto.statistics.weights import best_regression_weights
from emulator.view import say

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
_LABELLED_MAX = 100  # coordinates up to which each is listed by name
EXAMPLES = """Examples:

  dca account --epsilon 1 --delta 1e-6 --clients 500 --tolerate 50        what T = 10 % costs

  dca account --clients 500 --statistic mean --bounds "age=0:120,bmi=10:60" --plot account.png

  dca account --clients 400 --epsilon 2 --statistic second-moments,regression --dimension 5 --shares 0.1,0.9

  dca account --clients 400 --also laplace:0.1 --also gaussian:0.2        beside what else is spent

  dca account --clients 1000 --json - | jq .scale_factor
"""


def account(
    clients: Annotated[int, typer.Option(help="N, how many clients take part.")],
    epsilon: Annotated[float, typer.Option(help="What the whole job may cost each of them,")] = 1.0,
    delta: Annotated[float, typer.Option(help="and its delta.")] = 1e-6,
    tolerate: Annotated[
        int | None, typer.Option(help="T, how many may drop out or collude; by default N / 10.")
    ] = None,
    colluders: Annotated[int, typer.Option(help="c, how many of the T are reserved for colluders.")] = 0,
    computes: Annotated[int, typer.Option(help="M, the number of Compute nodes.")] = 3,
    statistic: Annotated[
        list[str] | None,
        typer.Option(help="What is computed, by default sum; several rounds: repeat it, or A,B."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names of the columns, A,B,C; a regression's target last.")
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Or how many columns (bins, of a histogram); by default the fewest.")
    ] = None,
    bound: Annotated[float | None, typer.Option(help="Every column lies within ± this; by default 1.")] = None,
    bounds: Annotated[
        str | None, typer.Option(help="Or the public bounds of each: COL=LO:HI,... or a TOML file.")
    ] = None,
    parameter: Annotated[list[str] | None, typer.Option(help="A further NAME=JSON of a statistic; repeat.")] = None,
    rows_max: Annotated[int, typer.Option(help="R, to add up to R rows of a client; 0 for their mean.")] = 0,
    fraction_bits: Annotated[int, typer.Option(help="f of the grid 2^-f, even.")] = 24,
    shares: Annotated[str, typer.Option(help="Of the budget (of mu²) for each round, A,B,..., or best.")] = "best",
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="What else is spent on the same clients, KIND:VALUE such as laplace:0.1 or pure:0.5; repeat."
        ),
    ] = None,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="A picture over N and T.", metavar="FILE.png")] = None,
    json_to: Annotated[str | None, typer.Option("--json", help="Write the figures to a file, or - for stdout.")] = None,
) -> None:
    """Tell what a round would cost and carry: noise, factor, signal, before anybody runs anything."""
    _check_outputs(plot_to, json_to)
    enquiry = Enquiry(
        budget=Budget(epsilon, delta),
        clients=clients,
        tolerated=clients // 10 if tolerate is None else tolerate,
        colluders=colluders,
        computes=computes,
        questions=_questions(
            parse_names(",".join(statistic or ["sum"])) or [], columns, dimension, bound, bounds, parameter or []
        ),
        shares=parse_shares(shares),
        rows_max=rows_max,
        fraction_bits=fraction_bits,
        also=tuple(map(parse_also, also or [])),
    )
    with Console(stderr=True).status("working it out"):  # up to three seconds, where much is asked
        divided = enquiry.divided()
        rounds = enquiry.rounds(divided)
        answer = _answer(enquiry, divided, rounds)
        if plot_to is not None:
            plot(rounds, plot_to, f"epsilon {epsilon:g}, delta {delta:g}")
    console = Console(stderr=json_to == STDOUT)
    show(console, enquiry, answer)
    if plot_to is not None:
        say(console, "picture", str(plot_to))
    write_json(answer, json_to)


def _check_outputs(plot_to: Path | None, json_to: str | None) -> None:
    """Refuse, before the work, what could not be written after it."""
    require_json_target(json_to)
    if plot_to is not None:
        if plot_to.suffix not in (".png", ".svg", ".pdf"):
            raise UsageError(f"--plot {plot_to}: expected a name that ends with .png, .svg or .pdf")
        if find_spec("matplotlib") is None:
            raise ModuleNotFoundError("for the picture", name="matplotlib")
        require_writable(plot_to)


def _questions(
    statistics: list[str],
    columns: str | None,
    dimension: int | None,
    bound: float | None,
    bounds: str | None,
    further: list[str],
) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Of each round; options that exclude each other, or that nothing takes, are refused."""
    if bound is not None and bounds is not None:
        raise UsageError("--bound and --bounds exclude each other; keep one")
    if dimension is not None and (dimension < 1 or columns is not None):
        raise UsageError(f"--dimension {dimension}: expected 1 or more, without --columns")
    names = [name.strip() for text in statistics for name in text.split(",")]
    given = dict(map(parse_parameter, further))
    unknown = given.keys() - {key for name in names for key in parameter_names(name)}
    if unknown:
        raise UsageError(f"--parameter {min(unknown)}: no such parameter of {', '.join(names)}")
    ends = parse_bounds(bounds)
    return tuple(question(name, parse_names(columns), dimension, bound, ends, given) for name in names)


def _answer(enquiry: Enquiry, shares: tuple[float, ...], rounds: list[tuple[Announcement, Plan]]) -> dict[str, Any]:
    """Everything, as plain JSON values; the figures of the first round at the top as well."""
    mu, plan = total_mu(rounds), rounds[0][1]
    told = [{"share": share, **_round(*planned)} for share, planned in zip(shares, rounds, strict=True)]
    first = {
        name: told[0][name] for name in ("noise_multiplier", "sensitivity", "sigma_local", "scale_factor", "ring_bits")
    }
    return {
        "epsilon": enquiry.budget.epsilon,
        "delta": enquiry.budget.delta,
        "mu": mu,
        "clients": enquiry.clients,
        "tolerated": enquiry.tolerated,
        "colluders": enquiry.colluders,
        "computes": enquiry.computes,
        "contributors_needed": plan.needed,
        "honest_shares": plan.honest,
        **first,
        "rounds": told,
        "curve": _curve(mu, enquiry.also),
        "also": [{"kind": type(one).__name__, **msgspec.to_builtins(one)} for one in enquiry.also],
        "epsilon_with_also": _with_also(mu, enquiry.also, enquiry.budget.delta),
    }


def _round(announcement: Announcement, plan: Plan) -> dict[str, Any]:
    """A round's forecast, and where there are few coordinates, the noise of each in the units of its estimate."""
    told: dict[str, Any] = msgspec.to_builtins(forecast(announcement, plan))
    told |= {"labels": None, "noise_std": None, "best_weights": None, "best_weights_gain": None}
    if plan.dimension <= _LABELLED_MAX:
        statistic, zero = plan.question.statistic, np.zeros(plan.dimension)
        shifted = statistic.estimate(zero + told["sigma_sum"], plan.clients) - statistic.estimate(zero, plan.clients)
        told |= {"labels": list(statistic.labels()), "noise_std": np.abs(shifted).tolist()}
    if isinstance(plan.question.statistic, Regression):
        told |= _best_weights(plan.question.statistic, announcement)
    return told


def _best_weights(statistic: Regression, announcement: Announcement) -> dict[str, Any]:
    """The weights of xxᵀ, xy and y² that minimise the total noise variance, and what part of its standard deviation
    that saves, beside the weights that were asked for."""

    def error(weights: Weights) -> float:
        weighted = msgspec.structs.replace(statistic, weights=weights)
        sensitivity = client_sensitivity(weighted, announcement.rows_max, announcement.fraction_bits)
        sizes = zip(statistic.block_sizes, weights, strict=True)
        return math.sqrt(sensitivity.l2_squared * math.fsum(size / weight**2 for size, weight in sizes))

    best = best_regression_weights(statistic, announcement.fraction_bits)
    return {"best_weights": list(best), "best_weights_gain": 1 - error(best) / error(statistic.weights)}


def _curve(mu: float, also: tuple[privacy_loss.Release, ...]) -> list[dict[str, float | None]]:
    """ε of the whole job at several δ, alone and beside what else is spent."""
    return [
        {"delta": d, "epsilon": accounting.epsilon_of(mu, d), "epsilon_with_also": _with_also(mu, also, d)}
        for d in DELTAS
    ]


def _with_also(mu: float, also: tuple[privacy_loss.Release, ...], delta: float) -> float | None:
    return privacy_loss.epsilon_of((privacy_loss.Gaussian(mu), *also), delta) if also else None
