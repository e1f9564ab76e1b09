"""What a coalition sees, item by item, in words with the figures of one round that was watched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from emulator.collusion.coalition import Case
from emulator.collusion.rounds import Round
from emulator.collusion.view import Passed, Traffic
from emulator.sim.simulator import US


def observations(case: Case, one: Round, traffic: Traffic) -> tuple[str, ...]:
    """Everything that the coalition's members see of a round.

    Args:
        one: a round. traffic: what passed the broker in it.
    """
    return (
        *_clients(case),
        *_nodes(case, one),
        *_trainer(case, one),
        *(_broker(traffic) if case.coalition.broker else ()),
    )


def _clients(case: Case) -> Iterator[str]:
    coalition = case.coalition
    if coalition.revealing:
        yield f"{_count(coalition.revealing, 'client')}: their own data and noise, which they tell"
    if coalition.omitting:
        yield f"{_count(coalition.omitting, 'client')}: their own data, to which they add no noise"
    if coalition.silent:
        yield f"{_count(coalition.silent, 'client')}: the announcement; they send nothing"


def _nodes(case: Case, one: Round) -> Iterator[str]:
    count, held = case.coalition.nodes, one.held
    if not count:
        return
    who = f"{count} of {case.setting.computes} Compute nodes"
    yield f"{who}: who takes part: {len(held.clients)} clients, their ids and keys"
    yield f"{who}: of those that they hold, {len(held.kept)} masked vectors of {case.setting.dimension} words"
    yield f"{who}: their own masks and tags of each contribution, {count} of {case.setting.computes}"
    if held.charges:
        low, high = min(held.charges.values()), max(held.charges.values())
        yield f"{who}: charge numbers, how often each client was ever charged: {_span(low, high)}"
    if held.told:
        said = _count(held.told, "message")
        yield f"{who}: whose contributions the other nodes hold, and what they object to, in {said}"
    if case.has_all_nodes:
        yield f"{who}: all masks of each client, hence its value with its own noise and nobody else's"


def _trainer(case: Case, one: Round) -> Iterator[str]:
    if not case.coalition.trainer:
        return
    if one.total is not None:
        yield f"trainer: who is in the sum: {case.contributors} clients, their ids"
        yield f"trainer: {len(one.held.partials)} partial sums, and so the private sum over {case.contributors} clients"
    else:
        yield "trainer: signed aborts with the number of contributions, and no sum"


def _broker(traffic: Traffic) -> Iterator[str]:
    """Who sends to whom, when, and how much; in classes of sender and channel."""
    classes: dict[tuple[str, str], list[Passed]] = defaultdict(list)
    for passed in traffic.sent:
        classes[passed.role, passed.channel].append(passed)
    size, began_us = sum(passed.size for passed in traffic.sent), min(passed.at_us for passed in traffic.sent)
    yield f"broker: {len(traffic.sent)} messages, {size:,} bytes: sender, receiver, time and length of each"
    for (role, channel), group in classes.items():
        sizes, times_us = [passed.size for passed in group], [passed.at_us - began_us for passed in group]
        length, time_ms = _span(min(sizes), max(sizes)), _span(min(times_us) // US, max(times_us) // US)
        yield f"broker: {role} to {channel}: {_count(len(group), 'message')} of {length} bytes, at {time_ms} ms"
    sealed = "contributions, lists and partial sums are sealed"
    yield f"broker: what is signed and not sealed, clients' keys among it; {sealed}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
