"""`dca account`: what a round would cost and carry, answered before anybody runs anything."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dca_proto.cli import account_options as options
from dca_proto.cli.account_answer import answer
from dca_proto.cli.account_enquiry import Enquiry, parse_also, parse_shares
from dca_proto.cli.account_plot import plot
from dca_proto.cli.account_question import Columns, questions
from dca_proto.cli.account_view import show
from dca_proto.cli.options import DELTA, parse_bounds, parse_names
from dca_proto.cli.output import (
    STDOUT,
    require_json_target,
    require_matplotlib,
    require_writable,
    say,
    whole_file,
    write_json,
)
from dca_proto.errors import UsageError
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.rounding import claim_words

EXAMPLES = """Examples:

  dca account --epsilon 1 --delta 1e-6 --clients 500 --tolerate 50        what T = 10 % costs

  dca account --clients 500 --statistic mean --bounds "age=0:120,bmi=10:60" --plot account.png

  dca account --clients 400 --epsilon 2 --statistic second-moments,regression --dimension 5 --shares 0.1,0.9

  dca account --clients 400 --also laplace:0.1 --also gaussian:0.2        beside what else is spent

  dca account --clients 1000 --json - | jq .scale_factor
"""


def account(
    clients: options.Clients,
    epsilon: options.Epsilon = 1.0,
    delta: options.Delta = DELTA,
    tolerate: options.Tolerate = None,
    colluders: options.Colluders = 0,
    computes: options.Computes = 3,
    statistic: options.Statistics = None,
    columns: options.Columns = None,
    dimension: options.Dimension = None,
    bound: options.Bound = None,
    bounds: options.Bounds = None,
    parameter: options.Parameters = None,
    rows_max: options.RowsMax = 0,
    fraction_bits: options.FractionBits = 24,
    shares: options.Shares = "best",
    also: options.Also = None,
    plot_to: options.PlotTo = None,
    json_to: options.JsonTo = None,
) -> None:
    """Tell what a round would cost and carry: noise, factor, signal, before anybody runs anything.

    Fields of the JSON object: epsilon, delta, mu_budget (of the whole budget), mu and epsilon_spent (of these rounds
    together), clients, tolerated, colluders, computes, contributors_needed, honest_shares; noise_multiplier,
    sensitivity, sigma_local, scale_factor, ring_bits (of the first round, as in rounds); rounds (share, statistic,
    dimension, relation, sensitivity, bound, epsilon, delta, mu, noise_multiplier, sigma_std, sigma_local, sigma_sum,
    sigma_sum_fewest, sigma_floor, scale_factor, scale_factor_std, ring_bits, fraction_bits, noise_of_mean,
    sampling_error, signal_to_noise, labels, noise_std, noise_std_units, best_weights, best_weights_gain);
    weakest_round (by its signal, from 1); curve (delta, epsilon, epsilon_with_also); also; epsilon_with_also,
    epsilon_charged_with_also (as ledgers would count it), and epsilon_charged_apart_with_also (as those would that keep
    a part for reports of delta 0); warnings. What is not known is null.
    """
    _check_outputs(plot_to, json_to)
    asked = Columns(names=parse_names(columns), dimension=dimension, bound=bound, bounds=parse_bounds(bounds))
    enquiry = Enquiry(
        budget=Budget(epsilon, delta),
        clients=clients,
        tolerated=clients // 10 if tolerate is None else tolerate,
        colluders=colluders,
        computes=computes,
        questions=questions(statistic or ["sum"], asked, parameter or []),
        shares=parse_shares(shares),
        rows_max=rows_max,
        fraction_bits=fraction_bits,
        also=tuple(map(parse_also, also or [])),
    )
    _answer(enquiry, plot_to, json_to)


def _check_outputs(plot_to: Path | None, json_to: str | None) -> None:
    """Refuse, before the work, what could not be written after it."""
    require_json_target(json_to)
    if plot_to is not None:
        if plot_to.suffix not in (".png", ".svg", ".pdf"):
            raise UsageError(f"--plot {plot_to}: expected a name that ends with .png, .svg or .pdf")
        require_matplotlib()
        require_writable(plot_to)


def _answer(enquiry: Enquiry, plot_to: Path | None, json_to: str | None) -> None:
    """Work it out and tell it."""
    with Console(stderr=True).status("working it out"):  # up to three seconds, where much is asked
        divided = enquiry.divided()
        rounds = enquiry.rounds(divided)
        found = answer(enquiry, divided, rounds)
        if plot_to is not None:
            with whole_file(plot_to) as place:
                plot(rounds, place, claim_words(enquiry.budget.epsilon, enquiry.budget.delta))
    write_json(found, json_to)  # before the tables: whoever reads only their head gets it whole
    console = Console(stderr=json_to == STDOUT)
    show(console, enquiry, found)
    if plot_to is not None:
        say(console, "picture", str(plot_to))
