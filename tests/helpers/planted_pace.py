"""Faulty copies of production actors whose faults hide behind redundancy: a resend, a deadline or a peer does it later.

Each stands beside the scenario that shows it at once, and the invariant that its checker guards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dca_proto.protocol.actor import RESEND
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.client.round import ASK
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import PROGRESS
from dca_proto.protocol.effects import Channel, Effect, Send, SetTimer
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.params import Timing
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.round import CLOSE_BY
from dca_proto.protocol.wire import messages as m
from emulator.sim.link import LinkOptions
from emulator.trials.checkers.pace import kind_of
from emulator.trials.scenario import EPOCH_MS_MIN, Fault, Population, Rounds, Scenario

STEADY = LinkOptions(delay_ms=10, jitter_ms=0, duplicate=0, reorder=0)
DOUBLED = msgspec.structs.replace(STEADY, duplicate=1.0)
ALONE = Fault(kind="partition-up", actor="client 0", at_ms=500, for_ms=75_000)
"""Nobody hears client 0. It resends its contribution, and asks for aborts after the round's end."""
UNHEARD = msgspec.structs.replace(ALONE, actor="clients")


def scenario(
    *faults: Fault, network: LinkOptions = STEADY, heal_ms: int = 0, epoch_ms: int = 0, **rounds: Any
) -> Scenario:
    windows = {"collect_s": 8, "commit_s": 8}
    return Scenario(
        seed=1,
        heal_ms=heal_ms,
        epoch_ms=epoch_ms or Timing().epoch_ms,
        population=Population(clients=4, computes=2),
        rounds=Rounds(**{**windows, **rounds}),
        network=network,
        faults=faults,
    )


def sends_less(kind: type, *kinds: type, most: int = 1) -> type:
    """Return a class whose actors send only the first messages of some kinds, for each receiver and round."""

    class Less(kind):  # type: ignore[misc]
        def handle(self, event: Any, now_ms: int) -> list[Effect]:
            sent = self.__dict__.setdefault("_sent_so_far", {})
            effects = []
            for effect in super().handle(event, now_ms):
                if isinstance(effect, Send) and kind_of(effect.payload) in kinds:
                    key = effect.to, effect.round_id, kind_of(effect.payload)
                    sent[key] = sent.get(key, 0) + 1
                    if sent[key] > most:
                        continue
                effects.append(effect)
            return effects

    return Less


def without_timer(kind: type, *purposes: str) -> type:
    """Return a class whose actors never set some timers."""

    class Timerless(kind):  # type: ignore[misc]
        def handle(self, event: Any, now_ms: int) -> list[Effect]:
            effects = super().handle(event, now_ms)
            return [one for one in effects if not (isinstance(one, SetTimer) and one.timer.purpose in purposes)]

    return Timerless


class Constant(Timing, frozen=True, kw_only=True):
    """No back-off."""

    def resend_after_ms(self, attempt: int, entropy: bytes, size: int = 0) -> int:
        return super().resend_after_ms(0, entropy, size)


class Abrupt(Timing, frozen=True, kw_only=True):
    """No jitter."""

    def resend_after_ms(self, attempt: int, entropy: bytes, size: int = 0) -> int:
        return super().resend_after_ms(attempt, b"\0", size)


def timed(kind: type, timing: type[Timing]) -> type:
    """Return a class whose actors use other timing."""

    class Timed(kind):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            usual = named.pop("timing")
            super().__init__(*given, timing=timing(**msgspec.structs.asdict(usual)), **named)

    return Timed


class GoesOn(ComputeNode):
    """Goes on after a peer's abort."""

    def _on_abort(self, *given: Any) -> list[Effect]:
        return []


class KeyOnce(ComputeNode):
    """Publishes its epoch key when it makes it, and never again."""

    def _turn_epoch(self, now_ms: int, **more: bool) -> list[Effect]:
        effects = super()._turn_epoch(now_ms, **more)
        at_ms = self._keys.next_turn_ms(now_ms)
        return [msgspec.structs.replace(one, at_ms=at_ms) if isinstance(one, SetTimer) else one for one in effects]


class Hasty(Trainer):
    """Closes as soon as n_min contributions are there."""

    def _close_when_complete(self, current: Any, now_ms: int) -> list[Effect]:
        enough = current.takes("close") and current.arrivals.total >= current.opened.body.kind.n_min
        return self._close(current, "quiet", now_ms) if enough else super()._close_when_complete(current, now_ms)


class Unpaced(ComputeNode):
    """Reports each contribution at once."""

    def _keep(self, current: Any, *given: Any) -> list[Effect]:
        return [*super()._keep(current, *given), *self._messages_for_trainer(current)]


class Storm(ComputeNode):
    """Asks for a Hello whenever it gets a contribution."""

    def _on_contribution(self, sender: bytes, message: Any, now_ms: int) -> list[Effect]:
        wanted = self._send(m.HelloWanted(sender), Channel.CLIENT, sender)
        return [*super()._on_contribution(sender, message, now_ms), wanted]


class Late(ComputeNode):
    """Sends its lists with the first resend only."""

    def _freeze(self, *given: Any) -> list[Effect]:
        effects = super()._freeze(*given)
        return [one for one in effects if not (isinstance(one, Send) and kind_of(one.payload) is m.Sealed)]


class Deaf(ComputeNode):
    """Does not heed the trainer's `Close`."""

    def _on_close(self, *given: Any) -> list[Effect]:
        return []


class Twice(ComputeNode):
    """Sends every message twice."""

    def handle(self, event: Any, now_ms: int) -> list[Effect]:
        effects = super().handle(event, now_ms)
        return [*effects, *(one for one in effects if isinstance(one, Send))]


class Remembers(ComputeNode):
    """Keeps the contributions of ended rounds in memory."""

    def _finish(self, current: Any, *given: Any) -> list[Effect]:
        self.__dict__.setdefault("_past", []).append(dict(current.kept))
        return super()._finish(current, *given)


class RemembersKeys(ComputeNode):
    """Keeps all pair keys in memory."""

    def _turn_epoch(self, now_ms: int, **more: bool) -> list[Effect]:
        past = self.__dict__.setdefault("_past", [])
        past += [agreed.keys.copy() for agreed in self._sessions._agreed.values()]
        return super()._turn_epoch(now_ms, **more)


class RemembersRounds(Client):
    """Keeps the ids of forgotten rounds in memory."""

    def _forget(self, current: Any, now_ms: int) -> list[Effect]:
        self.__dict__.setdefault("_past", []).append(current.id)
        return super()._forget(current, now_ms)


class RemembersMessages(Client):
    """Keeps a message in memory after its receipt."""

    def _on_receipt(self, sender: bytes, receipt: Any, now_ms: int) -> list[Effect]:
        current = self._rounds.get(receipt.round_id)
        if current is not None:
            self.__dict__.setdefault("_past", []).append(current.stored.outbound)
        return super()._on_receipt(sender, receipt, now_ms)


class Forgetful(Ledger):
    """Has a total that misses later charges."""

    def charge(self, charge: Any) -> Any:
        total = self._total
        write = super().charge(charge)
        self._total = total
        return write


class Miscounts(Client):
    """Has that ledger."""

    def _restore(self, records: Any) -> None:
        super()._restore(records)
        self.ledger = Forgetful(self.ledger.charges)


HIDDEN: dict[str, tuple[str, type, Scenario, int]] = {
    "goes on after a peer's abort": ("compute", GoesOn, scenario(Fault(kind="floors", actor="compute 0")), 15),
    "asks for aborts once": ("client", sends_less(Client, m.AbortWanted), scenario(ALONE, heal_ms=80_000), 13),
    "sets no timer to ask again": ("client", without_timer(Client, ASK), scenario(ALONE, heal_ms=150_000), 13),
    "publishes its epoch key once": ("compute", KeyOnce, scenario(epoch_ms=EPOCH_MS_MIN), 13),
    "closes without quiet": ("trainer", Hasty, scenario(ALONE), 15),
    "does not close at close_by": ("trainer", without_timer(Trainer, CLOSE_BY), scenario(
        Fault(kind="crash", actor="clients"),
        Fault(kind="clock-behind", actor="computes", for_ms=60_000, amount=3_000),
    ), 15),
    "resends without back-off": ("client", timed(Client, Constant), scenario(ALONE, heal_ms=80_000), 13),
    "resends without jitter": ("client", timed(Client, Abrupt), scenario(UNHEARD, heal_ms=80_000, count=2), 13),
    "announces to clients once": ("trainer", sends_less(Trainer, m.Announcement), scenario(
        Fault(kind="crash", actor="client 0"), tolerate=0), 13),
    "never resends": ("client", without_timer(Client, RESEND), scenario(ALONE), 13),
    "sends one receipt": ("compute", sends_less(ComputeNode, m.Receipt), scenario(
        Fault(kind="partition-down", actor="clients", at_ms=1_045, for_ms=9_000)), 15),
    "sends no receipt": ("compute", sends_less(ComputeNode, m.Receipt, most=0), scenario(), 15),
    "reports each contribution": ("compute", Unpaced, scenario(), 13),
    "reports no contribution": ("compute", without_timer(ComputeNode, PROGRESS), scenario(), 15),
    "asks for a Hello all the time": ("compute", Storm, scenario(network=DOUBLED), 13),
    "answers no HelloWanted": ("client", sends_less(Client, m.Hello), scenario(
        Fault(kind="swallow", actor="client 0", for_ms=500, amount=1.0)), 15),
    "sends lists late": ("compute", Late, scenario(), 11),
    "does not heed a Close": ("compute", Deaf, scenario(), 15),
    "sends everything twice": ("compute", Twice, scenario(), 13),
    "remembers contributions": ("compute", Remembers, scenario(), 14),
    "remembers pair keys": ("compute", RemembersKeys, scenario(epoch_ms=EPOCH_MS_MIN), 14),
    "remembers rounds": ("client", RemembersRounds, scenario(epoch_ms=EPOCH_MS_MIN), 14),
    "remembers messages": ("client", RemembersMessages, scenario(), 14),
    "miscounts in memory": ("client", Miscounts, scenario(count=2, every_ms=10_000), 4),
}  # fmt: skip
"""By what the actor does wrong: its role, its class, the scenario and the invariant."""
