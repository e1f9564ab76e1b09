"""Clients and Compute nodes that do not keep to the protocol: production actors with one step replaced, and strangers.

Each kind says what it can spoil (DESIGN §9). What it does not name must hold: privacy always does.

    value     the result may be wrong; it is not less private
    round     a round may end without a result
    joining   clients may decline, until they start anew
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.core.client import ClientActor
from dca_proto.core.client_round import Round as ClientRound
from dca_proto.core.codec import decode_frame, encode
from dca_proto.core.commit import ENTRY_BYTES, Entries
from dca_proto.core.compute import ComputeActor
from dca_proto.core.compute_round import Round as NodeRound
from dca_proto.core.effects import Address, Channel, Effect, Send, SetTimer
from dca_proto.core.errors import PeerError
from dca_proto.core.events import Event, Timer
from dca_proto.core.mechanism import LOCAL_MECHANISMS
from dca_proto.core.messages import (
    Abort,
    Announcement,
    Body,
    Frozen,
    FrozenList,
    Release,
    Sealed,
    Share,
    Signed,
)
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.plan import Plan
from dca_proto.core.round import list_hash, seal_answer
from dca_proto.core.sealing import ID_BYTES, NONCE_BYTES, Random
from dca_proto.core.upload import Contribution
from dca_proto.statistics import Statistic

FLOOD_EVERY_MS, FLOODS_MAX, FLOOD_MESSAGES = 1_500, 20, 10
_FAR = 1 << 62
_FAR_BYTE = b"\x55"  # of a vector beyond 2^62, a category beyond any, bits of which some may be beyond the last


class Hostile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of adversary.

    Attributes:
        does: in words. role: whom it replaces. actor: what runs in its place.
        spoils: what it may spoil, as documented: `value`, `round`, `joining`.
        amount_max: the largest size, where it has one. default: the size where the scenario says 0.
        is_stranger: whether it comes beside the population, and was never enrolled.
    """

    does: str
    role: Literal["client", "compute"]
    actor: Callable[..., ClientActor | ComputeActor]
    spoils: frozenset[str]
    amount_max: int = 0
    default: int = 0
    is_stranger: bool = False


# --- clients ----------------------------------------------------------------------------------------------------------


class HostileClient(ClientActor):
    """A client that does not keep to the protocol. `amount`: its size."""

    amount = 0


class OutOfRange(HostileClient):
    """Contributes numbers far beyond the announced bounds, the ring's largest; of reports, those that nobody can make.

    (A mechanism randomises no such value; who lies writes the bytes of the report.)
    """

    def _contribution(self, statistic: Statistic, body: Announcement) -> tuple[NDArray[np.int64], int, list[Effect]]:
        if body.mechanism in LOCAL_MECHANISMS:
            return super()._contribution(statistic, body)
        return np.full(statistic.dimension, _FAR, dtype=np.int64), body.rows_max, []

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, Release) and self._rounds[body.round_id].body.mechanism in LOCAL_MECHANISMS:
            body = msgspec.structs.replace(body, vector=_FAR_BYTE * len(body.vector))
        return super()._sign(body)


class Inconsistent(HostileClient):
    """Contributes shares that do not belong together, under one contribution id."""

    def _make(
        self, current: ClientRound, plan: Plan, value: NDArray[np.int64], session: bytes, position: int, charge: int
    ) -> Contribution:
        honest = self._random
        one_id = honest(ID_BYTES)
        self._random = _with_id(honest, one_id)
        try:
            first, second = (super(Inconsistent, self)._make(current, plan, value, session, position, charge)
                             for _ in range(2))  # fmt: skip
        finally:
            self._random = honest
        return _mixed(first, second, first.contribution)


class TwoFaced(HostileClient):
    """Sends one contribution to the first Compute node, and another to the others; in a local round, two releases or
    reports."""

    _released: Release

    def _make(
        self, current: ClientRound, plan: Plan, value: NDArray[np.int64], session: bytes, position: int, charge: int
    ) -> Contribution:
        first = super()._make(current, plan, value, session, position, charge)
        second = super()._make(current, plan, value, session, position, charge)
        return _mixed(first, second, first.contribution)

    def _sign(self, body: Body) -> Signed:
        if isinstance(body, Release):
            self._released = body
        return super()._sign(body)

    def _release(self, current: ClientRound, now_ms: int) -> list[Effect]:
        effects = super()._release(current, now_ms)
        if current.contribution is None:
            return effects
        other = msgspec.structs.replace(
            self._released, contribution=self._random(ID_BYTES), vector=bytes(len(self._released.vector))
        )
        sealed = seal_answer(self._sign(other), current.opened, self._random)
        return [*effects, Send(Address(Channel.TRAINER, current.body.trainer), current.id, sealed)]


def _with_id(random: Random, one_id: bytes) -> Random:
    return lambda size: one_id if size == ID_BYTES else random(size)


def _mixed(first: Contribution, second: Contribution, contribution: bytes) -> Contribution:
    messages = (first.messages[0], *second.messages[1:])
    return Contribution(contribution, messages, (first.receipt_tags[0], *second.receipt_tags[1:]))


class Sybil(HostileClient):
    """One of several ids of one owner: joins every round, so as to be counted, and never shares."""

    def _receive(self, sender: bytes, payload: bytes, now_ms: int) -> list[Effect]:
        return _without_shares(super()._receive(sender, payload, now_ms))

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        return _without_shares(super()._on_timer(timer, now_ms))


def _without_shares(effects: list[Effect]) -> list[Effect]:
    return [one for one in effects if not (isinstance(one, Send) and one.to.channel is Channel.COMPUTE)]


class Flooding(HostileClient):
    """Sends `amount` messages at a time to everybody: bytes without meaning, and shares that cannot be opened."""

    _floods = 0

    def _on_start_up(self, now_ms: int) -> list[Effect]:
        return [*super()._on_start_up(now_ms), SetTimer(Timer("flood"), now_ms + FLOOD_EVERY_MS)]

    def _on_timer(self, timer: Timer, now_ms: int) -> list[Effect]:
        if timer.purpose != "flood":
            return super()._on_timer(timer, now_ms)
        self._floods += 1
        again = [SetTimer(timer, now_ms + FLOOD_EVERY_MS)] if self._floods < FLOODS_MAX else []
        return [*(send for _ in range(self.amount) for send in self._junk()), *again]

    def _junk(self) -> list[Effect]:
        nodes = [Address(Channel.COMPUTE, member.id) for member in self._federation.computes]
        trainers = [Address(Channel.TRAINER, member.id) for member in self._federation.trainers]
        round_id = next(iter(self._rounds), bytes(ID_BYTES))
        share = Share(round_id, self._random(ID_BYTES), self._random(NONCE_BYTES), self._random(64))
        forged: list[Effect] = [Send(to, round_id, encode(share)) for to in nodes]
        return [*forged, *(Send(to, round_id, self._random(80)) for to in (*nodes, *trainers))]


# --- Compute nodes ----------------------------------------------------------------------------------------------------


class HostileCompute(ComputeActor):
    """A Compute node that does not keep to the protocol. `amount`: its size."""

    amount = 0


class Equivocating(HostileCompute):
    """Tells the first of its peers a shorter list than the others."""

    def _tell(self, current: NodeRound, peer: bytes, *, answer: bool) -> list[Effect]:
        if peer != current.peers(self.id)[0] or not current.stored.entries:
            return super()._tell(current, peer, answer=answer)
        entries = current.stored.entries[:-ENTRY_BYTES]
        hashed, count = list_hash(current.session, entries), len(entries) // ENTRY_BYTES
        to, known_as = Address(Channel.COMPUTE, peer), (PROTOCOL_VERSION, current.id, current.session)
        told = self._signed_to(to, current.id, Frozen(*known_as, hashed, count, answer))
        return [told, self._signed_to(to, current.id, FrozenList(*known_as, entries))]


class Dropping(HostileCompute):
    """Leaves `amount` honest clients out of its list."""

    def _freeze(self, current: NodeRound, now_ms: int) -> list[Effect]:
        for position in sorted(current.entries)[: self.amount]:
            del current.entries[position]
        return super()._freeze(current, now_ms)


class Altering(HostileCompute):
    """Adds what it likes to its partial sum."""

    def _release(self, current: NodeRound, agreed: Entries) -> list[Effect]:
        position = min(agreed)
        current.shares[position] = bytes(byte ^ 0xA5 for byte in current.shares[position])
        return super()._release(current, agreed)


class Withholding(HostileCompute):
    """Takes part in everything, and keeps its partial sum."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        return [one for one in super().handle(event, now_ms) if not _is_partial(one)]


def _is_partial(effect: Effect) -> bool:
    return (
        isinstance(effect, Send)
        and effect.to.channel is Channel.TRAINER
        and isinstance(decode_frame(effect.payload), Sealed)
    )


class Silent(HostileCompute):
    """Says that it is ready, and nothing more."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        speaks = not self._rounds
        effects = super().handle(event, now_ms)
        return effects if speaks else [one for one in effects if not isinstance(one, Send) or one.retain]


class AbortingLate(HostileCompute):
    """Signs that it has released nothing, right after it has released."""

    def _release(self, current: NodeRound, agreed: Entries) -> list[Effect]:
        lie = Abort(PROTOCOL_VERSION, current.id, current.session, "too-few", "nothing was released", 0, 0)
        return [*super()._release(current, agreed), Send(Address(Channel.ABORT), current.id, encode(self._sign(lie)))]


class CallingOld(HostileCompute):
    """Says of the ledgers of the first `amount` clients that they are old copies, and keeps none of their shares."""

    def _check_first(self, client: bytes, charge: int, kept: bytes | None) -> None:
        super()._check_first(client, charge, kept)
        first = sorted(client for current in self._rounds.values() if current.is_loaded
                       for client in current.roster.clients)[: self.amount]  # fmt: skip
        if client in first:
            raise PeerError("lie", found="a good share", expected="none")


_VALUE, _ROUND = frozenset({"value"}), frozenset({"round"})
_NOTHING: frozenset[str] = frozenset()

HOSTILE: dict[str, Hostile] = {
    "out-of-range": Hostile(does="contributes any numbers", role="client", actor=OutOfRange, spoils=_VALUE),
    "inconsistent": Hostile(does="contributes shares that do not match", role="client", actor=Inconsistent,
                            spoils=_VALUE),
    "two-faced": Hostile(does="contributes differently to different nodes", role="client", actor=TwoFaced,
                         spoils=_ROUND),
    "sybil": Hostile(does="joins and never shares", role="client", actor=Sybil, spoils=_ROUND),
    "flood": Hostile(does="floods everybody", role="client", actor=Flooding, spoils=_NOTHING, amount_max=1_000,
                     default=FLOOD_MESSAGES),
    "stranger": Hostile(does="joins without being enrolled", role="client", actor=Flooding, spoils=_NOTHING,
                        amount_max=1_000, default=FLOOD_MESSAGES, is_stranger=True),
    "copier": Hostile(does="sends others' ciphertexts as its own", role="client", actor=HostileClient,
                      spoils=_NOTHING),
    "equivocate": Hostile(does="tells its peers different lists", role="compute", actor=Equivocating, spoils=_ROUND),
    "drop-clients": Hostile(does="leaves clients out of its list", role="compute", actor=Dropping, spoils=_ROUND,
                            amount_max=10_000, default=1),
    "alter-sum": Hostile(does="alters its partial sum", role="compute", actor=Altering, spoils=_VALUE),
    "withhold-sum": Hostile(does="keeps its partial sum", role="compute", actor=Withholding, spoils=_ROUND),
    "silent": Hostile(does="says nothing after being ready", role="compute", actor=Silent, spoils=_ROUND),
    "abort-late": Hostile(does="signs an abort after its release", role="compute", actor=AbortingLate, spoils=_ROUND),
    "call-old": Hostile(does="calls ledgers old copies", role="compute", actor=CallingOld,
                        spoils=frozenset({"round", "joining"}), amount_max=10_000, default=1),
}  # fmt: skip
"""By name."""


def configured(kind: Hostile, amount: int) -> type[Any]:
    """The class of an adversary of that size."""
    base: Any = kind.actor
    return type(base.__name__, (base,), {"amount": amount or kind.default})
