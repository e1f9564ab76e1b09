"""A coalition: what it sees, how much noise is left to it, and whether the claim survives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from emulator.report.bars import Bar, bars
from emulator.report.figures import UNKNOWN, claimed, count, listed, number
from emulator.report.markup import Child, element, table
from emulator.report.page import Page, Section, note
from emulator.report.types import Amount, Count, Real

_DEPTH_MAX, _PARTS_MAX = 6, 50
_MEMBERS = {
    "computes": "Compute nodes",
    "nodes": "Compute nodes",
    "revealing": "revealing clients",
    "omitting": "clients without noise",
    "silent": "silent clients",
}


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Variances by the plan: what the coalition cannot remove, the floor, and what the plan leaves; and as measured."""

    left: Amount
    floor: Amount
    needed: Amount | None = None
    noises_left: Count | None = None
    noises_needed: Count | None = None
    measured: Amount | None = None
    measured_interval: tuple[Amount, Amount] | None = None


class Epsilon(msgspec.Struct, frozen=True, kw_only=True):
    """What is claimed, and what the noise left means; None is infinite: no bound at all."""

    claimed: Amount
    meant: Amount | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what it sees of two neighbouring inputs has two laws."""

    depends_on_data: bool
    p_value: Real | None = None


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What all M Compute nodes make of one client's shares: its first coordinates, beside the truth."""

    truth: list[Real]
    once: list[Real]
    deviation: Amount


class Collusion(msgspec.Struct, frozen=True, kw_only=True):
    """What the page reads of `dca emulate collude --json`."""

    coalition: Any
    sees: list[str]
    noise: Noise
    epsilon: Epsilon
    broken: bool
    view: View | None = None
    why: str | None = None
    released: bool = True
    verdict: str | None = None
    recovered: Recovered | None = None
    setting: Any = None


def page(run: Collusion) -> Page:
    """The page of a coalition."""
    sections = [
        Section(
            "Noise left to it", [*_noise(run)] if run.released or run.recovered else [note("No sum was released.")]
        ),
        Section("What it recovers", [*_recovered(run.recovered)]),
        Section("What it sees", [_seen(run)]),
        Section("Does its view depend on the data?", [*_view(run)]),
        Section("Setting", [_setting(run.setting)]),
    ]
    return Page(
        kind="What a coalition sees",
        title=f"The claim of epsilon {claimed(run.epsilon.claimed)} "
        f"{'is broken by' if run.broken else 'holds against'} {members(run.coalition)}",
        badge=run.verdict or ("broken" if run.broken else "holds"),
        verdict="bad" if run.broken else "good",
        answer=run.why or "",
        facts=[*_facts(run)],
        sections=[section for section in sections if section.content],
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
            return UNKNOWN
    return str(value)


def members(coalition: Any) -> str:
    """Who is in a coalition: "4 clients, 2 Compute nodes and the broker"; who is not in it is left out."""
    if not isinstance(coalition, dict):
        return said(coalition)
    present = {name: one for name, one in coalition.items() if one not in (None, False, 0, [], {})}
    who = [f"the {name}" if one is True else _several(name, one) for name, one in present.items()]
    return listed(who, 12) or "nobody"


def _several(name: str, one: Any) -> str:
    noun = _MEMBERS.get(name, name)
    return f"{said(one)} {noun.replace('clients', 'client').replace('nodes', 'node') if one == 1 else noun}"


def _facts(run: Collusion) -> Iterator[tuple[str, str]]:
    yield "epsilon claimed", claimed(run.epsilon.claimed)
    meant = run.epsilon.meant
    yield "epsilon that the noise left means", "no bound" if meant is None else claimed(meant, 4)
    yield "noise left, of the floor", _ratio(run.noise)
    if run.view is not None:
        yield "its view depends on the data", said(run.view.depends_on_data)


def _ratio(noise: Noise) -> str:
    return f"{number(noise.left / noise.floor)} times" if noise.floor > 0 else "no floor"


def _noise(run: Collusion) -> Iterator[Child]:
    rows = [
        Bar("noise it cannot remove", run.noise.left, f"variance {number(run.noise.left)}", 0),
        Bar("floor: what the claim needs", run.noise.floor, f"variance {number(run.noise.floor)}", 1),
    ]
    if run.noise.measured is not None:
        rows.insert(1, Bar("the same, measured", run.noise.measured, f"variance {number(run.noise.measured)}", 2))
    caption = f"The noise left has {_ratio(run.noise)} the variance of the floor." if run.noise.floor > 0 else ""
    if run.noise.noises_left is not None and run.noise.noises_needed is not None:
        left, needed = count(run.noise.noises_left), count(run.noise.noises_needed)
        caption += f" Unknown noises that hide the client: {left}; the claim needs {needed}."
    yield bars(rows, caption=caption)


def _recovered(found: Recovered | None) -> Iterator[Child]:
    if found is not None:
        pairs = zip(found.truth, found.once, strict=False)
        yield table(
            ("client's value", "recovered in one round"), [(number(a), number(b)) for a, b in pairs], text_columns=()
        )
        yield note(f"Only the client's own noise hides it, with a standard deviation of {number(found.deviation)}.")


def _seen(run: Collusion) -> Child:
    return element("ul", *(element("li", one) for one in run.sees[:200])) if run.sees else note("Nothing.")


def _view(run: Collusion) -> Iterator[Child]:
    if run.view is None:
        yield note("Not tested.")
        return
    p = f" (p = {number(run.view.p_value, 2)})" if run.view.p_value is not None else ""
    found = "tells two neighbouring inputs apart" if run.view.depends_on_data else "does not tell neighbours apart"
    yield note(f"A test on two neighbouring inputs: what it sees, beside the private sum, {found}{p}.")


def _setting(setting: Any) -> Child:
    rows = [(str(key), said(value)) for key, value in setting.items()] if isinstance(setting, dict) else []
    return table(("", "value"), rows) if rows else note(said(setting))
