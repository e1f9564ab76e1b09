"""Access for tests to secrets that nobody on the wire has: drawn noise, and the content of a contribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.announcement import OpenedAnnouncement
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.contribution import HeldContribution, open_contribution
from dca_proto.protocol.effects import Send
from dca_proto.protocol.pairing import pair_key
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Contribution


class Recording(DistributedDiscreteGaussian):
    """The production mechanism, with a record of every key and drawn vector."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.noise: list[tuple[int, ...]] = []

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        drawn = super().sample(variance, dimension, key)
        self.keys.append(key)
        self.noise.append(tuple(drawn.tolist()))
        return drawn


def keys_of(client: Client, opened: OpenedAnnouncement) -> list[list[bytes]]:
    """Return a client's pair keys with each node of a round, for each epoch that it has a key of, newest first."""
    ring, federation = client._session._keys, client._session._federation
    return [
        [
            pair_key(ring.key(epoch), one.public, federation.id, (client.id, epoch), (one.compute, one.epoch))
            for one in opened.epochs
        ]
        for epoch in sorted(ring.epochs, reverse=True)
    ]


def opened_contribution(client: Client, send: Send) -> HeldContribution:
    """Open a contribution by the keys of its client; return the hidden value."""
    opened, frame = client._rounds[send.round_id].opened, decode_frame(send.payload)
    assert isinstance(frame, Contribution)
    validated = opened.validated(client._mechanism, client._limits)
    for keys in keys_of(client, opened):
        try:
            return open_contribution(
                frame,
                pair_key=keys[opened.computes.index(send.to.id)],
                announcement_hash=opened.hash,
                client=client.id,
                holder=send.to.id,
                nodes=len(keys),
                vector_bytes=validated.vector_bytes,
            )[0]
        except PeerError:
            continue  # of an older epoch
    raise AssertionError("a contribution that nobody can open")
