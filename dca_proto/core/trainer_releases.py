"""A local round at the trainer: it keeps what each data node releases, and adds it up (DESIGN §4.8).

The first release of each data node is kept, durably before it is acknowledged, in a table of its own. Nothing is
asked of anybody after that: what is kept when all have answered, or at the close, is the result.
"""

from __future__ import annotations

from dca_proto.core import facts
from dca_proto.core.codec import decode_body, encode
from dca_proto.core.combine import Hashes, release_of, together
from dca_proto.core.effects import Address, Channel, Effect, Forget, Persist, Report, Send
from dca_proto.core.errors import PeerError, RoundAborted
from dca_proto.core.federation import Federation
from dca_proto.core.fixedpoint import ring_from_bytes
from dca_proto.core.machine import step
from dca_proto.core.messages import Release, Signed
from dca_proto.core.params import Limits
from dca_proto.core.plan import Plan
from dca_proto.core.release import check_release, receipt_of
from dca_proto.core.round import list_hash, roster_hash
from dca_proto.core.trainer_answers import check_invited
from dca_proto.core.trainer_round import RELEASES, TABLE, Round


class Releases:
    """Takes releases, and makes the result of them.

    Args:
        federation: whose enrolled clients are believed.
    """

    def __init__(self, federation: Federation, limits: Limits) -> None:
        self._federation = federation
        self._limits = limits

    def take(
        self, sender: bytes, frame: Signed, body: Release, current: Round, dimension: int, now_ms: int
    ) -> list[Effect]:
        """Keep a data node's first release, and acknowledge it; again, where it comes again. Raises `PeerError`.

        Args:
            dimension: d of the round.
        """
        check_invited(sender, current)
        kept = current.releases.get(sender)
        acknowledged = Send(Address(Channel.CLIENT, sender), current.id, encode(receipt_of(body)))
        if kept is not None:
            if kept != frame:
                raise PeerError("known-release", found="another release", expected="the one that is kept")
            step(TABLE, current.stored.phase, "repeated release")
            return [acknowledged]
        client = check_release(frame, body, current.opened, self._federation, dimension, now_ms)
        if sender != client:
            raise PeerError("sender", found=sender.hex(), expected=client.hex())
        step(TABLE, current.stored.phase, "release")
        if len(current.releases) >= self._limits.clients_max:
            raise PeerError("releases", found=f"{len(current.releases)} releases", expected="fewer")
        current.releases[client] = frame
        current.answered.add(client)
        fact = facts.ReleaseKept(current.id, client, body.rows, len(current.releases))
        return [Persist(RELEASES, current.id + client, encode(frame)), acknowledged, Report(fact)]

    def result(self, current: Round, plan: Plan, *, private: bool) -> facts.RoundCompleted:
        """The releases and their sum; the same for the same releases, however often it is asked for.

        A data node without rows has said nothing, and is left out.

        Args:
            plan: of the round. private: whether an epsilon may be claimed for the mechanism.

        Raises:
            RoundAborted: nobody has released anything.
        """
        members = [(client, current.releases[client]) for client in data_nodes(current)]
        if not members:
            raise RoundAborted(_nothing(current))
        nodes = []
        for client, frame in members:
            body = _opened(frame)
            noisy = ring_from_bytes(body.vector, plan.dimension)
            hashes = _hashes(current, [(client, frame)])
            nodes.append(release_of(current.opened.body, plan, noisy, body.rows, hashes, private=private))
        return facts.RoundCompleted(current.id, together(nodes, _hashes(current, members)))

    @staticmethod
    def forget(current: Round) -> list[Effect]:
        """What is stored of the round's releases."""
        return [Forget(RELEASES, current.id + client) for client in sorted(current.releases)]


def data_nodes(current: Round) -> tuple[bytes, ...]:
    """The ids of the clients whose releases make the result, sorted; none of a summed round."""
    return tuple(client for client, frame in sorted(current.releases.items()) if _opened(frame).rows)


def _opened(frame: Signed) -> Release:
    """A release that was checked when it came."""
    body = decode_body(frame.body)
    assert isinstance(body, Release), "it was kept as one"
    return body


def _hashes(current: Round, members: list[tuple[bytes, Signed]]) -> Hashes:
    """What identifies some releases: the announcement, who they are of, and their signed bytes."""
    announced = current.opened.hash
    return Hashes(announced, list_hash(announced, b"".join(client for client, _ in members)), roster_hash(members))


def _nothing(current: Round) -> str:
    if current.releases:
        return f"none of the {len(current.releases)} data nodes that released has a row"
    return f"no data node released anything; {len(current.declined)} declined"
