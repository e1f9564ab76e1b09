"""A coalition: what it sees, how much noise is left to it, and whether the claim survives it."""

from __future__ import annotations

from typing import Any

import msgspec

from emulator.collusion.report import Result
from emulator.report.blocks import Block, Items, Note, Page, Section, Table, settings, table
from emulator.report.figures import claimed, count, listed, number

_DEPTH_MAX, _PARTS_MAX = 6, 50
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
    meant = run.epsilon.meant
    facts = [
        ("epsilon claimed", claimed(run.epsilon.claimed)),
        ("epsilon that the noise left means", "no bound" if meant is None else claimed(meant, 4)),
        ("noise left, of the floor", _ratio(run)),
        ("its view depends on the data", said(run.view.depends_on_data)),
    ]
    sections: list[Section] = [
        ("Noise left to it", _noise(run) if run.released or run.recovered else [Note("No sum was released.")]),
        ("What it recovers", _recovered(run)),
        ("What it sees", [Items(run.sees) if run.sees else Note("Nothing.")]),
        ("Does its view depend on the data?", _view(run)),
        ("Setting", settings((key, said(value)) for key, value in run.setting.items())),
    ]
    return Page(
        kind="What a coalition sees",
        title=f"The claim of epsilon {claimed(run.epsilon.claimed)} "
        f"{'is broken by' if run.broken else 'holds against'} {members(run.coalition)}",
        badge=run.verdict,
        verdict="bad" if run.broken else "good",
        answer=run.why,
        facts=facts,
        sections=sections,
    )


def said(value: Any, depth: int = 0) -> str:
    """Plain data in words: "clients: 4, broker: yes"; what is long or deep is cut."""
    if depth > _DEPTH_MAX:
        return "…"
    match value:
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{key}: {said(one, depth + 1)}" for key, one in [*value.items()][:_PARTS_MAX]) or "nobody"
        case list():
            return ", ".join(said(one, depth + 1) for one in value[:_PARTS_MAX]) or "nobody"
        case float():  # a setting, as it was given
            return f"{value:.15g}"
        case None:
            return "–"
    return str(value)


def members(coalition: msgspec.Struct) -> str:
    """Who is in a coalition: "4 clients, 2 Compute nodes and the broker"; who is not in it is left out."""
    present = {
        name: one for name, one in msgspec.structs.asdict(coalition).items() if one not in (None, False, 0, [], {})
    }
    who = [f"the {name}" if one is True else _several(name, one) for name, one in present.items()]
    return listed(who, 12) or "nobody"


def _several(name: str, one: Any) -> str:
    noun = _MEMBERS.get(name, name)
    return f"{said(one)} {noun.replace('clients', 'client').replace('nodes', 'node') if one == 1 else noun}"


def _ratio(run: Result) -> str:
    return f"{number(run.noise.left / run.noise.floor)} times" if run.noise.floor > 0 else "no floor"


def _noise(run: Result) -> list[Block]:
    noise = run.noise
    rows = [("noise it cannot remove, by the plan", number(noise.left))]
    if noise.measured is not None and noise.measured_interval is not None:
        low, high = (number(end) for end in noise.measured_interval)
        rows.append(("the same, measured", f"{number(noise.measured)} [{low}, {high}]"))
    rows.append(("floor: what the claim needs", number(noise.floor)))
    told = f"The noise left has {_ratio(run)} the variance of the floor. " if noise.floor > 0 else ""
    told += f"Unknown noises that hide the client: {count(noise.noises_left)}; the claim needs "
    told += f"{count(noise.noises_needed)}. In brackets is a {said(round(100 * noise.confidence, 6))} % interval."
    return [Table(("", "variance in each value"), rows), Note(told)]


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
