"""A coalition: what it sees, how much noise is left to it, and whether the claim survives it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import msgspec

from emulator.collusion.dependence import ALARM
from emulator.collusion.finding import CONFIDENCE, Finding, Result
from emulator.report.blocks import Block, Items, Note, Page, Section, Table, fields, table
from emulator.report.figures import claimed, count, listed, number, percent, proved

_MEMBERS = {
    "computes": "Compute nodes",
    "nodes": "Compute nodes",
    "revealing": "revealing clients",
    "omitting": "clients without noise",
    "silent": "silent clients",
    "left_out": "clients left out",
}


def page(run: Result) -> Page:
    """The page of a coalition."""
    sections: list[Section] = [
        ("Figures", [*figures(run), Note(_noise(run) if run.released or run.recovered else "No sum was released.")]),
        ("What it recovers", _recovered(run)),
        ("What it sees", [Items(run.sees) if run.sees else Note("Nothing.")]),
        ("Does its view depend on the data?", _view(run)),
        ("Setting", fields(run.setting)),
    ]
    return Page(
        kind="What a coalition sees",
        title=f"The claim of epsilon {claimed(run.epsilon.claimed)} "
        f"{'is broken by' if run.broken else 'holds against'} {members(run.coalition)}",
        badge=run.verdict,
        verdict="bad" if run.broken else "good",
        answer=run.why,
        facts=[
            ("epsilon claimed", claimed(run.epsilon.claimed)),
            ("epsilon that the noise left means", _bound(run.epsilon.meant)),
            ("noise left, of the floor", _ratio(run)),
            ("its view depends on the data", "yes" if run.view.depends_on_data else "no"),
        ],
        sections=sections,
    )


def figures(found: Finding) -> list[Block]:
    """By the plan, as measured, and what the claim needs."""
    return [Table(("", "by the plan", f"measured [{percent(CONFIDENCE)} interval]", "claim"), [*_figures(found)])]


def _figures(found: Finding) -> Iterator[tuple[str, str, str, str]]:
    noise, epsilon, view = found.noise, found.epsilon, found.view
    if found.released or found.recovered:
        measured = ""
        if noise.measured is not None and noise.measured_interval is not None:
            measured = f"{number(noise.measured)} {_interval(*map(number, noise.measured_interval))}"
        meant = ""
        if epsilon.measured_interval is not None:
            low, high = epsilon.measured_interval
            meant = _interval(_bound(low) if low is None else proved(low, 4), _bound(high))
        yield "noises that hide the client", count(noise.noises_left), "", f"≥ {count(noise.noises_needed)}"
        yield "variance of the noise left", number(noise.left, 4), measured, f"≥ {number(noise.floor, 4)}"
        yield "epsilon that it means", _bound(epsilon.meant), meant, f"≤ {claimed(epsilon.claimed, 4)}"
    if not found.released:
        yield "contributions", count(found.contributors.found), "aborted", f"≥ {count(found.contributors.needed)}"
    if (value := found.recovered) is not None:
        reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * value.error
        mean = f"{number(value.mean)} {_interval(number(value.mean - reach), number(value.mean + reach))}"
        yield "the client's value, all rounds' mean", number(value.truth[0]) if value.truth else "", mean, ""
    if view.p_value is not None:
        yield f"masked vectors, {len(view.tests)} tests, p", "", number(view.p_value, 2), f"≥ {number(ALARM, 1)}"
    yield "same traffic for both inputs", "", "yes" if view.same_traffic else "no", "yes"


def _interval(low: str, high: str) -> str:
    return f"[{low}, {high}]"


def _bound(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else claimed(epsilon, 4)


def members(coalition: msgspec.Struct) -> str:
    """Who is in a coalition: "4 clients, 2 Compute nodes and the broker"; who is not in it is left out."""

    def several(name: str, one: Any) -> str:
        noun = _MEMBERS.get(name, name)
        return f"{one} {noun.replace('clients', 'client').replace('nodes', 'node') if one == 1 else noun}"

    present = {name: one for name, one in msgspec.structs.asdict(coalition).items() if one}
    who = [f"the {name}" if one is True else several(name, one) for name, one in present.items()]
    return listed(who, 12) or "nobody"


def _ratio(run: Result) -> str:
    return f"{number(run.noise.left / run.noise.floor)} times" if run.noise.floor > 0 else "no floor"


def _noise(run: Result) -> str:
    noise = run.noise
    told = f"The noise left has {_ratio(run)} the variance of the floor. " if noise.floor > 0 else ""
    told += f"Unknown noises that hide the client: {count(noise.noises_left)}; the claim needs "
    return f"{told}{count(noise.noises_needed)}. In brackets is a {percent(noise.confidence)} interval."


def _recovered(run: Result) -> list[Block]:
    found = run.recovered
    if found is None:
        return []
    pairs = zip(found.truth, found.once, strict=False)
    told = f"Only the client's own noise hides it, with a standard deviation of {number(found.deviation)}."
    columns = {"client's value": lambda one: number(one[0]), "recovered in one round": lambda one: number(one[1])}
    return table(pairs, columns, note=told)


def _view(run: Result) -> list[Block]:
    p = f" (p = {number(run.view.p_value, 2)})" if run.view.p_value is not None else ""
    found = "distinguishes two neighbouring inputs" if run.view.depends_on_data else "does not distinguish neighbours"
    return [Note(f"A test on two neighbouring inputs: what it sees, beside the private sum, {found}{p}.")]
