"""Who has really signed a message: many that reach an actor are forged, or come under another's name."""

from __future__ import annotations

from dca_proto.crypto.sealing import actor_id
from dca_proto.errors import PeerError
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.wire.codec import decode_frame, verify_signed
from dca_proto.protocol.wire.messages import Signed
from emulator.trials.world import TrialWorld


class Genuine:
    """Verifies messages of the Compute nodes and trainers of a trial, each once."""

    def __init__(self, world: TrialWorld) -> None:
        self._world = world
        self._known: dict[tuple[bytes, bytes, Channel], bool] = {}  # by payload, signer and role

    def __call__(self, payload: bytes, signer: bytes, role: Channel = Channel.COMPUTE) -> bool:
        """Return True if a signed message was signed by that Compute node (or trainer) of the federation."""
        key = payload, signer, role
        if key not in self._known:
            self._known[key] = self._verify(*key)
        return self._known[key]

    def _verify(self, payload: bytes, signer: bytes, role: Channel) -> bool:
        federation, frame = self._world.actors.federation, decode_frame(payload)
        members = federation.computes if role is Channel.COMPUTE else federation.trainers
        public = next((member.key for member in members if actor_id(member.key) == signer), None)
        if public is None or not isinstance(frame, Signed):
            return False
        try:
            verify_signed(frame, public, federation.id)
        except PeerError:
            return False
        return True
