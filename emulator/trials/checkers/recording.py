"""What clients drew, and from which key: the production mechanisms, watched while honest clients use them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.core.announcement import OpenedAnnouncement
from dca_proto.core.client import ClientActor
from dca_proto.core.compose import Composer
from dca_proto.core.contribution import Outbound
from dca_proto.core.validated import ValidatedRound
from dca_proto.privacy.mechanism import LocalMechanism, Mechanism


class Recording:
    """The production mechanism of sums and data nodes, and around those of reports.

    Attributes:
        key: from which something was drawn last. drawn: what that was, noise or a report; None once it was looked at.
        variance: of noise that was drawn last.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self.key = b""
        self.drawn: NDArray[Any] | None = None
        self.variance = 0

    @property
    def name(self) -> str:
        return self._mechanism.name

    @property
    def private(self) -> bool:
        return self._mechanism.private

    def share_variance(self, sensitivity: float, mu: float, honest: int, dimension: int) -> int:
        """As the production mechanism says."""
        return self._mechanism.share_variance(sensitivity, mu, honest, dimension)

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """As the production mechanism draws, and kept."""
        noise = self._mechanism.sample(variance, dimension, key)
        self.key, self.drawn, self.variance = key, noise, variance
        return noise

    def watch(self, client: ClientActor) -> None:
        """Have a client, as it was just made, draw by it."""
        composer = msgspec.structs.replace(client._composer, mechanism=self)
        client._mechanism, client._composer = self, _Composing(composer, self)  # type: ignore[assignment]


class _Composing:
    """A client's composer, with what a local mechanism draws kept."""

    def __init__(self, composer: Composer, recording: Recording) -> None:
        self._composer = composer
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._composer, name)

    def compose(self, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int) -> tuple[Outbound, list[str]]:
        if validated.report is not None:
            validated = msgspec.structs.replace(validated, report=_Reports(validated.report, self._recording))
        return self._composer.compose(opened, validated, charge)


class _Reports:
    """A round's local mechanism, with what it draws kept."""

    def __init__(self, mechanism: LocalMechanism, recording: Recording) -> None:
        self._mechanism = mechanism
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def randomise(self, values: ArrayLike, key: bytes) -> NDArray[Any]:
        reports = self._mechanism.randomise(values, key)
        self._recording.key, self._recording.drawn = key, reports
        return reports
