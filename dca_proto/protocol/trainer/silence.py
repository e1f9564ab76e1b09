"""How a trainer notices Compute nodes that are lost, and goes on without them (DESIGN §4.8).

It asks a node of which it has heard nothing for two seconds, and reports it after eight. In a federation of more than
p + 1 nodes, it cancels the round if a node is silent while it collects, or if p + 1 nodes report that they have not
released and wait for nodes that do not report. The round may then be repeated without the silent nodes. Where each
round needs all nodes, it waits for a silent one until `commit_by`. If it hears fewer than p + 1 nodes, it may be cut
off itself: the others get as much time again. A node for which a cancelled round waited owes its abort or its
sum: it is left out of further rounds until it has sent one of them, or has another epoch key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from dca_proto.protocol import facts
from dca_proto.protocol.effects import Channel, Effect, Report, SetTimer
from dca_proto.protocol.events import Timer
from dca_proto.protocol.trainer.answers import Answering
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.trainer.round import WATCH, TrainerRound
from dca_proto.protocol.trainer.unannounced import WaitingRequests
from dca_proto.protocol.verified import Work
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Cancel, EpochKey, Progress, Query, SessionsWanted, Signed
from dca_proto.wording import unanswered

KEYS, ASK_NODES, LEAVE, DEBTS = "keys", "ask nodes", "leave", "debts"  # timers of requests that wait
_LEFT_OUT_BITS = 3
_TURNS_UNHURRIED = 16  # of `Timing.watch_ms`


class Watching(Answering):
    """The part of a trainer that watches the Compute nodes of its rounds."""

    _waiting: WaitingRequests
    _old_debtors: set[bytes]  # nodes that owed an earlier process something, until a request has waited for them

    def _watch(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Begin to watch a round's Compute nodes."""
        current.watched_ms = now_ms
        if not current.is_summed or current.stored.cancelled:
            return []
        return [self._watch_again(current, now_ms)]

    def _watch_again(self, current: TrainerRound, now_ms: int) -> SetTimer:
        current.watch_due_ms = now_ms + self._timing.watch_ms
        return current.timer(WATCH, current.watch_due_ms)

    def _spare(self, nodes: int, current: TrainerRound | None = None) -> int:
        """Return how many of so many nodes may be lost: by p now, and in a round by what returns its charge (§4.8)."""
        return nodes - (self._federation.p + 1 if current is None else self._needed(current))

    def _quiet_ms(self, current: TrainerRound, node: bytes, now_ms: int) -> int:
        """Return for how long a node has not been heard."""
        return now_ms - max(current.heard.get(node, 0), current.watched_ms)

    def _silent_ms(self, current: TrainerRound) -> int:
        """Return after what time without a message a node is silent.

        One that agrees on keys, adds up masks and opens proofs answers nobody meanwhile.
        """
        if current.takes("close"):
            return self._timing.silent_ms
        validated = self._validated(current)
        words = validated.dimension if validated.statement is None else validated.statement.words
        return self._timing.silent_ms + Work(words, validated.kind.clients).node_ms

    def _on_watch(self, current: TrainerRound, now_ms: int) -> list[Effect]:
        """Ask the quiet nodes, and cancel the round if it cannot end with all of them."""
        silent_ms = self._silent_ms(current)
        if now_ms - current.watch_due_ms >= self._timing.silent_ms // 2:
            current.watched_ms = now_ms  # this process was busy or asleep: what nodes sent meanwhile may still wait
        waiting = [node for node in current.computes if node not in current.partials]
        quiet = {node: self._quiet_ms(current, node, now_ms) for node in waiting}
        due = [node for node in waiting if self._is_due(current, node, now_ms)]
        current.asked |= dict.fromkeys(due, now_ms)
        query = encode(self._sign(Query(current.id, current.hash))) if due else b""
        asked = [current.send(query, Channel.COMPUTE, node) for node in due]
        silent = tuple(node for node in waiting if quiet[node] >= silent_ms)
        lately_ms = silent_ms * 3 // 4  # who answers each question is heard every second look, and looks are late
        heard = sum(now_ms - current.heard.get(node, 0) < lately_ms for node in current.computes)
        if self._spare(heard, current) < 0:
            current.cut_off_ms = now_ms
        if not heard:
            current.alone_ms = now_ms
        cancelled = self._cancel_if_useless(current, silent, now_ms)
        told = self._tell_silent(current, silent, now_ms) if not cancelled else []
        return cancelled or [*told, *asked, self._watch_again(current, now_ms)]

    def _is_due(self, current: TrainerRound, node: bytes, now_ms: int) -> bool:
        """Return True if a node has been quiet for so long that it should be asked now.

        Where every round needs all nodes, nothing hurries: one question for each message of a node, then one in a
        while. On a slow link, more of them would fill the queue of the trainer with answers.
        """
        quiet_ms = self._quiet_ms(current, node, now_ms)
        turns = quiet_ms // self._timing.watch_ms
        if self._spare(len(self._federation.computes), current) < 1:
            asked_ms = current.asked.get(node, 0)  # looks are late by some ms: a question must not hang on one of them
            is_answered = asked_ms <= now_ms - quiet_ms
            return turns > 0 and (is_answered or now_ms - asked_ms >= _TURNS_UNHURRIED * self._timing.watch_ms)
        return turns > 0 and (quiet_ms < self._timing.silent_ms or turns % 2 == 0)

    def _tell_silent(self, current: TrainerRound, silent: tuple[bytes, ...], now_ms: int) -> list[Effect]:
        """Report the silent nodes, whenever they are others than before."""
        if silent == current.told:
            return []
        current.told = silent
        others = tuple(node for node in current.computes if node not in silent)
        waited_ms = max((self._quiet_ms(current, node, now_ms) for node in silent), default=0)
        spare, is_released = self._spare(len(others), current), bool(silent and current.partials)
        waits = spare < 0 or is_released  # a sum without all parts is none
        until_ms = max(self._gives_up_ms(current, silent, now_ms), now_ms) if waits else 0
        lost = current.with_lost({node: now_ms - self._quiet_ms(current, node, now_ms) for node in silent})
        return [
            current.store(lost=lost),
            Report(facts.NodesSilent(current.id, silent, waited_ms, others, spare, until_ms, is_released=is_released)),
        ]

    def lost_nodes(self, now_ms: int) -> tuple[facts.NodesSilent, dict[bytes, int]] | None:
        """Return which nodes do not answer now or owe something, as a fact of no round, and since when; None if none.

        The others are those of the federation.
        """
        open_rounds = [current for current in self._rounds.values() if current.is_open]
        lost = self._owing_since()
        for current in open_rounds:
            lost |= {node: current.last_heard_ms(node) for node in current.told if node in self._named(current.told)}
        if not lost:
            return None
        waits = [self._gives_up_ms(one, one.told, now_ms) for one in open_rounds if one.told]
        others = tuple(member.id for member in self._federation.computes if member.id not in lost)
        waited_ms = max(now_ms - min(lost.values()), 0)  # the clock may have been set back
        spare = self._spare(len(others))
        is_released = any(one.told and one.partials for one in open_rounds)
        until_ms = max(now_ms, *waits) if waits and (spare < 0 or is_released) else 0
        about = (b"", tuple(lost), waited_ms, others, spare, until_ms, bool(waits), is_released)
        return facts.NodesSilent(*about), lost

    def _gives_up_ms(self, current: TrainerRound, lost: tuple[bytes, ...], now_ms: int) -> int:
        """Return until when a round waits for silent nodes if the others are too few to repeat it (§4.8).

        Where each round needs all nodes, they have until `commit_by` to come back. The request may state less.
        """
        timing, commit_by_ms = self._timing, current.opened.body.commit_by_ms
        if current.partials:
            return commit_by_ms + timing.abort_grace_ms
        wait_ms, latest_ms = current.stored.request.wait_ms, current.end_ms
        if len(lost) < len(current.computes):  # otherwise its own connection may be the cause
            has_spare = self._spare(len(self._federation.computes), current) >= 1
            wait_ms, latest_ms = (wait_ms or timing.hopeless_ms, latest_ms) if has_spare else (wait_ms, commit_by_ms)
        if not wait_ms:
            return latest_ms
        quiet_ms = min((self._quiet_ms(current, node, now_ms) for node in lost), default=0)
        return min(now_ms - quiet_ms + wait_ms, latest_ms)

    def _cancel_if_useless(self, current: TrainerRound, silent: tuple[bytes, ...], now_ms: int) -> list[Effect]:
        """Cancel a round that waits for silent nodes, if p + 1 others are left to abort and to repeat it."""
        lost = silent if current.takes("close") else self._waited_for(current, now_ms)
        if silent and not current.partials and self._spare(len(current.computes) - len(silent), current) < 0:
            lost = silent
        others = [node for node in current.computes if node not in lost and node not in current.partials]
        stated_ms = current.stored.request.wait_ms
        if lost and self._spare(len(others), current) < 0:  # a repeat needs one of them: give it time to come back
            is_alone = not stated_ms and now_ms - current.alone_ms < self._timing.hopeless_ms
            lost = lost if now_ms >= self._gives_up_ms(current, lost, now_ms) and not is_alone else ()
        elif current.takes("close") and now_ms - current.cut_off_ms < self._timing.silent_ms:
            lost = ()  # this trainer was cut off a moment ago: more answers may be on their way
        if not lost or not (others or stated_ms):  # it has heard nobody: its own connection may be the cause
            return []
        waited_ms = max(self._quiet_ms(current, node, now_ms) for node in lost)
        reason = unanswered([*map(self._federation.name_of, lost)], max(waited_ms, self._timing.silent_ms))
        return [*self._tell_silent(current, lost, now_ms), *self._cancel(current, reason, now_ms, lost)]

    def _waited_for(self, current: TrainerRound, now_ms: int) -> tuple[bytes, ...]:
        """Return the nodes for which p + 1 others have waited in vain; none of these others has released.

        The others were heard a moment ago. A node that reports as they do is not waited for in vain.
        """
        fresh = {
            node: {current.computes[place] for place in report.waits_for}
            for node, report in current.reports.items()
            if report.stage and node not in current.partials
            and self._quiet_ms(current, node, now_ms) < self._silent_ms(current)
        }  # fmt: skip
        lost = {peer for peers in fresh.values() for peer in peers} - fresh.keys()
        stuck = [node for node, peers in fresh.items() if peers & lost]
        if self._spare(len(stuck), current) < 0:
            current.stuck_ms = 0
            return ()
        current.stuck_ms = current.stuck_ms or now_ms
        is_over = now_ms - current.stuck_ms >= self._silent_ms(current)
        return tuple(node for node in current.computes if node in lost) if is_over else ()

    def _note_report(self, current: TrainerRound, node: bytes, report: Progress) -> None:
        """Keep a node's newest report: of the latest stage, with the fewest nodes that it waits for."""
        known, places = current.reports.get(node), set(report.waits_for)
        if max(places, default=0) >= len(current.computes):
            return
        is_older = known is not None and report.stage < known.stage
        if is_older or (known is not None and report.stage == known.stage and not places <= set(known.waits_for)):
            return  # it was repeated
        current.reports[node] = report

    # --- requests that cannot be announced yet ------------------------------------------------------------------------

    def _wait(self, request: OpenRound, now_ms: int) -> list[Effect]:
        """Let a request wait: ask for what it lacks, and set its timers."""
        until = SetTimer(Timer(KEYS, request.round_id), self._waiting.until_ms(request, now_ms))
        leave_ms = min(self._timing.leave_ms, request.collect_ms // 2)
        leave = SetTimer(Timer(LEAVE, request.round_id), now_ms + leave_ms)
        return [*self._ask_for(request, now_ms), until, *([leave] if request.kind.is_summed else [])]

    def _ask_for(self, request: OpenRound, now_ms: int) -> list[Effect]:
        """Ask for what a waiting request lacks, and set the time to ask again."""
        missing = self._waiting.missing(request, now_ms)
        questions = self._ask(self._waiting.lacking(request, now_ms), now_ms, missing)
        wait_ms = self._timing.resend_after_ms(self._waiting.count_question(request.round_id), self._random(1))
        return [*questions, SetTimer(Timer(ASK_NODES, request.round_id), now_ms + wait_ms)]

    def _waits_for_keys(self, request: OpenRound, now_ms: int) -> Report:
        """Name the nodes that have not answered a question, each time that it is repeated."""
        return Report(facts.WaitingForKeys(request.round_id, self._waiting.lacking(request, now_ms)))

    def _ask(self, computes: Iterable[bytes], now_ms: int, keyless: Collection[bytes] = ()) -> list[Effect]:
        """Ask Compute nodes how many clients have a session, and the `keyless` ones for their epoch key."""
        stamp, nonce_of = self._federation.stamp, self._waiting.nonce_of
        asked = {one: (stamp, one in keyless, nonce_of(one, self._random, now_ms)) for one in computes}
        return [self._send(SessionsWanted(*body), Channel.COMPUTE, one) for one, body in asked.items()]

    def _begin(self, request: OpenRound, now_ms: int) -> tuple[OpenRound, list[Effect]]:
        """Let a request wait, with the nodes that its round may have; return it, and the effects.

        A node that owed an earlier process something may be back by now: it gets a moment to send that.
        """
        request, owing = self._present(request), self._owing_since()
        chosen = self._chosen(request.computes)
        late = tuple(one for one in request.computes if one in owing and one in self._old_debtors and one not in chosen)
        self._old_debtors.difference_update(late)
        kept = {*chosen, *late}
        lost = {node: owing.get(node, now_ms) for node in request.computes if node not in kept}
        self._waiting.note_lost(request.round_id, lost)
        request = msgspec.structs.replace(request, computes=tuple(node for node in request.computes if node in kept))
        self._waiting.add(request, now_ms, late)
        reminders = [effect for node in late for effect in self._remind(node, now_ms)]
        timer = [SetTimer(Timer(DEBTS, request.round_id), now_ms + self._timing.watch_ms)] if late else []
        return request, [*reminders, *timer]

    def _on_debts(self, round_id: bytes, now_ms: int) -> list[Effect]:
        """Announce a waiting request without the nodes that still owe something."""
        late, owing = self._waiting.leave_debtors(round_id), self._owing_since()
        self._waiting.note_lost(round_id, {node: owing.get(node, now_ms) for node in late})
        return self._announce_waiting(now_ms)

    def _on_paid(self, now_ms: int) -> list[Effect]:
        """Announce the requests that waited for nodes that owe nothing any more."""
        is_paid = self._waiting.has_debtors and self._waiting.note_paid(self._owing_since())
        return self._announce_waiting(now_ms) if is_paid else []

    def _leave_out(self, round_id: bytes, now_ms: int) -> list[Effect]:
        """Announce a waiting request without the nodes that have not answered, if it can do without them.

        Otherwise take back those that were left out because they flapped, or owed something: they may answer. Those
        that still owe something come last. Tell for how long it waits, and look again in a moment.
        """
        request = self._waiting.requests.get(round_id)
        if request is None:
            return []
        if not self._waiting.lacking(request, now_ms):  # reports of an open round have shown that the nodes are up
            return self._announce_waiting(now_ms)
        left_out = self._waiting.leave_out(round_id, self._federation.p + 1, now_ms)
        if not left_out:
            again = SetTimer(Timer(LEAVE, round_id), now_ms + self._timing.watch_ms)
            silent = self._tell_lacking(request, now_ms)
            back = self._waiting.take_back(round_id, self._owing_since()) or self._waiting.take_back(round_id)
            keyless = self._waiting.missing(self._waiting.requests[round_id], now_ms)
            return [*silent, *self._ask(back, now_ms, keyless), again]
        waited_ms, _ = self._waiting.waits_ms(request, now_ms)
        self._waiting.note_lost(round_id, dict.fromkeys(left_out, now_ms - waited_ms))
        others = self._waiting.requests[round_id].computes
        spare = self._spare(len(others))
        told = Report(facts.NodesSilent(round_id, left_out, waited_ms, others, spare, is_charged=False))
        return [told, *self._announce_waiting(now_ms)]

    def _tell_lacking(self, request: OpenRound, now_ms: int) -> list[Effect]:
        """Report the silent nodes for which a request waits, whenever they are others than before."""
        silent = self._waiting.silent(request, now_ms)
        if not self._waiting.is_news(request.round_id, silent):
            return []
        others = tuple(node for node in request.computes if node not in silent)
        waited_ms, until_ms = self._waiting.waits_ms(request, now_ms)
        spare = self._spare(len(others))
        return [Report(facts.NodesSilent(request.round_id, silent, waited_ms, others, spare, until_ms, False))]

    @abstractmethod
    def _announce_waiting(self, now_ms: int) -> list[Effect]:
        """Announce every waiting round for which nothing is missing any more."""

    # --- nodes that owe an abort or a sum -----------------------------------------------------------------------------

    def _present(self, request: OpenRound) -> OpenRound:
        """Return the request without nodes that have left the federation; over all of its nodes, if others are too few.

        Nodes may be added or replaced, and p may rise, while a job runs. An id that never was a node's stays.
        """
        named = self._named(request.computes)
        present = tuple(node for node in request.computes if node in named)
        if request.computes and self._spare(len(present)) < 0:
            is_known = all(node in named or self._federation.is_revoked(node) for node in request.computes)
            present = tuple(member.id for member in self._federation.computes) if is_known else request.computes
        return msgspec.structs.replace(request, computes=present)

    def _chosen(self, computes: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the nodes of a new round: those that owe nothing and do not flap, if they are enough."""
        owing, flapping = self._owing_since(), self._flapping()
        others = tuple(node for node in computes if node not in owing)
        steady = tuple(node for node in others if node not in flapping)
        return next((nodes for nodes in (steady, others) if self._spare(len(nodes)) >= 0), computes)

    def _flapping(self) -> set[bytes]:
        """Return the nodes that were lost in each of the last rounds that they were in, and are left out for a while.

        After the second round in a row a node is left out of one request, then of two, four, and at most eight.
        """
        rounds = sorted(self._rounds.values(), key=lambda current: current.stored.announced_ms)
        losses, left_out = Counter[bytes](), Counter[bytes]()
        for current in rounds if any(one.stored.silent for one in rounds) else ():
            for node in losses.keys() - current.computes if current.is_summed else ():
                left_out[node] += not current.stored.request.repeats
            for node in current.partials:
                losses[node] = 0
            for node in {*current.stored.silent} - current.partials.keys():
                losses[node], left_out[node] = losses[node] + 1, 0
        waits = {node: 1 << min(lost - 2, _LEFT_OUT_BITS) for node, lost in losses.items() if lost > 1}
        return {node for node, requests in waits.items() if left_out[node] < requests}

    def _owing_since(self) -> dict[bytes, int]:
        """Return the nodes that owe something, and since when they have not been heard."""
        rounds = sorted(self._rounds.values(), key=lambda current: -current.stored.announced_ms)
        return {
            node: dict(current.stored.lost).get(node, current.stored.announced_ms)
            for current in rounds
            for node in self._owing(current)
            if node in self._named([node])
        }

    def _owing(self, current: TrainerRound) -> list[bytes]:
        """Return the nodes that owe a round their abort or their sum."""
        return [key.compute for key in _unpaid(current) if not self._is_void(key)]

    def _is_void(self, named: EpochKey) -> bool:
        """Return True if a node cannot pay what it owes under this key any more, because it has another one.

        A node changes its key within an epoch if its owner gives it a fresh store. A node that does so again and again
        withholds its aborts on purpose: it is not believed twice in an epoch.
        """
        known = self._waiting.newest_key(named.compute)
        if known is None or known.public == named.public:
            return False
        debts = (key for current in self._rounds.values() for key in _unpaid(current))
        publics = {key.public for key in debts if (key.compute, key.epoch) == (named.compute, named.epoch)}
        return known.epoch != named.epoch or len(publics) == 1

    def _remind(self, node: bytes, now_ms: int) -> list[Effect]:
        """Ask a node that is back to abort the cancelled rounds to which it owes that."""
        owed = [current for current in self._rounds.values() if node in self._owing(current)]
        about = ((current, Cancel(current.id, current.hash, current.stored.announcement)) for current in owed)
        return [current.send(encode(self._sign(body)), Channel.COMPUTE, node) for current, body in about
                if self._pace.is_due(current.id + node, now_ms)]  # fmt: skip

    # --- repeats ------------------------------------------------------------------------------------------------------

    def _may_repeat(self, round_id: bytes) -> bool:
        """Return True if a round was cancelled because of silent nodes, and its charge came back."""
        current = self._rounds.get(round_id)
        return current is not None and bool(current.stored.silent) and self._is_returned(current)

    def _aborts_of(self, request: OpenRound) -> tuple[Signed, ...]:
        """Return the aborts of the rounds that a request repeats; of one that was forgotten, none are left."""
        known = (self._rounds[round_id] for round_id in request.repeats if round_id in self._rounds)
        return tuple(frame for current in known for frame in current.stored.aborts)


def _unpaid(current: TrainerRound) -> list[EpochKey]:
    """Return the named keys of nodes for which a round waited in vain, and which have sent no abort or sum since."""
    stored = current.stored
    lost = {*stored.silent} - {*stored.aborted_by, *current.partials}
    return [key for key in current.opened.epochs if key.compute in lost] if lost else []
