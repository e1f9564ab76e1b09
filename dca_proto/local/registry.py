"""The local mechanisms by name, as a report's description would carry it. Another one is one more entry."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from numpy.typing import ArrayLike, NDArray

from dca_proto.core.errors import UsageError
from dca_proto.local.estimate import LocalEstimate
from dca_proto.local.gaussian import AnalyticGaussian
from dca_proto.local.laplace import GridLaplace
from dca_proto.local.response import RandomisedResponse
from dca_proto.local.unary import UnaryEncoding


class LocalMechanism(Protocol):
    """What every local mechanism offers; its fields are its public parameters."""

    @property
    def name(self) -> str:
        """By which `resolve` finds it."""

    @property
    def epsilon(self) -> float:
        """ε of each single report."""

    @property
    def delta(self) -> float:
        """δ of each single report; 0 where the mechanism is purely ε-private."""

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[Any]:
        """One report for each row of `values`, from 32 fresh secret bytes for this call alone."""

    def estimate(self, reports: ArrayLike) -> LocalEstimate:
        """What the reports say together."""


_KINDS: dict[str, type[LocalMechanism]] = {
    kind.name: kind for kind in (AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding)
}


def registered() -> tuple[str, ...]:
    """The names that `resolve` knows."""
    return tuple(sorted(_KINDS))


def resolve(name: str, parameters: dict[str, Any]) -> LocalMechanism:
    """The mechanism of that name. Raises `UsageError` for an unknown name or wrong parameters."""
    if name not in _KINDS:
        raise UsageError(f"local mechanism {name[:64]!r} is unknown here; known: {', '.join(registered())}")
    try:
        return msgspec.convert(parameters, _KINDS[name], strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"parameters of local mechanism {name!r}: {error}") from None
