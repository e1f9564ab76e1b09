"""Records the noise that honest clients draw with the production mechanisms, and the keys that it is drawn from.

It composes the first contribution to each announcement twice more to see what the key depends on. The key must change
with the fresh randomness alone, and with the client's secret alone.
"""

from __future__ import annotations

import functools
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dca_proto.crypto.sealing import Identity
from dca_proto.privacy.local import LocalMechanism
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.answer import Composer
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.messages import Body, Signed
from emulator.trials.adversary import Replaced


class Recording(Replaced):
    """A proxy of the production mechanism of sums and node releases; it also records the mechanisms of reports.

    Attributes:
        key: of the last draw. drawn: its noise or report; None after the checkers have seen it.
        variance: of the last noise. key_ignores: the inputs that the last key wrongly does not depend on, as text.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        super().__init__(mechanism)
        self._mechanism = mechanism
        self._probed: set[bytes] = set()  # hashes of announcements for which a key was tested
        self.key = b""
        self.drawn: NDArray[Any] | None = None
        self.variance = 0
        self.key_ignores: tuple[str, ...] = ()

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        """Draw as the production mechanism does, and record the noise."""
        noise = self._mechanism.sample(variance, dimension, key)
        self.key, self.drawn, self.variance = key, noise, variance
        return noise

    def watch(self, client: Client) -> None:
        """Record the draws of a client that was just built, unless it is hostile."""
        if isinstance(client._composer, Replaced):
            return
        composer = msgspec.structs.replace(client._composer, mechanism=self)
        client._mechanism = self
        client._composer = Replaced(composer, compose=functools.partial(self._compose, composer))  # type: ignore[assignment]

    def _report(self, mechanism: LocalMechanism, values: ArrayLike, key: bytes) -> NDArray[Any]:
        self.key, self.drawn = key, mechanism.randomise(values, key)
        return self.drawn

    def _compose(
        self, composer: Composer, opened: OpenedAnnouncement, validated: ValidatedRound, charge: int
    ) -> tuple[ClientMessage, list[str]]:
        """Compose as the composer does; for the first contribution to a round, test what the key depends on.

        In a verified sum, public coins make the noise, and no draw is recorded.
        """
        if validated.statement is not None:
            return composer.compose(opened, validated, charge)
        if validated.report is not None:
            kept = functools.partial(self._report, validated.report)
            validated = msgspec.structs.replace(validated, report=Replaced(validated.report, randomise=kept))
        given: list[bytes] = []
        signed: list[Signed] = []

        def random(size: int) -> bytes:
            given.append(composer.random(size))
            return given[-1]

        def sign(body: Body) -> Signed:
            signed.append(composer.sign(body))
            return signed[-1]

        outbound = msgspec.structs.replace(composer, random=random, sign=sign).compose(opened, validated, charge)
        self.key_ignores = ()
        if opened.hash not in self._probed:
            self._probed.add(opened.hash)
            key, drawn, variance = self.key, self.drawn, self.variance
            again, seed = iter(given), composer.identity.seed
            other = Identity(blake2b(seed, digest_size=len(seed)).digest())
            others: dict[str, dict[str, Any]] = {
                "fresh randomness": {"random": lambda size: blake2b(b"other").digest()[:size].ljust(size, b"\1")},
                "the client's secret": {
                    "random": lambda size: next(again),
                    "identity": Replaced(composer.identity, hedged=other.hedged),
                },
            }
            ignored = []
            for source, changes in others.items():
                changed = msgspec.structs.replace(composer, sign=lambda body: signed[-1], **changes)
                changed.compose(opened, validated, charge)
                ignored += [source] if self.key == key else []
            self.key_ignores = tuple(ignored)
            self.key, self.drawn, self.variance = key, drawn, variance
        return outbound
