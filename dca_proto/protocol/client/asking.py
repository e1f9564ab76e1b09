"""A client that was restored from a backup: it declines until all Compute nodes have stated its charges (DESIGN §8.1).

`actor.Client` extends `Asking`. What the nodes state bounds what the client has forgotten: the largest statement
counts, so a node that lies can only delay the client, or make it count too much.
"""

from __future__ import annotations

from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import PeerError
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol import facts
from dca_proto.protocol.charges import NUMBER_MAX
from dca_proto.protocol.client.aborts import Returning
from dca_proto.protocol.client.answer import Consent
from dca_proto.protocol.effects import Address, Channel, Effect, Forget, Report, Send, SetTimer
from dca_proto.protocol.events import Timer
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.own_session import OwnSession
from dca_proto.protocol.policy import Refusal
from dca_proto.protocol.records import Records
from dca_proto.protocol.restore import RESTORED, mark_of, words
from dca_proto.protocol.verified import slack_of
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_frame, encode, verify_signed
from dca_proto.wording import listed, moment

_NODES_SHOWN = 3
ASK_NODES = "ask-nodes"
"""The timer of the next question."""


class Asking(Returning):
    """The part of a client that learns from the Compute nodes what its restored store has forgotten."""

    _consent: Consent
    _session: OwnSession

    def _restore_mark(self, records: Records) -> None:
        self._mark = mark_of(records)
        self._stated: dict[bytes, m.ChargesStated] = {}
        self._nonce = self._random(ID_BYTES) if self._mark is not None else b""
        self._asked = 0

    def _asks_nodes(self) -> Refusal | None:
        """Return why the client declines every round; None unless it was restored and does not know its charges."""
        if self._mark is None:
            return None
        missing, unusable = self._missing(), self._unusable()
        if unusable:
            found = f"{words(self._mark)}; {listed([self._why_unusable(node) for node in unusable], _NODES_SHOWN)}"
            minutes = self._timing.clocks_ms // 60_000
            expected = f"Compute nodes that stay, with stores that began {minutes} minutes before the backup or earlier"
            return Refusal("restored", found, f"{expected}. Its charges stay unknown: enrol it anew, with a new key")
        if not missing and (newest := self._behind()):
            found = f"{words(self._mark)}; it follows {self._federation.title}, and a Compute node has number {newest}"
            return Refusal("restored", found, "the newest federation file, whose Compute nodes it asks")
        found = f"{words(self._mark)}; {len(missing)} of {len(self._federation.computes)} Compute nodes are silent"
        found += f": {', '.join(map(self._federation.name_of, missing))}" if missing else ""
        return Refusal("restored", found, "the client's highest charge number from all of them")

    @property
    def lacks_charges(self) -> str:
        """Why the client does not know what it has spent, for its owner; empty if it does."""
        refusal = self._asks_nodes()
        return "" if refusal is None else f"what is left is unknown: {refusal.found}; expected {refusal.expected}"

    def _missing(self) -> list[bytes]:
        """Return the Compute nodes that have not answered."""
        return [member.id for member in self._federation.computes if member.id not in self._stated]

    def _unusable(self) -> list[bytes]:
        """Return the nodes of the backup's time that cannot know all charges since: they have left, or a new store."""
        assert self._mark is not None, "the client was restored"
        latest_ms = self._mark.backup_ms - self._timing.clocks_ms
        known = self._federation.computes_among(self._mark.computes)
        left = [node for node in self._mark.computes if node not in known]
        stated = self._stated.items()
        return left + [node for node, one in stated if node in self._mark.computes and one.since_ms > latest_ms]

    def _why_unusable(self, node: bytes) -> str:
        name, stated = self._federation.name_of(node), self._stated.get(node)
        if stated is None:
            return f"Compute node {name} has left"
        return f"the store of Compute node {name} began on {moment(stated.since_ms)}"

    def _behind(self) -> int:
        """Return the number of the newest federation file that a node has, if this client lacks it; otherwise 0.

        Nodes that joined since the backup may be the only honest ones of a round that the client has forgotten.
        """
        members = self._federation.computes_among(self._stated)  # one that has left delays nobody
        newest = max((self._stated[node].file.number for node in members), default=0)
        return newest if newest > self._federation.number else 0

    def _ask_nodes(self, now_ms: int) -> list[Effect]:
        """Ask the Compute nodes that have not answered, and set the timer of the next question."""
        if self._mark is None or not self._session.hello:
            return []
        hello = decode_frame(self._session.hello)
        assert isinstance(hello, m.Signed), "the client made it"
        question = encode(self._sign(m.ChargesWanted(hello, self._nonce)))
        wait_ms = self._timing.resend_after_ms(self._asked, self._random(1))
        self._asked += 1
        return [
            *(Send(Address(Channel.COMPUTE, node), b"", question) for node in self._missing()),
            SetTimer(Timer(ASK_NODES), now_ms + wait_ms),
        ]

    def _on_charges_stated(self, sender: bytes, frame: m.Signed, body: m.ChargesStated, now_ms: int) -> list[Effect]:
        """Note a node's statement; with the last one, book what was forgotten."""
        if self._mark is None or (body.client, body.nonce) != (self.id, self._nonce):
            raise PeerError("phase", found="a charge number that nobody asked for", expected="the answer to a question")
        verify_signed(frame, self._federation.compute(sender).key, self._federation_id)
        self._federation.check_stamp(body.file)
        self._stated.setdefault(sender, body)
        return self._book_when_known(now_ms)

    def _book_when_known(self, now_ms: int) -> list[Effect]:
        """Book a charge for each forgotten number, once all nodes have answered."""
        if self._mark is None or self._missing() or self._unusable() or self._behind():
            return []
        named = [self._stated[member.id].highest for member in self._federation.computes]
        first, highest = self.ledger.next_number, max([*named, self.ledger.next_number - 1])
        charges = self._forgotten(first, highest, now_ms)
        self._mark = None
        return [
            *(self.ledger.charge(charge, skips=True) for charge in charges),
            Forget(RESTORED, b""),
            Report(facts.LedgerRestored(highest - first + 1, self._left(now_ms))),
        ]

    def _forgotten(self, first: int, highest: int, now_ms: int) -> list[Charge]:
        """Return the charges to book: one for each number at the largest cost of a round, or one of all the budget."""
        assert self._mark is not None, "the client was restored"
        policy, limit = self._consent.policy, self._consent.policy.budget_limit
        limits = [(policy.epsilon_per_round_max, policy.delta_max)]
        if self._mark.epsilon:
            limits.append((self._mark.epsilon, self._mark.delta))
        mu, epsilon, delta = max((mu_of(*one), *one) for one in limits)
        count, slack = highest - first + 1, slack_of(policy.dimension_max)  # any of them may have been verified
        total = PrivacyCost(gaussian=count * mu**2, slack=count * slack)
        is_counted = policy.sums_only and self._mark.sums_only
        if is_counted and (not count or limit.check(total, self.ledger, now_ms, rounds=count) is None):
            each = [(number, mu, epsilon, delta, slack) for number in range(first, highest + 1)]
        else:
            each = [(min(max(first, highest), NUMBER_MAX), limit.mu, limit.epsilon, limit.delta, 0.0)]
        return [
            Charge(self._random(ID_BYTES), RESTORED, bytes(ID_BYTES), cost, epsilon, delta, now_ms, number, slack=slack)
            for number, cost, epsilon, delta, slack in each
        ]

    def _left(self, now_ms: int) -> float:
        return self._consent.policy.budget_limit.left(self.ledger, now_ms)
