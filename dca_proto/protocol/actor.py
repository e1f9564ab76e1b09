"""The base of all actors: rounds that follow a transition table, and `handle`, the only entry for events.

A table maps (phase, event) to the next phase. A missing entry is a peer's error, raised before any state changes.
The diagrams of DESIGN §9 are generated from these tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from dca_proto.crypto.sealing import ID_BYTES, Identity, Random
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian, Mechanism
from dca_proto.protocol.effects import Address, CancelTimer, Channel, Effect, Persist, Report, Send, SetTimer
from dca_proto.protocol.events import Command, Event, Received, Started, Timer, TimerFired
from dca_proto.protocol.facts import Dropped, FederationChanged
from dca_proto.protocol.federation import FILES, Federation, newest_file
from dca_proto.protocol.names import short_id
from dca_proto.protocol.params import PACED_MAX, Limits, Timing
from dca_proto.protocol.records import Records
from dca_proto.protocol.waiting import Waiting
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign, verify_signed
from dca_proto.protocol.wire.messages import Body, FederationFile, Frame, RoundMessage, Signed

NEW, RESEND, EPOCH = "new", "resend", "epoch"
Table = Mapping[tuple[str, str], str]


def stays(phases: Iterable[str], *events: str) -> Table:
    """Return table entries by which each of the events leaves each of the phases unchanged."""
    return {(phase, event): phase for phase in phases for event in events}


class Stored(msgspec.Struct, frozen=True):
    """An actor's stored record of a round. Each actor's subclass adds fields to the phase."""

    phase: str


S = TypeVar("S", bound=Stored)


class ActorRound(Generic[S]):
    """A round in an actor's memory.

    Attributes:
        table: the transitions of its phase.
        records: the store's table that holds `stored`.
        stored: the record of the round.
        hash: ah, the announcement's hash.
        computes: ids of the Compute nodes, in the announcement's order.
        attempt: how often its messages were resent.
    """

    __slots__ = ("attempt", "computes", "hash", "id", "stored")
    table: ClassVar[Table]
    records: ClassVar[str]

    def __init__(self, round_id: bytes, stored: S, announcement_hash: bytes, computes: tuple[bytes, ...]) -> None:
        self.id = round_id
        self.stored = stored
        self.hash = announcement_hash
        self.computes = computes
        self.attempt = 0

    @property
    def phase(self) -> str:
        return self.stored.phase

    @property
    def is_summed(self) -> bool:
        """True if Compute nodes add up the clients' contributions."""
        return bool(self.computes)

    def is_in(self, *phases: str) -> bool:
        """Return True if the round is in one of these phases."""
        return self.stored.phase in phases

    def takes(self, event: str) -> bool:
        """Return True if the table accepts `event` in this phase."""
        return (self.stored.phase, event) in self.table

    @property
    def is_open(self) -> bool:
        """True if the round has not ended here."""
        raise NotImplementedError

    @property
    def is_awaited(self) -> bool:
        """True if the round is open, and something of it is still to come."""
        return self.is_open

    def step(self, event: str) -> str:
        """Return the phase after `event`. Raises `PeerError("phase")` if this phase does not accept it."""
        after = self.table.get((self.stored.phase, event))
        if after is None:
            expected = ", ".join(sorted(known for at, known in self.table if at == self.phase)) or "nothing more"
            raise PeerError("phase", found=f"{event} while {self.phase}", expected=expected)
        return after

    def advance(self, event: str, **changes: object) -> Persist:
        """Move to the phase after `event`, and change other stored fields. Raises `PeerError("phase")` as `step`."""
        return self.store(phase=self.step(event), **changes)

    def store(self, **changes: object) -> Persist:
        """Change stored fields; the returned effect makes them durable."""
        self.stored = msgspec.structs.replace(self.stored, **changes)
        return Persist(self.records, self.id, encode(self.stored))

    def send(self, payload: bytes, channel: Channel, to: bytes = b"", *, expires_ms: int | None = None) -> Send:
        """Send an encoded message of the round to an actor's inbox, or broadcast it."""
        return Send(Address(channel, to), self.id, payload, expires_ms=expires_ms)

    def timer(self, purpose: str, at_ms: int) -> SetTimer:
        """Set a timer of the round."""
        return SetTimer(Timer(purpose, self.id), at_ms)

    def cancel(self, *purposes: str) -> list[Effect]:
        """Cancel timers of the round."""
        return [CancelTimer(Timer(purpose, self.id)) for purpose in purposes]

    def resend_timer(self, timing: Timing, entropy: bytes, now_ms: int, sent: Iterable[Effect] = ()) -> SetTimer:
        """Schedule the next resend, with back-off; one byte of `entropy` spreads it.

        `sent` has the messages that are to arrive first: the largest one counts.
        """
        size = max([len(one.payload) for one in sent if isinstance(one, Send)], default=0)
        wait_ms = timing.resend_after_ms(self.attempt, entropy, size)
        self.attempt += 1
        return self.timer(RESEND, now_ms + wait_ms)


class RateLimit:
    """Limits repeated answers to one per key in `every_ms`; a key is a peer, a round, or a peer in a round."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._last: dict[bytes, int] = {}
        self._of_round: defaultdict[bytes, list[bytes]] = defaultdict(list)  # keys of peers, by what they begin with

    def is_due(self, key: bytes, now_ms: int) -> bool:
        """Return True if `key` may be answered now, and restart its wait."""
        if self.waits(key, now_ms):
            return False
        self.note(key, now_ms)
        return True

    def waits(self, key: bytes, now_ms: int) -> bool:
        """Return True if `key` was answered too recently. A clock that was set back blocks nobody."""
        return 0 <= now_ms - self._last.get(key, -self._every_ms) < self._every_ms

    def note(self, key: bytes, now_ms: int) -> None:
        """Start the wait of `key`."""
        if len(self._last) >= PACED_MAX:
            self._last.clear()
            self._of_round.clear()
        if len(key) > ID_BYTES and key not in self._last:
            self._of_round[key[:ID_BYTES]].append(key)
        self._last[key] = now_ms

    def forget(self, round_id: bytes) -> None:
        """Forget the round's own answer, and the peers that were answered in it."""
        self._last.pop(round_id, None)
        for key in self._of_round.pop(round_id, ()):
            del self._last[key]


class BurstLimit:
    """Limits answers to one per key in `every_ms` on average, of which `burst` may come at once.

    A limit without bursts would lose the question of a process that has just started again.
    """

    def __init__(self, every_ms: int, burst: int) -> None:
        self._every_ms, self._burst = every_ms, burst
        self._used_until: dict[bytes, int] = {}

    def is_due(self, key: bytes, now_ms: int) -> bool:
        """Return True if `key` may be answered now, and count the answer. A clock that was set back blocks nobody."""
        ahead_ms = self._used_until.get(key, now_ms) - now_ms
        if not 0 <= ahead_ms <= self._burst * self._every_ms:
            ahead_ms = 0
        if ahead_ms > (self._burst - 1) * self._every_ms:
            return False
        self._used_until[key] = now_ms + ahead_ms + self._every_ms
        return True


R = TypeVar("R", bound=ActorRound[Any])


class BaseActor(ABC, Generic[R]):
    """A sans-IO actor: events in, effects out. A newer federation file in its store replaces the given one.

    Attributes:
        id: 16 bytes, the hash of its identity's public key.
        dropped: number of dropped messages by error code.
        messages: the method that handles each kind of message; any other kind is a peer's error.
        timers: the method that handles each timer. A round's timer is also an event in the round's table.
    """

    def __init__(
        self,
        identity: Identity,
        federation: Federation,
        random: Random,
        mechanism: Mechanism | None,
        limits: Limits | None,
        timing: Timing | None,
        records: Records,
    ) -> None:
        self.id = identity.id
        self.dropped: Counter[str] = Counter()
        self._identity = identity
        self._federation = newest_file(federation, records)
        self._federation_id = federation.id
        self._random = random
        self._mechanism = mechanism or DistributedDiscreteGaussian()
        self._limits = limits or Limits()
        self._former: dict[bytes, str] = {}  # Compute nodes and trainers that newer files revoked, by id: for people
        self._timing = timing or Timing()
        self._pace = RateLimit(self._timing.again_ms)

    messages: ClassVar[Mapping[Any, str]]
    timers: ClassVar[Mapping[str, str]]
    _rounds: dict[bytes, R]

    def phase(self, round_id: bytes) -> str:
        """Return the phase of a round; `NEW` if the round is unknown."""
        known = self._rounds.get(round_id)
        return known.phase if known else NEW

    def knows(self, round_id: bytes) -> bool:
        """Return True if this actor has the round in memory: it is open, or was not yet forgotten."""
        return round_id in self._rounds

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event at the time `now_ms` (Unix milliseconds), and return its effects.

        A peer's error changes nothing but a counter, and is reported as a `Dropped` fact. Raises `UsageError` for a
        command that is invalid or that this actor does not accept.
        """
        try:
            if isinstance(event, Received):  # most events, and a pattern takes longer
                return self._receive(event.sender, event.payload, now_ms)
            match event:
                case TimerFired(timer):
                    return self._on_timer(timer, now_ms)
                case Started():
                    return self._on_start_up(now_ms)
                case Command(request):
                    return self._on_command(request, now_ms)
        except PeerError as error:
            return [self._drop(error, event.sender if isinstance(event, Received) else self.id)]

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        """Pass a message to its method: `(sender, frame, now_ms)`, or `(sender, frame, body, now_ms)` if it is signed.

        Raises `PeerError` before any state has changed.
        """
        frame = decode_frame(payload)
        parts: tuple[Frame | Body, ...] = (frame, decode_body(frame.body)) if isinstance(frame, Signed) else (frame,)
        return self._method(self.messages, parts[-1])(sender, *parts, now_ms)

    def _method(self, messages: Mapping[Any, str], body: Frame | Body) -> Callable[..., list[Effect]]:
        """Return the method that handles a message. Raises `PeerError` for a kind that has none."""
        name = messages.get(type(body))
        if name is None:
            known = ", ".join(kind.__name__ for kind in messages)
            raise PeerError("kind", found=type(body).__name__, expected=f"one of {known}")
        method: Callable[..., list[Effect]] = getattr(self, name)
        return method

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        """Call the timer's method: an own one's with the time, a round's with the round, if its phase accepts it."""
        effects: list[Effect] = []
        if not timer.round_id:
            effects = getattr(self, self.timers[timer.purpose])(now_ms)
        elif (current := self._rounds.get(timer.round_id)) is not None and current.takes(timer.purpose):
            effects = getattr(self, self.timers[timer.purpose])(current, now_ms)
        return effects

    @abstractmethod
    def _on_start_up(self, now_ms: int) -> list[Effect]:
        """Continue from the stored records."""

    def _on_command(self, request: object, now_ms: int) -> list[Effect]:
        """Handle the owner's request; the default accepts none."""
        raise UsageError(f"{type(self).__name__} takes no command {type(request).__name__}")

    def name_of(self, member: bytes) -> str:
        """Return a member's or client's name with its short id, as people read it; the short id if it has no name."""
        name = self.client_name(member)
        if name:
            return f"{name} ({short_id(member)})"
        return self._former.get(member) or self._federation.person_name_of(member)

    def waiting(self, now_ms: int, most: int) -> list[Waiting]:
        """Return what open rounds wait for: the first `most` of them, in the order of their ids."""
        is_open = (current for _, current in sorted(self._rounds.items()) if current.is_awaited)
        return [self._waits(current, now_ms) for current in islice(is_open, most)]

    @abstractmethod
    def _waits(self, current: R, now_ms: int) -> Waiting:
        """Return what an open round waits for."""

    @property
    def timing(self) -> Timing:
        """How long this actor waits."""
        return self._timing

    def client_name(self, client: bytes) -> str:
        """Return a client's name, if this actor knows it; otherwise an empty text."""
        return ""

    @property
    def federation(self) -> Federation:
        """The newest federation file that this actor knows."""
        return self._federation

    def _on_file(self, sender: bytes, frame: Signed, body: FederationFile, now_ms: int) -> list[Effect]:
        """Switch to a newer federation file (§2.7). Raises `PeerError`."""
        newer = self._federation.newer(self._federation.opened(frame))
        if newer is None:
            return []
        older, self._federation = self._federation, newer
        gone = tuple(one for one in newer.revoked if not older.is_revoked(one))
        self._former |= {one: older.person_name_of(one) for one in gone if older.is_server(one)}
        changed = Report(FederationChanged(newer.number, newer.hash, gone))
        return [*self._file_effects(), *self._on_changed_file(now_ms), changed]

    def _file_effects(self) -> list[Effect]:
        """Store a federation file above number 1; a server also publishes it, for members that lack it."""
        if self._federation.number == 1:
            return []
        payload = encode(self._federation.frame)
        stored = Persist(FILES, self._federation.id, payload)
        if not self._federation.is_server(self.id):
            return [stored]
        return [stored, Send(Address(Channel.FEDERATION), b"", payload, retain=True)]

    @abstractmethod
    def _on_changed_file(self, now_ms: int) -> list[Effect]:
        """Apply a newer federation file."""

    def _drop(self, error: PeerError, sender: bytes) -> Report:
        """Count and report a peer's error."""
        self.dropped[error.code] += 1
        return Report(Dropped(error.code, sender, self._federation.named(str(error))))

    def _known_round(self, round_id: bytes) -> R:
        """Return a round. Raises `PeerError` if it is unknown."""
        current = self._rounds.get(round_id)
        if current is None:
            raise PeerError("unknown-round", found=round_id.hex(), expected="a round that this actor knows")
        return current

    def _node_round(self, compute: bytes, frame: Signed, body: RoundMessage) -> R:
        """Return the round of a message, if another of its Compute nodes signed that. Raises `PeerError`."""
        current = self._known_round(body.round_id)
        if compute not in current.computes or compute == self.id:
            raise PeerError("unknown-compute", found=compute.hex(), expected="another Compute node of the round")
        if body.announcement_hash != current.hash:
            raise PeerError("announcement", found="a message about another announcement", expected=current.hash.hex())
        verify_signed(frame, self._federation.compute(compute).key, self._federation_id)
        return current

    def _sign(self, body: Body) -> Signed:
        return sign(self._identity, self._federation_id, body)

    def _send(self, body: Body, channel: Channel, to: bytes = b"", *, retain: bool = False) -> Send:
        """Sign and send a message that belongs to no round."""
        return Send(Address(channel, to), b"", encode(self._sign(body)), retain=retain)


Actor = BaseActor[Any]
"""A client, a Compute node or a trainer."""
