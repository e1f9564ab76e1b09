"""What a client of a verified sum proves that is not true (DESIGN §12): the statement that it proves is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.field import PRIME
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.validation import ValidatedRound
from emulator.trials.adversary import Replaced


def _a_bit_is(value: int) -> Callable[[Any], Any]:
    """Return a change of a statement that proves a first bit with this value."""

    def change(statement: Any) -> Any:
        def encode(value_of: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
            bits: NDArray[np.int64] = statement.encode(value_of, noise)
            return np.concatenate([[value], bits[1:]])

        return Replaced(statement, encode=encode)

    return change


def _all_bits_are_one(statement: Any) -> Any:
    """Prove the largest of all numbers: a vote in every bin, the corner around a ball, and noise of its choice."""
    return Replaced(statement, encode=lambda value, noise: np.ones(statement.block.bits, dtype=np.int64))


def _sharing(change: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]) -> Callable[[Any], Any]:
    """Return a change of a statement after whose proof the vector that the client sends is changed."""

    def changed(statement: Any) -> Any:
        field = Replaced(statement.field, of=lambda integers: change(statement.field.of(integers)))  # of `split`
        return Replaced(statement, field=field)

    return changed


FALSE_PROOFS: tuple[Callable[[Any], Any], ...] = (
    _a_bit_is(2),
    _a_bit_is(-1),
    _all_bits_are_one,
    _sharing(lambda words: np.append(words[:-1], (words[-1] + np.uint64(1)) % np.uint64(PRIME))),  # another quotient
    _sharing(lambda words: np.append(words[:-1], np.uint64(PRIME))),  # no element
)


def compose(client: Any, honest: Any, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> Any:
    """In a verified sum, prove what is not true, another thing in each round."""
    if validated.statement is not None:
        change = FALSE_PROOFS[opened.body.round_id[2] % len(FALSE_PROOFS)]
        validated = msgspec.structs.replace(validated, statement=change(validated.statement))
    return client._honest.compose(opened, validated, charge)
