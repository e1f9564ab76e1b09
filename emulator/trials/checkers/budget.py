"""Invariant 4: what is spent is durable before anything leaves, stays within the budget, and comes back only once.

A charge is of the announced price, ε for a report that is ε-private (δ = 0), else the μ of (ε, δ). It pays for one
contribution, which never changes, and has a number, which no Compute node takes twice or forgets.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import astuple

from dca_proto.core import accounting
from dca_proto.core.charges import TABLE as SEEN_CHARGES
from dca_proto.core.charges import WINDOW
from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import CONTRIBUTIONS, SESSIONS, Session
from dca_proto.core.codec import decode_body, decode_frame
from dca_proto.core.compute import SHARES
from dca_proto.core.compute_round import ABORTED
from dca_proto.core.effects import Channel, Persist, Send, Write
from dca_proto.core.ledger import TABLE as LEDGER
from dca_proto.core.ledger import Charge
from dca_proto.core.mechanism import LOCAL_MECHANISMS, PURE_MECHANISMS
from dca_proto.core.messages import Announcement, Share, Signed, Start
from dca_proto.core.price import Price, total
from dca_proto.core.records import decoded
from dca_proto.core.trainer import TrainerActor
from dca_proto.core.upload import Contribution
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Witness

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld

_ROUNDING = 1e-9


class Budget(Checker):
    """Every ledger write, every share, release, start and call, of honest clients and of the trainer."""

    number, name = 4, "budget"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._charges: defaultdict[bytes, dict[bytes, Charge]] = defaultdict(dict)
        self._made: dict[tuple[bytes, bytes], Contribution] = {}
        self._numbers: defaultdict[tuple[bytes, bytes], set[int]] = defaultdict(set)  # by node and client

    # --- what becomes durable ----------------------------------------------------------------------------------------

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Follow the ledger, the ciphertexts that a charge pays for, and the numbers that nodes have seen."""
        if not self.is_honest(process):
            return
        if process.role is Channel.COMPUTE:
            self._check_numbers(process, [write for write in writes if isinstance(write, Persist)])
            return
        for write in writes:
            if write.table == CONTRIBUTIONS and isinstance(write, Persist):
                self._check_made(process, write)
            if write.table != LEDGER:
                continue
            if isinstance(write, Persist):
                self._charged(process, decoded(LEDGER, write.value, Charge))
            else:
                self.fail(f"{process.name} deletes a charge")

    def _check_made(self, process: Process, write: Persist) -> None:
        """A round has one contribution, with the same bytes after any restart."""
        made = decoded(CONTRIBUTIONS, write.value, Contribution)
        first = self._made.setdefault((process.id, write.key), made)
        self.expect(first == made, f"{process.name}, round {write.key.hex()[:8]}: one charge, two contributions")

    def _check_numbers(self, node: Process, writes: Sequence[Persist]) -> None:
        """Each share that a node keeps comes with a number that is new to it; it forgets none that is still in view."""
        kept = sum(write.table == SHARES for write in writes)
        noted = [write for write in writes if write.table == SEEN_CHARGES]
        self.expect(len(noted) >= kept, f"{node.name} keeps {kept} shares and notes {len(noted)} charge numbers")
        for write in noted:
            known, numbers = self._numbers[node.id, write.key], _numbers_in(write.value)
            in_view = {number for number in known if number > max(numbers) - WINDOW}
            holds = len(numbers - known) == 1 and in_view < numbers
            self.expect(
                holds, f"{node.name} forgets charge numbers of client {write.key.hex()[:8]}, or takes one twice"
            )
            known |= numbers

    def _charged(self, process: Process, charge: Charge) -> None:
        charges, who = self._charges[process.id], f"{process.name}, round {charge.round_id.hex()[:8]}"
        before = charges.get(charge.round_id)
        highest = max((one.number for one in charges.values()), default=0)
        charges[charge.round_id] = charge
        if before is None:
            self.expect(not charge.returned, f"{who}: a charge is returned before it was made")
            self.expect(charge.number == highest + 1, f"{who}: charge {charge.number} behind {highest}")
            self._check_price(who, charge)
            self._check_total(process)
            return
        self.expect(charge.returned and not before.returned, f"{who}: a charge is returned twice, or made twice")
        self.expect(charge.mu == before.mu and charge.number == before.number, f"{who}: a charge is changed")
        released = [
            node.name
            for node in self.world.computes
            if self.is_honest(node) and self.witness.ends.get((node.id, charge.round_id)) != ABORTED
        ]
        self.expect(not released, f"{who}: a charge comes back without the abort of {', '.join(released)}")
        if process.role is Channel.CLIENT:
            self._check_aborts(process, charge.round_id, who)

    def _check_price(self, who: str, charge: Charge) -> None:
        """A charge is what was announced, worked out anew, of what it protects."""
        asked = self.witness.announcements[charge.round_id]
        of_row = asked.local and asked.mechanism not in LOCAL_MECHANISMS
        self.expect(charge.relation == (REPLACE_ONE_ROW if of_row else REPLACE_ONE_CLIENT), f"{who}: {charge.relation}")
        found, price = charge.price, _price_of(asked)
        pairs = zip(astuple(found), astuple(price), strict=True)
        near = all(math.isclose(one, other, rel_tol=_ROUNDING) for one, other in pairs)
        self.expect(near, f"{who}: a charge of {found}, where {price} was announced")
        same = (charge.epsilon, charge.delta) == (asked.epsilon, asked.delta)
        self.expect(same, f"{who}: a charge of epsilon {charge.epsilon:g} at delta {charge.delta:g}")

    def _check_aborts(self, process: Process, round_id: bytes, who: str) -> None:
        stored = process.disk.records.get((SESSIONS, round_id))
        told = () if stored is None else decoded(SESSIONS, stored, Session).aborted_by
        nodes = len(self.witness.announcements[round_id].computes)
        self.expect(len(set(told)) == nodes, f"{who}: a charge comes back against {len(set(told))} aborts of {nodes}")

    def _check_total(self, process: Process) -> None:
        """All that counts in the period together, within the client's own policy, or the trainer's account."""
        cast = self.world.cast
        allowance = cast.policy.allowance if process.role is Channel.CLIENT else cast.account
        if allowance is None:
            return
        since_ms = allowance.since_ms(process.now_ms)
        kept = [one for one in self._charges[process.id].values() if not one.returned and one.at_ms >= since_ms]
        spent = total(one.price for one in kept)
        self.expect(
            spent.within(allowance.epsilon * (1 + _ROUNDING), allowance.delta),
            f"{process.name} has spent epsilon {spent.epsilon(allowance.delta):.6g}, where {allowance.epsilon:.6g} is "
            f"allowed at delta {allowance.delta:g}",
        )

    # --- what leaves, and what a start finds -------------------------------------------------------------------------

    def on_send(self, process: Process, send: Send) -> None:
        """No share, release, report, start or call leaves without a durable charge, and only as it was stored."""
        if not self.is_honest(process):
            return
        what = self._spends(process, send)
        if not what:
            return
        who = f"{process.name}, round {send.round_id.hex()[:8]}"
        self.expect((LEDGER, send.round_id) in process.disk.records, f"{who}: a {what} leaves without a durable charge")
        if process.role is Channel.CLIENT:
            made = self._made.get((process.id, send.round_id))
            stored = made is not None and send.payload in made.messages
            self.expect(stored, f"{who}: a {what} leaves that was not stored before")

    def _spends(self, process: Process, send: Send) -> str:
        """What a message is that must have been paid for, if it is; a call is the announcement of a local round.

        A report is a release, too.
        """
        match process.role, send.to.channel:
            case Channel.CLIENT, Channel.COMPUTE:
                return "share" if isinstance(decode_frame(send.payload), Share) else ""
            case Channel.CLIENT, Channel.TRAINER:
                return "release" if self.witness.is_release(process.id, send.round_id, send.payload) else ""
            case Channel.TRAINER, Channel.CLIENT | Channel.ANNOUNCE:
                frame = decode_frame(send.payload)
                body = decode_body(frame.body) if isinstance(frame, Signed) else None
                if isinstance(body, Announcement):
                    return "call" if body.local else ""
                return "start" if isinstance(body, Start) else ""
            case _:
                return ""

    def on_restart(self, process: Process) -> None:
        """A start finds every charge that was ever durable."""
        actor = process.actor
        if not isinstance(actor, ClientActor | TrainerActor) or not self.is_honest(process):
            return
        found = {charge.round_id: charge for charge in actor.ledger.charges}
        self.expect(found == self._charges[process.id], f"{process.name} starts with another ledger than was durable")


def _price_of(asked: Announcement) -> Price:
    """What (ε, δ) cost, by the mechanism's name."""
    if asked.mechanism in PURE_MECHANISMS:
        return Price.of_pure(asked.epsilon)
    return Price.of_mu(accounting.mu_of(asked.epsilon, asked.delta))


def _numbers_in(window: bytes) -> set[int]:
    """The charge numbers in a node's record of a client: the highest, and which of those below it were seen."""
    highest, mask = divmod(int.from_bytes(window, "big"), 1 << WINDOW)
    return {highest - below for below in range(WINDOW) if mask >> below & 1}
