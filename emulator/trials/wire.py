"""What messages say to those who look on: the kind of body in a payload, and who is on a roster."""

from __future__ import annotations

from dca_proto.core.codec import decode_body, decode_frame
from dca_proto.core.errors import PeerError
from dca_proto.core.messages import Body, Join, Receipt, Roster, Sealed, Share, Signed
from dca_proto.core.sealing import actor_id


def body_of(payload: bytes) -> Body | Share | Sealed | Receipt | None:
    """The body of a signed message, or the frame itself; None where it cannot be read."""
    try:
        frame = decode_frame(payload)
        return decode_body(frame.body) if isinstance(frame, Signed) else frame
    except PeerError:
        return None


def members_of(roster: Roster) -> list[tuple[bytes, Signed]]:
    """The clients of a roster that somebody honest has made or checked, each with its join, in their order."""
    return [(_client_of(join), join) for join in roster.joins]


def _client_of(frame: Signed) -> bytes:
    join = decode_body(frame.body)
    assert isinstance(join, Join), "whoever is honest has checked it"
    return actor_id(join.certificate.client_key)
