"""The page of a coalition: what it sees, how much noise it cannot remove, and whether the claim holds."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

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
    """Return the page of a coalition."""
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
            ("epsilon with the noise left", _bound(run.epsilon.meant)),
            ("noise variance left, relative to the floor", _ratio(run)),
            ("its view depends on the data", "yes" if run.view.depends_on_data else "no"),
        ],
        sections=sections,
    )


def figures(found: Finding) -> list[Block]:
    """Return a table of each figure by the plan, as measured, and as the claim requires."""
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
        yield "epsilon with that noise", _bound(epsilon.meant), meant, f"≤ {claimed(epsilon.claimed, 4)}"
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
    """Return a coalition's members as text: "4 clients, 2 Compute nodes and the broker"."""

    def several(name: str, number: int) -> str:
        noun = _MEMBERS.get(name, name)
        return f"{number} {noun.replace('clients', 'client').replace('nodes', 'node') if number == 1 else noun}"

    present = {name: value for name, value in msgspec.structs.asdict(coalition).items() if value}
    names = [f"the {name}" if value is True else several(name, value) for name, value in present.items()]
    return listed(names, 12) or "nobody"


def _ratio(run: Result) -> str:
    return f"{number(run.noise.left / run.noise.floor)} times" if run.noise.floor > 0 else "no floor"


def _noise(run: Result) -> str:
    noise = run.noise
    ratio = f"The noise left has {_ratio(run)} the variance of the floor. " if noise.floor > 0 else ""
    noises = f"Unknown noises that hide the client: {count(noise.noises_left)}; the claim needs "
    return f"{ratio}{noises}{count(noise.noises_needed)}. Brackets hold {percent(noise.confidence)} intervals."


def _recovered(run: Result) -> list[Block]:
    found = run.recovered
    if found is None:
        return []
    pairs = zip(found.truth, found.once, strict=False)
    note = f"Only the client's own noise hides it, with a standard deviation of {number(found.deviation)}."
    columns = {"client's value": lambda pair: number(pair[0]), "recovered in one round": lambda pair: number(pair[1])}
    return table(pairs, columns, note=note)


def _view(run: Result) -> list[Block]:
    p = f" (p = {number(run.view.p_value, 2)})" if run.view.p_value is not None else ""
    answer = "tell" if run.view.depends_on_data else "do not tell"
    return [Note(f"Tests of what it sees beyond the private sum {answer} two neighbouring inputs apart{p}.")]
