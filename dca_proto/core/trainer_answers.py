"""What clients answer to an announcement, as the trainer takes it: declines (DESIGN §4.3).

A decline is checked before anything changes. Of a round with invitations, only invited clients are heard.
"""

from __future__ import annotations

from dca_proto.core import facts
from dca_proto.core.codec import verify_signed
from dca_proto.core.effects import Report
from dca_proto.core.errors import PeerError
from dca_proto.core.federation import Federation
from dca_proto.core.messages import Decline, Signed
from dca_proto.core.trainer_round import Round

_WHY_MAX = 16  # different reasons of declines that are kept, for the failure's words


def take_decline(
    federation: Federation, sender: bytes, frame: Signed, body: Decline, current: Round, now_ms: int
) -> Report | None:
    """A client's decline; None where it is known. Raises `PeerError`."""
    check_invited(sender, current)
    client = federation.check_certificate(body.certificate, now_ms)
    verify_signed(frame, body.certificate.client_key, federation.id)
    if sender != client or body.announcement_hash != current.opened.hash:
        raise PeerError("sender", found=sender.hex(), expected=f"{client.hex()}, about this announcement")
    if client in current.declined:
        return None
    current.declined.add(client)
    current.answered.add(client)
    words = f"{body.reason}: found {body.found}; accepts {body.expected}"
    if words in current.why or len(current.why) < _WHY_MAX:
        current.why[words] += 1
    return Report(facts.Declined(current.id, client, body.reason, body.found, body.expected))


def check_invited(sender: bytes, current: Round) -> None:
    """Of a round with invitations, only invited clients are heard. Raises `PeerError`."""
    if current.invited and sender not in current.invited:
        raise PeerError("invited", found=sender.hex(), expected="one of the clients that were invited")
