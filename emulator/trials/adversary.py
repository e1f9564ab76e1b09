"""What an adversary of a trial is, and what it may spoil (DESIGN §10). What it does not name must hold.

    value     the result may be wrong; it is not less private
    round     a round may end without a result
    consent   clients may decline, until they start anew

Privacy always holds.
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
        does: as text. role: whom it replaces. actor: what runs in its place; its `amount` is set.
        spoils: what it may spoil. amount_max: the largest size, where it has one. default: where the scenario says 0.
        is_stranger: whether it comes beside the population, and was never enrolled.
    """

    does: str
    role: str
    actor: Callable[..., Actor]
    spoils: frozenset[str] = frozenset()
    amount_max: int = 0
    default: int = 0
    is_stranger: bool = False

    def configured(self, amount: int, **known: object) -> type[Any]:
        """The class of an adversary of that size, and of what else it knows."""
        base: Any = self.actor
        return type(base.__name__, (base,), {"amount": amount or self.default, **known})


class Adversaries(dict[str, Hostile]):
    """Kinds of adversaries by name, in the order in which they are defined."""

    def kind(
        self, name: str, does: str, spoils: str = "", amount: tuple[int, int] = (0, 0), **more: Any
    ) -> Callable[[Class], Class]:
        """Decorates the class of one more: what it may spoil, as text, and its default and largest amount."""

        def decorate(actor: Class) -> Class:
            self[name] = Hostile(does=does, role=actor.role, actor=actor, spoils=frozenset(spoils.split()),  # type: ignore[attr-defined]
                                 default=amount[0], amount_max=amount[1], **more)  # fmt: skip
            return actor

        return decorate


class Replaced:
    """Another object, such as one of the product's, with some attributes replaced."""

    def __init__(self, honest: object, **own: object) -> None:
        vars(self).update(own, _honest=honest)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_honest"], name)
