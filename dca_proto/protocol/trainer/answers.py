"""What clients answer to a trainer's announcement: declines, releases, and the sum of these (DESIGN §4.3, §5).

The trainer checks an answer before it changes anything. In rounds without Compute nodes, it keeps the first release of
each client in a table of its own, durably before it acknowledges it. The releases that it keeps when all clients have
answered, or at the close, are the result.
"""

from __future__ import annotations

from dca_proto.errors import PeerError, RoundAborted
from dca_proto.protocol import facts
from dca_proto.protocol.effects import Address, Channel, Effect, Forget, Persist, Report, Send
from dca_proto.protocol.release import Randomiser, check_release, randomiser_of, receipt_of
from dca_proto.protocol.trainer.failures import Failing
from dca_proto.protocol.trainer.round import RELEASES, Round
from dca_proto.protocol.wire.codec import body_of, encode, verify_signed
from dca_proto.protocol.wire.messages import Decline, Release, Signed

_WHY_MAX, _WHY_SHOWN = 16, 3  # different reasons of declines that are kept, and that a failure's words show


class Answering(Failing):
    """Takes declines and releases, and makes the result of releases."""

    def _take_decline(self, sender: bytes, frame: Signed, body: Decline, current: Round, now_ms: int) -> list[Effect]:
        """Take a client's decline; ignore a repeated one. Raises `PeerError`."""
        current.step("decline")
        _check_invited(sender, current)
        client = self._federation.check_certificate(body.certificate, now_ms)
        verify_signed(frame, body.certificate.client_key, self._federation.id)
        if sender != client or body.announcement_hash != current.opened.hash:
            raise PeerError("sender", found=sender.hex(), expected=f"{client.hex()}, about this announcement")
        if client in current.declined:
            return []
        current.declined.add(client)
        current.answered.add(client)
        words = f"{body.reason}: found {body.found}; accepts {body.expected}"
        if words in current.why or len(current.why) < _WHY_MAX:
            current.why[words] += 1
        return [Report(facts.Declined(current.id, client, body.reason, body.found, body.expected))]

    def _take_release(self, sender: bytes, frame: Signed, body: Release, current: Round, now_ms: int) -> list[Effect]:
        """Keep a client's first release, and acknowledge it; acknowledge a repeated one again. Raises `PeerError`."""
        _check_invited(sender, current)
        if current.opened.computes:
            raise PeerError("kind", found="a release in a secure sum", expected="a contribution, to its holder")
        kept = current.releases.get(sender)
        acknowledged = Send(Address(Channel.CLIENT, sender), current.id, encode(receipt_of(body)))
        if kept is not None:
            if kept != frame:
                raise PeerError("known-release", found="another release", expected="the one that is kept")
            current.step("repeated release")
            return [acknowledged]
        is_late = current.takes("late release")
        current.step("late release" if is_late else "release")
        client = check_release(frame, body, current.opened, self._federation, self._randomiser(current), now_ms)
        if sender != client:
            raise PeerError("sender", found=sender.hex(), expected=client.hex())
        if is_late:  # else it would send it again until the end, and count it among its open rounds
            late = Send(Address(Channel.CLIENT, sender), current.id, encode(receipt_of(body, late=True)))
            return [*(() if current.takes("result") else self._on_late_release(current)), late]
        if len(current.releases) >= self._limits.clients_max:
            raise PeerError("releases", found=f"{len(current.releases)} releases", expected="fewer")
        current.releases[client] = frame
        current.answered.add(client)
        fact = facts.ReleaseKept(current.id, client, body.rows, len(current.releases))
        return [Persist(RELEASES, current.id + client, encode(frame)), acknowledged, Report(fact)]

    def _released(self, current: Round) -> facts.RoundCompleted:
        """The releases and their sum; the same for the same releases, however often it is asked for.

        A data node without rows has said nothing, and is left out.

        Raises:
            RoundAborted: nobody has released anything.
        """
        randomiser = self._randomiser(current)
        members = [one for one in sorted(current.releases.items()) if body_of(one[1], Release).rows]
        if not members:
            raise RoundAborted(_nothing(current, randomiser.who))
        current.contributors = tuple(client for client, _ in members)
        return facts.RoundCompleted(current.id, randomiser.result(current.opened, members))

    def _randomiser(self, current: Round) -> Randomiser:
        """How its clients release."""
        return randomiser_of(current.opened.validated(self._mechanism, self._limits), self._mechanism)


def forgotten_releases(current: Round) -> list[Effect]:
    """What is stored of the round's releases, deleted."""
    return [Forget(RELEASES, current.id + client) for client in sorted(current.releases)]


def _check_invited(sender: bytes, current: Round) -> None:
    """Check that a client is invited, in a round with invitations. Raises `PeerError`."""
    if current.invited and sender not in current.invited:
        raise PeerError("invited", found=sender.hex(), expected="one of the clients that were invited")


def _nothing(current: Round, who: str) -> str:
    if current.releases:
        return f"none of the {len(current.releases)} {who}s that released has a row"
    why = "; ".join(words for words, _ in current.why.most_common(_WHY_SHOWN))
    return f"no {who} released anything; {len(current.declined)} declined{f' ({why})' * bool(why)}"
