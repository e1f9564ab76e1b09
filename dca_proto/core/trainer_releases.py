"""A round without Compute nodes at the trainer: it keeps what each client releases, and adds it up (DESIGN §5).

The first release of each of them is kept, durably before it is acknowledged, in a table of its own. Nothing is
asked of anybody after that: what is kept when all have answered, or at the close, is the result.
"""

from __future__ import annotations

from collections.abc import Callable

from dca_proto.core import facts
from dca_proto.core.codec import encode
from dca_proto.core.effects import Address, Channel, Effect, Forget, Persist, Report, Send
from dca_proto.core.errors import PeerError, RoundAborted
from dca_proto.core.federation import Federation
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import Release, Signed
from dca_proto.core.params import Limits
from dca_proto.core.release import Randomiser, check_release, late_word_of, opened_release, randomiser_of, receipt_of
from dca_proto.core.trainer_answers import check_invited
from dca_proto.core.trainer_round import ENDED, RELEASES, RETURNED, Round

_WHY_SHOWN = 3  # reasons of declines in a failure's words


class Releases:
    """Takes releases, and makes the result of them.

    Args:
        federation: whose enrolled clients are believed.
        mechanism: of the noise of data nodes' releases.
        on_late: what a release does to a round whose charge had come back.
    """

    def __init__(
        self,
        federation: Federation,
        mechanism: Mechanism,
        limits: Limits,
        on_late: Callable[[Round], list[Effect]],
    ) -> None:
        self._on_late = on_late
        self.federation = federation
        self._mechanism = mechanism
        self._limits = limits

    def take(self, sender: bytes, frame: Signed, body: Release, current: Round, now_ms: int) -> list[Effect]:
        """Keep a client's first release, and acknowledge it; again, where it comes again. Raises `PeerError`."""
        check_invited(sender, current)
        if current.opened.computes:
            raise PeerError("kind", found="a release in a secure sum", expected="a contribution, to its holder")
        kept = current.releases.get(sender)
        acknowledged = Send(Address(Channel.CLIENT, sender), current.id, encode(receipt_of(body)))
        if kept is not None:
            if kept != frame:
                raise PeerError("known-release", found="another release", expected="the one that is kept")
            current.step("repeated release")
            return [acknowledged]
        is_late = current.phase in ENDED
        current.step("late release" if is_late else "release")
        randomiser = self._randomiser(current)
        client = check_release(frame, body, current.opened, self.federation, randomiser, now_ms)
        if sender != client:
            raise PeerError("sender", found=sender.hex(), expected=client.hex())
        if is_late:  # else it would send it again until the end, and count it among its open rounds
            told = Send(Address(Channel.CLIENT, sender), current.id, encode(late_word_of(body)))
            return [*(self._on_late(current) if current.phase == RETURNED else ()), told]
        if len(current.releases) >= self._limits.clients_max:
            raise PeerError("releases", found=f"{len(current.releases)} releases", expected="fewer")
        current.releases[client] = frame
        current.answered.add(client)
        fact = facts.ReleaseKept(current.id, client, body.rows, len(current.releases))
        return [Persist(RELEASES, current.id + client, encode(frame)), acknowledged, Report(fact)]

    def result(self, current: Round) -> facts.RoundCompleted:
        """The releases and their sum; the same for the same releases, however often it is asked for.

        A data node without rows has said nothing, and is left out.

        Raises:
            RoundAborted: nobody has released anything.
        """
        randomiser = self._randomiser(current)
        members = [(client, current.releases[client]) for client in members_of(current)]
        if not members:
            raise RoundAborted(_nothing(current, randomiser.who))
        current.contributors = members_of(current)
        return facts.RoundCompleted(current.id, randomiser.result(current.opened, members))

    def _randomiser(self, current: Round) -> Randomiser:
        """How its clients release."""
        return randomiser_of(current.validated(self._mechanism, self._limits), self._mechanism)

    @staticmethod
    def forget(current: Round) -> list[Effect]:
        """What is stored of the round's releases."""
        return [Forget(RELEASES, current.id + client) for client in sorted(current.releases)]


def members_of(current: Round) -> tuple[bytes, ...]:
    """The ids of the clients whose releases make the result, sorted; none of a secure sum."""
    return tuple(client for client, frame in sorted(current.releases.items()) if opened_release(frame).rows)


def _nothing(current: Round, who: str) -> str:
    if current.releases:
        return f"none of the {len(current.releases)} {who}s that released has a row"
    why = "; ".join(words for words, _ in current.why.most_common(_WHY_SHOWN))
    return f"no {who} released anything; {len(current.declined)} declined{f' ({why})' * bool(why)}"
