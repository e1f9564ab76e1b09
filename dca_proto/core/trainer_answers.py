"""What clients answer to an announcement, as the trainer takes it: joins and declines (DESIGN §4.2, §4.3).

Both are checked before anything changes. Of a round with invitations, only invited clients are heard.
"""

from __future__ import annotations

from dca_proto.core import facts
from dca_proto.core.codec import verify_signed
from dca_proto.core.effects import Report
from dca_proto.core.errors import PeerError
from dca_proto.core.federation import Federation
from dca_proto.core.messages import Decline, Join, Signed
from dca_proto.core.params import Limits
from dca_proto.core.roster import check_join
from dca_proto.core.trainer_round import JOINING, Round


class Answers:
    """Takes clients' answers.

    Args:
        federation: whose enrolled clients are believed.
    """

    def __init__(self, federation: Federation, limits: Limits) -> None:
        self._federation = federation
        self._limits = limits

    def join(self, sender: bytes, frame: Signed, body: Join, current: Round, now_ms: int) -> Report:
        """A client's first join. Raises `PeerError`."""
        check_invited(sender, current)
        client = check_join(frame, body, current.opened, self._federation, now_ms)
        if sender != client:
            raise PeerError("sender", found=sender.hex(), expected=client.hex())
        if current.stored.phase != JOINING:
            raise PeerError("late", found="a join", expected="one before the roster was fixed")
        if len(current.joins) >= self._limits.clients_max:
            raise PeerError("joins", found=f"{len(current.joins)} joins", expected="fewer")
        current.joins[client] = frame
        current.answered.add(client)
        return Report(facts.Joined(current.id, client, len(current.joins)))

    def decline(self, sender: bytes, frame: Signed, body: Decline, current: Round, now_ms: int) -> Report | None:
        """A client's decline; None where it is known. Raises `PeerError`."""
        check_invited(sender, current)
        client = self._federation.check_certificate(body.certificate, now_ms)
        verify_signed(frame, body.certificate.client_key, self._federation.hash)
        if sender != client or body.announcement_hash != current.opened.hash:
            raise PeerError("sender", found=sender.hex(), expected=f"{client.hex()}, about this announcement")
        if client in current.declined:
            return None
        current.declined.add(client)
        current.answered.add(client)
        return Report(facts.Declined(current.id, client, body.reason, body.found, body.expected))


def check_invited(sender: bytes, current: Round) -> None:
    """Of a round with invitations, only invited clients are heard. Raises `PeerError`."""
    if current.invited and sender not in current.invited:
        raise PeerError("invited", found=sender.hex(), expected="one of the clients that were invited")
