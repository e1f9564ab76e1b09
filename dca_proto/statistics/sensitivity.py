"""How far one client's data, or one row, can move the sum: a typed value that carries its neighbouring relation.

All figures are integers in grid units, and upper bounds. Replacing a client moves a sum by up to twice what removing
one does, so a calibration under the wrong relation adds too little noise. A relation is therefore never assumed:
`require` raises an error that names both relations if they differ, `jointly_with` refuses a mixture, and
`as_replacement` converts one to the other by the triangle inequality.
"""

from __future__ import annotations

import math

import msgspec

from dca_proto.errors import UsageError

REPLACE_ONE_CLIENT = "replace-one-client"
ADD_OR_REMOVE_ONE_CLIENT = "add-or-remove-one-client"
REPLACE_ONE_ROW = "replace-one-row"
_RELATIONS = (REPLACE_ONE_CLIENT, ADD_OR_REMOVE_ONE_CLIENT, REPLACE_ONE_ROW)


class Sensitivity(msgspec.Struct, frozen=True):
    """How far a neighbour's data can move the sum; lengths times 2^-f are in the statistic's units.

    Attributes:
        l1: upper bound of the L1 distance, in grid units.
        l2_squared: upper bound of the squared L2 distance, in squared grid units.
        bound: largest absolute value of one coordinate of one client's contribution, in grid units.
        relation: the neighbouring relation: `REPLACE_ONE_CLIENT`, `ADD_OR_REMOVE_ONE_CLIENT`, or `REPLACE_ONE_ROW` for
            a data node, each of whose rows belongs to a different person.

    Raises:
        UsageError: a figure is not an integer of at least 1, or the relation is unknown.
    """

    l1: int
    l2_squared: int
    bound: int
    relation: str = REPLACE_ONE_CLIENT

    def __post_init__(self) -> None:
        for name in ("l1", "l2_squared", "bound"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"a sensitivity's {name} is {value}; state a whole number of grid units, at least 1")
        if self.relation not in _RELATIONS:
            raise UsageError(f"neighbouring relation {self.relation[:64]!r} is unknown; use {' or '.join(_RELATIONS)}")

    @property
    def l2(self) -> float:
        """The L2 distance in grid units, rounded up: above the root by at most a relative 2^-49."""
        return math.sqrt(self.l2_squared) * (1 + 2.0**-50)

    def require(self, relation: str) -> None:
        """Raise `UsageError` if the relation is a different one."""
        if self.relation != relation:
            convertible = (self.relation, relation) == (ADD_OR_REMOVE_ONE_CLIENT, REPLACE_ONE_CLIENT)
            remedy = " with as_replacement()" if convertible else ""
            raise UsageError(
                f"a sensitivity under {self.relation!r} was given where one under {relation!r} is needed; "
                f"state it under {relation!r}{remedy}"
            )

    def jointly_with(self, *others: Sensitivity) -> Sensitivity:
        """Return the sensitivity of several statistics of one client, released jointly: vectors end to end.

        Raises `UsageError` if the relations differ.
        """
        for other in others:
            other.require(self.relation)
        parts = (self, *others)
        return Sensitivity(
            l1=sum(part.l1 for part in parts),
            l2_squared=sum(part.l2_squared for part in parts),
            bound=max(part.bound for part in parts),
            relation=self.relation,
        )

    def as_replacement(self) -> Sensitivity:
        """Convert to `REPLACE_ONE_CLIENT`: replacing a client removes one and adds one, so distances at most double.

        Raises `UsageError` for the sensitivity to one row, since a client may have many rows.
        """
        if self.relation == REPLACE_ONE_CLIENT:
            return self
        self.require(ADD_OR_REMOVE_ONE_CLIENT)
        return Sensitivity(l1=2 * self.l1, l2_squared=4 * self.l2_squared, bound=self.bound)
