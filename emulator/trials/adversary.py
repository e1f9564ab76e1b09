"""A kind of adversary, and what it may spoil (DESIGN §10). Every property that a kind does not name must hold.

    value     the result may be wrong, but is as private as before
    round     a round may end without a result
    consent   clients may decline rounds until they restart

No kind may spoil privacy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from dca_proto.protocol.effects import Effect, Send
from dca_proto.protocol.events import Event

Step = Callable[..., Any]
"""Runs instead of a method: called with the actor, the method that it replaces, and the method's arguments."""


class AdversaryKind(msgspec.Struct, frozen=True):
    """A kind of adversary: an actor with some methods replaced.

    Attributes:
        does: description. actor: its class, with a `role` and an `amount`. steps: method's name -> what runs instead.
        spoils: what it may spoil. amounts: the `amount` if the scenario gives 0, and the largest.
        is_insider: it is drawn beside others, more often than they are.
        needs_proofs: it is drawn for verified sums only.
        is_directed: it is not drawn; scenarios made by hand have it (`directed`).
        is_stranger: it joins the population without having been enrolled.
    """

    does: str
    actor: Any
    steps: dict[str, Step] = {}
    spoils: frozenset[str] = frozenset()
    amounts: tuple[int, int] = (0, 0)
    is_insider: bool = False
    needs_proofs: bool = False
    is_directed: bool = False
    is_stranger: bool = False

    @property
    def role(self) -> str:
        """The role of the actor that it replaces."""
        return str(self.actor.role)

    def configured(self, amount: int, **attributes: object) -> type[Any]:
        """Return the adversary's class with this amount and these attributes."""
        methods = {name: _replaced(getattr(self.actor, name), step) for name, step in self.steps.items()}
        return type(self.actor.__name__, (self.actor,), {"amount": amount or self.amounts[0], **attributes, **methods})


def _replaced(honest: Callable[..., Any], step: Step) -> Callable[..., Any]:
    def method(actor: object, *arguments: object) -> Any:
        return step(actor, functools.partial(honest, actor), *arguments)

    return method


def without(withheld: Callable[[Send], bool]) -> Step:
    """Return a step instead of `handle`: the actor handles all events, but does not send these messages."""

    def handle(actor: object, honest: Callable[..., list[Effect]], event: Event, now_ms: int) -> list[Effect]:
        return [effect for effect in honest(event, now_ms) if not (isinstance(effect, Send) and withheld(effect))]

    return handle


class Replaced:
    """A proxy of an object of the product, with some of its attributes replaced."""

    def __init__(self, honest: object, **own: object) -> None:
        vars(self).update(own, _honest=honest)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_honest"], name)
