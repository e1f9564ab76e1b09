"""Invariant 4: a charge is durable before anything is sent, stays within the budget, and is returned at most once.

A charge has the announced cost: μ, or ε of an ε-private report (δ = 0). It pays for one contribution, which never
changes. Its number is taken only once by each Compute node, and never forgotten. Only invited clients pay. After each
charge and return, the ledger in the actor's own memory has the total of `emulator.reference`.

A charge is returned only against signed aborts of its announcement by more than p of its nodes, where p is the larger
of what held when it was charged and of what holds now. They are in the member's own federation file, and all nodes that
a client's policy trusts are among them. If at most p of the nodes are dishonest, an honest one has durably aborted.

A client whose store was made from a backup pays for nothing before it knows its charges. Whatever it has forgotten: the
sums of honest nodes that have its contributions, and the releases that it sent, cost together no more than its policy
allows, over all its stores.

A client whose store was replaced by an old copy does not spend a number twice in released sums. A node that remembers
the number reports it, and the client then takes part in no further round until it restarts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from math import exp, isclose, sqrt

from dca_proto.privacy.mechanism import PURE_MECHANISMS
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.charges import PAGE, WINDOW
from dca_proto.protocol.charges import TABLE as SEEN_CHARGES
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.round import ABORTED
from dca_proto.protocol.contribution import ClientMessage, HeldContribution
from dca_proto.protocol.effects import Channel, Effect, Forget, Persist, Send, Write
from dca_proto.protocol.events import Event
from dca_proto.protocol.facts import LedgerReused
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.records import decoded
from dca_proto.protocol.restore import RESTORED
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    ChargeReused,
    Contribution,
    Invitation,
    InvitedRound,
    Signed,
)
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW
from emulator import reference
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, ReleasedVector, RunLog, about
from emulator.trials.checkers.entries import Entry
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, body_of, counts_of, slack_of

_DAY_MS = 86_400_000
_ROUNDING = 1e-9


class BudgetChecker(Checker):
    """Checks every ledger write, contribution, release and announcement of honest clients and the trainer."""

    number, name = 4, "budget"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._charges: defaultdict[bytes, dict[bytes, Charge]] = defaultdict(dict)
        self._outbound: dict[Key, ClientMessage] = {}
        self._numbers: defaultdict[Key, set[int]] = defaultdict(set)  # by node and client
        self._aborts: defaultdict[tuple[bytes, bytes], set[bytes]] = defaultdict(set)  # by receiver and announcement
        self._paid: defaultdict[Key, set[int]] = defaultdict(set)  # all numbers ever, by client and round
        self._spent: dict[tuple[bytes, int], bytes] = {}  # round, by client and charge number in a released sum
        self._unreported: set[bytes] = set()  # clients that got a report of a reused number, and must warn their owners
        self._unwritten: set[bytes] = set()  # actors whose ledger in memory is ahead of the disk
        self._ever: dict[Key, Charge] = {}  # the last charge, by client and round, also if its store has forgotten it
        self._seen: defaultdict[bytes, dict[bytes, Charge]] = defaultdict(dict)  # those that somebody has seen
        self._warned: dict[bytes, int] = {}  # client -> the number of its start in which it warned its owner

    def on_paid(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        """Each client has one contribution to a round, with the same bytes after any restart."""
        if self.is_honest(client):
            first = self._outbound.setdefault((client.id, round_id), outbound)
            self.expect(first == outbound, f"{about(client, round_id)}: one charge, two contributions")

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """Note a change of the ledger that a slow machine has yet to write."""
        if any(type(effect) is Persist and effect.table == LEDGER for effect in effects):
            self._unwritten.add(process.id)

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Nothing is deleted from a ledger."""
        self._unwritten.discard(process.id)
        if any(isinstance(write, Forget) and write.table == LEDGER for write in writes) and self.is_honest(process):
            self.fail(f"{process.name} deletes a charge")
        if any(write.table == LEDGER for write in writes):
            self._check_live(process)

    def _check_live(self, process: Process) -> None:
        """The ledger in an actor's memory has the charges and the totals of those that are durable."""
        if not isinstance(process.actor, Client | Trainer) or not self.is_honest(process):
            return
        ledger, own = copy(process.actor.ledger), self._charges[process.id]  # a copy: asking fills a cache
        counting = [charge for charge in own.values() if not charge.returned]
        newest_ms = max((charge.at_ms for charge in counting), default=0)
        some = next((charge.clients[:1] for charge in counting if charge.clients), ())
        wrong = {charge.round_id for charge in own.values() if ledger.is_charged(charge.round_id) == charge.returned}
        self.expect(not wrong, f"{process.name}: its ledger in memory is wrong on {len(wrong)} rounds")
        next_number = max((charge.number for charge in own.values()), default=0) + 1
        self.expect(ledger.next_number == next_number, f"{process.name}: its next charge number is not {next_number}")
        for since_ms, of in ((0, ()), (newest_ms, ()), (0, some)):
            found = ledger.spent(since_ms, of=of)
            total = found.gaussian, found.pure, found.converted, found.slack
            expected = _largest_of([charge for charge in counting if charge.at_ms >= since_ms], of)
            text = f"{process.name}: its ledger in memory totals {total} since {since_ms}, not {expected}"
            self.expect(_are_close(total, expected), text)

    def on_charge(self, process: Process, charge: Charge) -> None:
        """A charge is new and numbered in order, or is returned once."""
        charges, who = self._charges[process.id], about(process, charge.round_id)
        before = charges.get(charge.round_id)
        highest = max((earlier.number for earlier in charges.values()), default=0)
        charges[charge.round_id] = charge
        self._paid[process.id, charge.round_id].add(charge.number)
        if before is None:
            if charge.statistic == RESTORED:
                self._check_booked(process, charge, highest)
                return
            self._ever[process.id, charge.round_id] = charge
            if process.role is Channel.CLIENT and not self.log.is_summed(charge.round_id):
                self._note_seen(process.id, charge.round_id)
            self.expect(not charge.returned, f"{who}: a charge is returned before it was made")
            self.expect(charge.number == highest + 1, f"{who}: charge {charge.number} follows {highest}")
            marked = (RESTORED, b"") in process.disk.records
            self.expect(not marked, f"{who}: it pays before it knows what its store has forgotten")
            warned = self._warned.get(process.id) == process.starts
            self.expect(not warned, f"{who}: it pays after a report that its ledger is an old copy")
            self._check_cost(process, who, charge)
            self._check_total(process)
            if process.role is Channel.CLIENT:
                self._check_consent(process.id, charge.round_id, who)
                self._check_repeated(process, charge.round_id, who)
            return
        again = before.returned and process.role is Channel.TRAINER and not self.log.is_summed(charge.round_id)
        fits = not charge.returned if again else charge.returned and not before.returned
        self.expect(fits, f"{who}: a charge is returned twice, or made twice")  # again: after a late release
        self.expect(charge.mu == before.mu and charge.number == before.number, f"{who}: a charge is changed")
        if self.log.is_summed(charge.round_id):
            self._check_aborts(process, charge.round_id, who)

    def _check_booked(self, process: Process, charge: Charge, highest: int) -> None:
        """A restored client books charges above those that it knows, each at a round's or the budget's cost."""
        policy = self.world.actors.policy_of(process.id)
        limits = (policy, self.world.actors.policy)  # that of the backup may have been the usual one
        allowed = {(one.epsilon_per_round_max, one.delta_max) for one in limits}
        allowed.add((policy.epsilon_per_period_max, policy.delta_max))
        self.expect(process.id in self.world.backed_up, f"{process.name} books a charge without having been restored")
        self.expect(charge.number > highest, f"{process.name} books charge {charge.number} after {highest}")
        self.expect((charge.epsilon, charge.delta) in allowed, f"{process.name} books a cost that no round has")
        exact = isclose(charge.mu, reference.mu_of(charge.epsilon, charge.delta), rel_tol=1e-6)
        self.expect(exact, f"{process.name} books a charge of mu {charge.mu}")
        is_whole = (charge.epsilon, charge.delta) == (policy.epsilon_per_period_max, policy.delta_max)
        slack = policy.dimension_max * 2.0**-64  # of the largest verified sum (DESIGN §12)
        self.expect(is_whole or charge.slack == slack, f"{process.name} books a charge of slack {charge.slack}")

    def _note_seen(self, client: bytes, round_id: bytes) -> None:
        """What somebody has seen of a client is within its policy, although its store may have forgotten it."""
        charge = self._ever.get((client, round_id))
        copied = self.world.restored | self.world.duplicated
        if charge is None or client in self.log.dishonest or client in copied:
            return
        if not copied.isdisjoint(self.world.actors.computes):
            return  # a node with an old copy is corrupt
        self._seen[client][round_id] = charge
        limit = self.world.actors.policy_of(client).budget_limit
        since_ms = charge.at_ms - limit.period_days * _DAY_MS
        spent = _spent_by(one for one in self._seen[client].values() if one.at_ms >= since_ms)
        epsilon_max = limit.epsilon * (1 + _ROUNDING)
        within = reference.is_within(spent, epsilon_max, limit.delta, limit.epsilon_for_reports * (1 + _ROUNDING))
        who = f"round {round_id.hex()[:8]}: client {client.hex()[:8]}"
        self.expect(within, f"{who}: what was seen of it costs more than {at_most(limit.epsilon)}, over all its stores")

    def _check_consent(self, client: bytes, round_id: bytes, who: str) -> None:
        """A client that pays is invited, and its policy allows the announced terms."""
        policy, body = self.world.actors.policy_of(client), self.log.accepted[client, round_id].body
        request = self.log.requests.get(round_id)
        is_invited = request is not None and (not request.invited or client in request.invited)
        self.expect(
            is_invited, f"{who}: it pays for a round that does not invite it, or that the trainer did not announce"
        )
        within = body.epsilon <= policy.epsilon_per_round_max and body.delta <= policy.delta_max
        if isinstance(body.kind, SecureSum):
            counts = counts_of(body.kind)
            within &= counts.n_min >= policy.clients_min and body.kind.colluders >= policy.colluders_min
            within &= counts.honest >= max(1, policy.honest_min)
        self.expect(within, f"{who}: it pays for what its policy forbids")

    def _check_repeated(self, client: Process, round_id: bytes, who: str) -> None:
        """Whoever pays for a repeat has first got back what it paid for the cancelled rounds, if p + 1 aborted them."""
        carried: defaultdict[bytes, set[bytes]] = defaultdict(set)
        for abort in self._carried(self.log.accepted[client.id, round_id].body):
            carried[abort.round_id].add(abort.compute)
        for earlier, nodes in carried.items():
            charge, accepted = self._charges[client.id].get(earlier), self.log.accepted.get((client.id, earlier))
            if charge is None or charge.returned or accepted is None:
                continue
            has_returned = not self._is_due(client, earlier, accepted, nodes)
            self.expect(has_returned, f"{who}: it pays, and has not got back its charge for {earlier.hex()[:8]}")

    def _is_due(self, client: Process, round_id: bytes, accepted: Accepted, aborted_by: set[bytes]) -> bool:
        """Return True if these nodes' aborts return a client's charge, whatever its policy trusts."""
        known = (client_round.ROUNDS, round_id) in client.disk.records
        present = aborted_by & set(accepted.computes) & {member.id for member in self.world.follows(client).computes}
        needed = self.log.colluding.needed(client, round_id)
        trusted = self.world.actors.policy_of(client.id).trusted_computes
        return known and len(present) >= needed and not trusted

    def _check_cost(self, process: Process, who: str, charge: Charge) -> None:
        """A charge has the announced cost and relation, and the announced μ is private at the announced (ε, δ)."""
        own = self.log.accepted.get((process.id, charge.round_id))
        body = own.body if own is not None else self.log.announcements[charge.round_id]
        relation = REPLACE_ONE_ROW if isinstance(body.kind, NodeRelease) else REPLACE_ONE_CLIENT
        self.expect(charge.relation == relation, f"{who}: a charge for {charge.relation}, expected {relation}")
        pure = body.kind.mechanism in PURE_MECHANISMS
        slack, has_delta = slack_of(body), 0.0 if pure else 1.0
        cost, announced = _spent_by([charge]), reference.composed([(body.mu, body.epsilon, has_delta, slack)])
        self.expect(_are_close(cost, announced), f"{who}: a charge of {cost}, but {announced} was announced")
        own_claim, claim = (charge.epsilon, charge.delta), (body.epsilon, body.delta)
        self.expect(own_claim == claim, f"{who}: a charge of (epsilon, delta) {own_claim}, but {claim} was announced")
        delta = body.delta - slack * (1 + exp(body.epsilon))
        mu_max = sqrt(announced[2]) if pure else reference.mu_of(body.epsilon, delta)
        private = body.mu <= mu_max * (1 + _ROUNDING)
        self.expect(private, f"{who}: mu {at_least(body.mu)} is not private at the announced epsilon and delta")

    def _check_aborts(self, process: Process, round_id: bytes, who: str) -> None:
        """More than p of the announcement's nodes have signed aborts, an honest one among them durably."""
        accepted = self.log.accepted.get((process.id, round_id)) or self.log.announced(round_id)
        assert accepted is not None, "the charge was checked against it"
        file, nodes = self.world.follows(process), frozenset(accepted.computes)
        signed = self._aborts[process.id, accepted.hash] & nodes & {member.id for member in file.computes}
        needed = self.log.colluding.needed(process, round_id)
        self.expect(len(signed) >= needed, f"{who}: a charge is returned against {len(signed)} aborts of {needed}")
        if process.role is Channel.CLIENT:
            trusted = self.world.actors.policy_of(process.id).trusted_computes
            missing = {
                one for one in trusted if not any(one in (m.name, m.id.hex()) for m in file.computes if m.id in signed)
            }
            self.expect(not missing, f"{who}: a charge is returned without {', '.join(sorted(missing))}")
        dishonest = nodes & self.log.dishonest
        if len(dishonest) < needed:
            ends = [
                (self.log.ends.get((node, round_id)), self.log.ended_hash.get((node, round_id)))
                for node in nodes - dishonest
            ]
            has_aborted = (ABORTED, accepted.hash) in ends
            self.expect(has_aborted, f"{who}: a charge is returned, and no honest node has aborted")

    def _check_total(self, process: Process) -> None:
        """The charges of the period are within the client's policy or the trainer's account."""
        actors = self.world.actors
        limit = actors.policy_of(process.id).budget_limit if process.role is Channel.CLIENT else actors.account
        if limit is None or (process.role is Channel.TRAINER and self.world.scenario.rounds.batch):
            return  # with batches, the trainer's account counts for each client by itself
        since_ms = process.now_ms - limit.period_days * _DAY_MS
        own = self._charges[process.id].values()
        charges = [charge for charge in own if not charge.returned and charge.at_ms >= since_ms]
        spent, epsilon_max = _spent_by(charges), limit.epsilon * (1 + _ROUNDING)
        within = reference.is_within(spent, epsilon_max, limit.delta, limit.epsilon_for_reports * (1 + _ROUNDING))
        epsilon = reference.epsilon_of(sqrt(spent[0] + spent[2]), limit.delta)
        allowed = f"{at_most(limit.epsilon)} allowed at delta {at_least(limit.delta)}"
        self.expect(within, f"{process.name} has spent epsilon {at_least(epsilon)} of {allowed}")

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: HeldContribution) -> None:
        """A kept contribution of an honest client has the number of a charge that it paid for that round."""
        if self.is_honest(node) and client not in self.log.dishonest:
            paid = kept.charge in self._paid[client, round_id]
            who = f"{node.name} keeps a contribution of {client.hex()[:8]}"
            self.expect(paid, f"{who} with a charge number that it did not pay")

    def on_partial_sum(self, release: ReleasedVector) -> None:
        """No charge number pays for two sums, even if a client's ledger has forgotten it."""
        for entry in self.log.agreed(release) or ():
            if release.sender not in self.log.dishonest:
                self._note_seen(entry.client, release.round_id)
            first = self._spent.setdefault((entry.client, entry.charge), release.round_id)
            charge = f"round {release.round_id.hex()[:8]}: charge {entry.charge} of {entry.client.hex()[:8]}"
            self.expect(first == release.round_id, f"{charge} pays for a second sum")

    def on_answer(self, node: Process, accepted: Accepted, union: list[Entry] | None, objected: list[int]) -> None:
        """With its answer, a node has stored the charge numbers of all entries that it accepts, and each is new."""
        if union is None:
            self.fail(f"{node.name} answers for lists that nobody has stored")
            return
        excluded = set(objected)
        for entry in (entry for place, entry in enumerate(union) if place not in excluded):
            known, who = self._numbers[node.id, entry.client], f"{node.name}, client {entry.client.hex()[:8]}"
            fresh = entry.charge not in known and entry.charge > max(known, default=0) - WINDOW
            self.expect(fresh, f"{who}: charge number {entry.charge} is taken twice")
            known.add(entry.charge)
            lost = {number for number in known if number > max(known) - WINDOW} - _numbers_at(node, entry.client)
            self.expect(not lost, f"{who}: charge numbers {sorted(lost)} are not remembered")

    def on_deliver(self, process: Process, sender: bytes, payload: bytes) -> None:
        """Note genuine aborts, and genuine reports of a reused charge number."""
        if process.role is Channel.COMPUTE:
            return
        body = body_of(payload)
        if isinstance(body, ChargeReused) and self._concerns(process, body) and self.log.is_genuine(payload, sender):
            self._unreported.add(process.id)
        if isinstance(body, Abort) and self.log.is_genuine(payload, body.compute):
            self._aborts[process.id, body.announcement_hash].add(body.compute)
        if isinstance(body, Invitation | InvitedRound):
            body = body_of(encode(body.announcement))
        if isinstance(body, Announcement):
            for abort in self._carried(body):
                self._aborts[process.id, abort.announcement_hash].add(abort.compute)

    def _carried(self, announcement: Announcement) -> Iterator[Abort]:
        """Yield the genuine aborts that a repeat carries."""
        for frame in announcement.ended:
            payload = encode(frame)
            abort = body_of(payload)
            if isinstance(abort, Abort) and self.log.is_genuine(payload, abort.compute):
                yield abort

    def _concerns(self, client: Process, body: ChargeReused) -> bool:
        """Return True if an honest client that is not slow has the round open and paid for it with that number."""
        stored = client.disk.records.get((client_round.ROUNDS, body.round_id))
        if stored is None or body.client != client.id or not self.is_honest(client) or client.options.work_ms:
            return False
        phase = decoded(client_round.ROUNDS, stored, client_round.StoredClientRound).phase
        charge = self._charges[client.id].get(body.round_id)
        accepted = self.log.accepted.get((client.id, body.round_id))
        is_known = accepted is not None and accepted.hash == body.announcement_hash
        is_open = phase in (client_round.SENT, client_round.KEPT, client_round.MISSED)
        return is_open and is_known and charge is not None and charge.number == body.charge

    def on_fact(self, process: Process, fact: object) -> None:
        """Note that a client has warned its owner that its ledger is an old copy."""
        if isinstance(fact, LedgerReused):
            self._warned[process.id] = process.starts
            self._unreported.discard(process.id)

    def on_kill(self, process: Process) -> None:
        """A killed client forgets reports that it has not passed on, and what it has not written."""
        self._unwritten.discard(process.id)
        self._unreported.discard(process.id)

    def on_send(self, process: Process, send: Send) -> None:
        """A contribution, release, report or announcement leaves with a durable charge, and as it was stored."""
        kind = self._spends(process, send) if self.is_honest(process) else ""
        if not kind:
            return
        who = about(process, send.round_id)
        self.expect((LEDGER, send.round_id) in process.disk.records, f"{who}: {kind} leaves without a durable charge")
        if process.role is Channel.CLIENT:
            outbound = self._outbound.get((process.id, send.round_id))
            same = outbound is not None and send.payload == outbound.payload
            self.expect(same, f"{who}: {kind} leaves that was not stored before")

    def _spends(self, process: Process, send: Send) -> str:
        """Return the kind of a message that must be paid for; empty for any other. A report counts as a release."""
        match process.role, send.to.channel:
            case Channel.CLIENT, Channel.COMPUTE:
                return "a contribution" if isinstance(decode_frame(send.payload), Contribution) else ""
            case Channel.CLIENT, Channel.TRAINER:
                return "a release" if self.log.is_release(process.id, send.round_id, send.payload) else ""
            case Channel.TRAINER, Channel.CLIENT | Channel.ANNOUNCE:
                frame = decode_frame(send.payload)
                frame = getattr(frame, "announcement", frame)  # in an invitation or by itself
                is_announcement = isinstance(frame, Signed) and isinstance(decode_body(frame.body), Announcement)
                return "an announcement" if is_announcement else ""
            case _:
                return ""

    def on_restore(self, process: Process) -> None:
        """A store was replaced by an old copy: forget the later charges, too, which the client may make again."""
        records = process.disk.records.items()
        charges = [decoded(LEDGER, value, Charge) for (table, _), value in records if table == LEDGER]
        known = self._charges[process.id] = {charge.round_id: charge for charge in charges}
        for key in [key for key in self._outbound if key[0] == process.id and key[1] not in known]:
            del self._outbound[key]

    def on_restart(self, process: Process) -> None:
        """A restarted process has every charge that was durable."""
        if isinstance(process.actor, Client | Trainer) and self.is_honest(process):
            charges = {charge.round_id: charge for charge in process.actor.ledger.charges}
            same = charges == self._charges[process.id]
            self.expect(same, f"{process.name} starts with another ledger than was durable")

    def finish(self) -> None:
        """Owners were warned of every reported old copy, and ledgers have the reference totals."""
        names = ", ".join(client.hex()[:8] for client in self._unreported if self._warned.get(client) is None)
        self.expect(not names, f"the owner of {names} was not warned that a charge number was used before")
        for process in self.honest():
            if process.id not in self._unwritten:
                self._check_live(process)


def _largest_of(charges: list[Charge], of: tuple[bytes, ...]) -> tuple[float, float, float, float]:
    """Return the total of charges: the largest of any one client, in each part; of the clients `of` alone if given."""
    named = {client for charge in charges for client in charge.clients}
    clients = (named & set(of) or {b""}) if of else (named or {b""})
    borne = [[charge for charge in charges if not charge.clients or client in charge.clients] for client in clients]
    totals = [_spent_by(each) for each in borne]
    gaussian, pure, converted, slack = (max(part) for part in zip(*totals, strict=True))
    return gaussian, pure, converted, slack


def _spent_by(charges: Iterable[Charge]) -> tuple[float, float, float, float]:
    return reference.composed((charge.mu, charge.epsilon, charge.delta, charge.slack) for charge in charges)


def _are_close(found: tuple[float, ...], expected: tuple[float, ...]) -> bool:
    return all(isclose(value, other, rel_tol=_ROUNDING) for value, other in zip(found, expected, strict=True))


def _numbers_at(node: Process, client: bytes) -> set[int]:
    """Return the charge numbers of a client that are marked as seen on a node's disk, within the window."""
    session = node.disk.records.get((SESSIONS, client))
    slot = -1 if session is None else decoded(SESSIONS, session, StoredSession).slot
    page = node.disk.records.get((SEEN_CHARGES, (slot // PAGE).to_bytes(4, "big"))) if slot >= 0 else None
    if page is None:
        return set()
    place = slot % PAGE
    highest = int.from_bytes(page[4 * place : 4 * place + 4], "little")
    mask = int.from_bytes(page[4 * PAGE + 8 * place : 4 * PAGE + 8 * place + 8], "little")
    return {highest - below for below in range(WINDOW) if mask >> below & 1}
