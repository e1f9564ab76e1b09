"""What a person sees of `dca account`: a table with a column for each round, and in words what the numbers mean."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from dca_proto.cli.account_answer import DATA
from dca_proto.cli.account_enquiry import Enquiry
from dca_proto.cli.output import say
from dca_proto.privacy.rounding import at_least, claim_words

_SHOWN_MAX = 12  # coordinates up to which each one's noise is shown
_GAIN_SHOWN = 0.01  # of the noise; less is not worth telling
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


def show(console: Console, enquiry: Enquiry, answer: dict[str, Any]) -> None:
    """Everything, from the federation down to what else is spent."""
    n, t, c, needed = enquiry.clients, enquiry.tolerated, enquiry.colluders, answer["contributors_needed"]
    say(
        console,
        "federation",
        f"{n} clients, {enquiry.computes} Compute nodes, T = {t} (c = {c} reserved for colluders)",
    )
    say(console, "budget", _budget_in_words(answer))
    for warning in answer["warnings"]:
        say(console, "warning", warning)
    console.print(_table(answer["rounds"], needed))
    _show_coordinates(console, answer["rounds"])
    _show_weights(console, answer["rounds"])
    say(console, "factor", _factor_in_words(enquiry, answer))
    say(console, "colluders", _colluders_in_words(enquiry, needed))
    say(console, "signal", _signal_in_words(answer))
    console.print(_curve_table(answer["curve"]))
    if enquiry.also:
        together = f"epsilon {at_least(answer['epsilon_with_also'])} at delta {at_least(enquiry.budget.delta)}"
        charged = f"epsilon {at_least(answer['epsilon_charged_with_also'])}"
        pure = sum(getattr(one, "epsilon", 0.0) for one in enquiry.also)
        if pure:
            apart = at_least(answer["epsilon_charged_apart_with_also"])
            charged += f", or {apart} with epsilon_for_reports = {at_least(pure)} in [policy]"
        say(
            console,
            "also",
            f"together with what else is spent on the same clients, it costs them at most {together}; their ledgers, "
            f"charged for all of it, would count {charged}",
        )


def _budget_in_words(answer: dict[str, Any]) -> str:
    """What may be spent, and what these rounds spend where that is less."""
    budget = f"{claim_words(answer['epsilon'], answer['delta'])} of every client in all"
    whole = f"{budget} (mu {at_least(answer['mu_budget'])})"
    if answer["mu"] > _LEFT_SHOWN * answer["mu_budget"]:
        return whole
    rounds = "this round spends" if len(answer["rounds"]) == 1 else "these rounds spend"
    return f"{whole}, of which {rounds} epsilon {at_least(answer['epsilon_spent'])} (mu {at_least(answer['mu'])})"


def _table(rounds: list[dict[str, Any]], needed: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for told in rounds:
        table.add_column(told["statistic"], justify="right")
    rows = [
        ("share of the budget (of mu²)", lambda r: f"{100 * r['share']:.3g} %"),
        ("mu of the round", lambda r: at_least(r['mu'])),
        ("  quoted as epsilon", lambda r: at_least(r['epsilon'])),
        ("dimension d", lambda r: f"{r['dimension']}"),
        ("sensitivity Δ, L2, when one client's data are replaced", lambda r: f"{r['sensitivity']:.4g}"),
        ("noise multiplier σ_std/Δ", lambda r: f"{r['noise_multiplier']:.4g}"),
        ("noise of a trusted aggregator σ_std", lambda r: f"{r['sigma_std']:.4g}"),
        ("noise of each client's share", lambda r: f"{r['sigma_local']:.4g}"),
        ("noise in the sum when nobody drops", lambda r: f"{r['sigma_sum']:.4g}"),
        ("  its variance, beside a trusted aggregator's", lambda r: f"× {r['scale_factor']:.4g}"),
        ("  its standard deviation", lambda r: f"× {r['scale_factor_std']:.4g}"),
        (f"noise in the sum of the fewest, {needed}", lambda r: f"{r['sigma_sum_fewest']:.4g}"),
        ("floor: noise that is unknown to a coalition", lambda r: f"{r['sigma_floor']:.4g}"),
        ("bits of the ring's 64 that the sum can need", lambda r: f"{r['ring_bits']}"),
        ("noise in a mean over all, in parts of the largest value", lambda r: f"{r['noise_of_mean']:.3g}"),
        ("  beside it, the sampling error of the values", lambda r: f"{r['sampling_error']:.3g}"),
        ("signal to noise", lambda r: f"{r['signal_to_noise']:.3g}"),
    ]  # fmt: skip
    for label, figure in rows:
        table.add_row(label, *map(figure, rounds))
    return table


def _show_coordinates(console: Console, rounds: list[dict[str, Any]]) -> None:
    """The noise of each estimate in its own units, where there are few."""
    for told in rounds:
        if told["labels"] is not None and 1 < len(told["labels"]) <= _SHOWN_MAX:
            parts = [f"{label} {std:.3g}" for label, std in zip(told["labels"], told["noise_std"], strict=True)]
            units = "" if told["noise_std_units"] == DATA else f" ({told['noise_std_units']})"
            say(
                console,
                "estimates",
                f"{told['statistic']}{units}, standard deviation of the noise in each: {', '.join(parts)}",
            )


def _show_weights(console: Console, rounds: list[dict[str, Any]]) -> None:
    for told in rounds:
        if told["best_weights"] is not None and told["best_weights_gain"] > _GAIN_SHOWN:
            text = ",".join(map(str, told["best_weights"]))
            gain = 100 * told["best_weights_gain"]
            say(
                console,
                "weights",
                f"--parameter weights=[{text}] for xxᵀ, xy and y² would save {gain:.2g} % of the noise",
            )


def _curve_table(curve: list[dict[str, float]]) -> Table:
    """Five of the ten."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("the whole job, at delta")
    for point in curve[1::2]:
        table.add_column(at_least(point["delta"]), justify="right")
    table.add_row("epsilon", *(at_least(point["epsilon"]) for point in curve[1::2]))
    if curve[0]["epsilon_with_also"] is not None:
        table.add_row("with what else is spent", *(at_least(point["epsilon_with_also"]) for point in curve[1::2]))
    return table


def _factor_in_words(enquiry: Enquiry, answer: dict[str, Any]) -> str:
    n, honest, factor = enquiry.clients, answer["honest_shares"], answer["scale_factor"]
    grid = factor * honest / n - 1
    return (
        f"the noise of any {honest} clients (N - T - 1) is enough for the promise. The sum of all {n} carries "
        f"{factor:.4g} times the variance that a trusted aggregator would add: N/(N - T - 1) = {n / honest:.4g}, "
        f"and a part of {max(grid, 0):.1g} on top for the grid"
    )


def _colluders_in_words(enquiry: Enquiry, needed: int) -> str:
    """Against whom the promise holds when as few contribute as may, and what that leaves for others."""
    t, c, nodes = enquiry.tolerated, enquiry.colluders, f"any {enquiry.computes - 1} of the Compute nodes"
    drops = f"at most {t - c} clients may drop out" if t > c else "no client may drop out"
    room = f"a sum of fewer than {needed} contributions is never released, so {drops}"
    if c:
        return (
            f"{room}; even then the promise holds against a curious client with {c} other clients that tell it their "
            f"noise, and {nodes}"
        )
    if t == 0:
        return f"{room}, and the promise holds against a curious client that is alone, and {nodes}"
    return (
        f"{room}. c = 0: the promise holds against a curious client that is alone, and {nodes}. Each contribution "
        f"above {needed} makes up for one more client that tells its noise, but Compute nodes that collude can leave "
        f"clients out until {needed} remain: count on c others only. --colluders c reserves room for them; then "
        f"{t} - c may drop out"
    )


def _signal_in_words(answer: dict[str, Any]) -> str:
    """Of the round in which the signal is weakest."""
    number, n = answer["weakest_round"], answer["clients"]
    told = answer["rounds"][number - 1]
    which = f"weakest in round {number}, {told['statistic']}: " if len(answer["rounds"]) > 1 else ""
    signal = told["signal_to_noise"]
    far = f"{signal:.3g} standard deviations of its noise from 0: it {'drowns in' if signal < 1 else 'stands above'} it"
    if told["statistic"] == "histogram":
        return (
            f"{which}a bin that holds a third of what all {n} clients contribute is {far}. Every bin's noise has a "
            f"standard deviation of {told['sigma_sum']:.3g}"
        )
    what, spread, of = _SIGNALS.get(told["statistic"], _ANY_SIGNAL)
    beside = told["noise_of_mean"] / told["sampling_error"]
    return (
        f"{which}{what.format(n=n)} is {far}. The noise is {beside:.3g} times the sampling error of {spread} spread by "
        f"a third of {of}, which there is without privacy, too"
    )
