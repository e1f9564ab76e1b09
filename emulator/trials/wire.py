"""What messages say to those who look on: the kind of body in a payload."""

from __future__ import annotations

from dca_proto.errors import PeerError
from dca_proto.protocol.wire.codec import decode_body, decode_frame
from dca_proto.protocol.wire.messages import Body, Frame, Signed


def body_of(payload: bytes) -> Body | Frame | None:
    """The body of a signed message, or the frame itself; None where it cannot be read."""
    try:
        frame = decode_frame(payload)
        return decode_body(frame.body) if isinstance(frame, Signed) else frame
    except PeerError:
        return None
