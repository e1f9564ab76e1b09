"""What the tests see that nobody on the wire does: the noise that was drawn, and what a share hides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.client import ClientActor
from dca_proto.core.codec import decode_frame
from dca_proto.core.effects import Send
from dca_proto.core.errors import PeerError
from dca_proto.core.mechanism import DistributedDiscreteGaussian
from dca_proto.core.messages import Share
from dca_proto.core.upload import open_share

PLACES = 8
"""No roster here is longer."""


class Recording(DistributedDiscreteGaussian):
    """The production mechanism, which remembers every key and vector that it drew."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.noise: list[tuple[int, ...]] = []

    def sample(self, variance: int, dimension: int, key: bytes) -> NDArray[np.int64]:
        drawn = super().sample(variance, dimension, key)
        self.keys.append(key)
        self.noise.append(tuple(drawn.tolist()))
        return drawn


def opened_share(client: ClientActor, send: Send) -> tuple[int, bytes]:
    """The charge's number and the body of a share, opened by the keys of the client that has just made it."""
    current, frame = client._rounds[send.round_id], decode_frame(send.payload)
    assert isinstance(frame, Share)
    public = current.opened.epochs[current.opened.computes.index(send.to.id)].public
    keys = {"pair_key": client._keys.agree(current.stored.epoch, public), "session_hash": current.stored.session}
    for position in range(PLACES):
        try:
            return open_share(frame, **keys, client=client.id, position=position, compute=send.to.id)[1:]
        except PeerError:
            continue  # another client's place on the roster
    raise AssertionError("a share that nobody can open")
