"""What clients drew, and from which key: the production mechanisms, watched while honest clients use them.

A contribution is made up to three times: once for its holder, and twice to see what its key depends on. With other
fresh randomness and all else the same the key must be another one; so it must with another secret of the client.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.crypto.sealing import Identity
from dca_proto.privacy.mechanism import LocalMechanism, Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.compose import Composer
from dca_proto.protocol.contribution import Outbound
from dca_proto.protocol.validated import ValidatedRound
from dca_proto.protocol.wire.messages import Body, Signed


class Recording:
    """The production mechanism of sums and data nodes, and around those of reports.

    Attributes:
        key: from which something was drawn last. drawn: what that was, noise or a report; None once it was looked at.
        variance: of noise that was drawn last. without: on what, in words, the last key does not depend.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._probed: set[bytes] = set()  # announcements of which one contribution's key was looked at
        self.key = b""
        self.drawn: NDArray[Any] | None = None
        self.variance = 0
        self.without: tuple[str, ...] = ()

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

    def watch(self, client: Client) -> None:
        """Have a client, as it was just made, draw by it."""
        composer = msgspec.structs.replace(client._composer, mechanism=self)
        client._mechanism, client._composer = self, _Composing(composer, self)  # type: ignore[assignment]

    def compose(
        self, composer: Composer, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[Outbound, list[str]]:
        """As the composer does; of the first contribution to a round, look at what its key depends on."""
        tape, signed = _Tape(composer.random), []

        def sign(body: Body) -> Signed:
            signed.append(composer.sign(body))
            return signed[-1]

        made = msgspec.structs.replace(composer, random=tape, sign=sign).compose(opened, validated, charge)
        self.without = ()
        if opened.hash not in self._probed:
            self._probed.add(opened.hash)
            key, drawn, variance = self.key, self.drawn, self.variance
            others: dict[str, dict[str, Any]] = {
                "fresh randomness": {"random": _Tape(tape.altered)},
                "the client's secret": {"random": _Tape(tape.replayed()), "identity": _OtherSecret(composer.identity)},
            }
            found = []
            for what, changes in others.items():
                other = msgspec.structs.replace(composer, sign=lambda body: signed[-1], **changes)
                other.compose(opened, validated, charge)
                found += [what] if self.key == key else []
            self.without = tuple(found)
            self.key, self.drawn, self.variance = key, drawn, variance
        return made


class _Tape:
    """A source of random bytes that remembers what it gave."""

    def __init__(self, source: Callable[[int], bytes]) -> None:
        self._source = source
        self._given: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        given = self._source(size)
        self._given.append(given)
        return given

    def replayed(self) -> Callable[[int], bytes]:
        """The same bytes once more."""
        given = iter(self._given)
        return lambda size: next(given)

    @staticmethod
    def altered(size: int) -> bytes:
        """Other bytes, the same each time."""
        return blake2b(b"other").digest()[:size].ljust(size, b"\1")


class _OtherSecret:
    """A client of the same id and signature, whose secret for noise is another one."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._other = Identity(blake2b(identity.seed, digest_size=len(identity.seed)).digest())
        self.hedged = self._other.hedged

    def __getattr__(self, name: str) -> Any:
        return getattr(self._identity, name)


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
        return self._recording.compose(self._composer, opened, validated, charge)


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
