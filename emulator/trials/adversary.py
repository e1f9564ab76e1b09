"""Kinds of adversaries, and what each may spoil (DESIGN §10). Every property that a kind does not name must hold.

    value     the result may be wrong, but is as private as before
    round     a round may end without a result
    consent   clients may decline rounds until they restart

No kind may spoil privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dca_proto.protocol.actor import Actor

Class = TypeVar("Class", bound=type)


class Hostile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of adversary.

    Attributes:
        does: description of its behaviour. role: of the actor that it replaces. actor: class that runs instead.
        spoils: what it may spoil. amount_max: the largest `amount`; 0 if the kind has no size.
        default: `amount` if the scenario gives 0. is_stranger: it joins the population without having been enrolled.
    """

    does: str
    role: str
    actor: Callable[..., Actor]
    spoils: frozenset[str] = frozenset()
    amount_max: int = 0
    default: int = 0
    is_stranger: bool = False

    def configured(self, amount: int, **known: object) -> type[Any]:
        """Return the adversary's class with `amount` and the attributes in `known` set."""
        base: Any = self.actor
        return type(base.__name__, (base,), {"amount": amount or self.default, **known})


class Adversaries(dict[str, Hostile]):
    """Kinds of adversaries by name, in order of definition."""

    def kind(
        self, name: str, does: str, spoils: str = "", amount: tuple[int, int] = (0, 0), **more: Any
    ) -> Callable[[Class], Class]:
        """Decorate a class to add it as a kind. `spoils`: words. `amount`: default and largest amount."""

        def decorate(actor: Class) -> Class:
            self[name] = Hostile(does=does, role=actor.role, actor=actor, spoils=frozenset(spoils.split()),  # type: ignore[attr-defined]
                                 default=amount[0], amount_max=amount[1], **more)  # fmt: skip
            return actor

        return decorate


class Replaced:
    """A proxy of an object of the product, with some of its attributes replaced."""

    def __init__(self, honest: object, **own: object) -> None:
        vars(self).update(own, _honest=honest)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_honest"], name)
