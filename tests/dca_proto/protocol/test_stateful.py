"""The protocol under arbitrary schedules: loss, duplicates, reordering, crashes, power failures and time.

Hypothesis drives a small swarm of production actors message by message. The invariants of the architecture are checked
after every step; at the end the network heals, and every round must have ended. The examples are derived from the
test's code alone, so that a run is reproducible.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from round_helpers import body_of, exact_actors, exact_sum, kind_of

from dca_proto.privacy import accounting
from dca_proto.protocol.effects import Forget, Persist, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import LedgerReused, NodeAborted, Released, RoundCompleted
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import decode_frame
from dca_proto.protocol.wire.messages import Answer, Contribution, Sealed
from dca_proto.testing import Network

POLICY = Policy(clients_min=1, honest_min=1, epsilon_per_round_max=1.0, epsilon_per_period_max=1.5)
ROUNDS_MAX = 3  # one more than the budget allows
DOWN_MAX = 2  # at the same time: with more, hardly any round would come far
SECOND_MS, HOUR_MS = 1000, 3600 * 1000


class Chaos(Network):
    """A network whose messages wait until a test delivers, loses or repeats one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.healed = False  # then all is delivered at once
        self.uncharged: list[bytes] = []

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def deliver(self) -> None:
        if self.healed:
            super().deliver()

    def pick(self, index: int, *, keep: bool) -> Any:
        envelope = self._queue[index % len(self._queue)]
        if not keep:
            del self._queue[index % len(self._queue)]
        return envelope

    def deliver_one(self, index: int, *, keep: bool = False) -> None:
        envelope = self.pick(index, keep=keep)
        for receiver in self._receivers(envelope.to):
            if receiver not in self.down:
                self.handle(receiver, Received(envelope.sender, envelope.payload))

    def fail_while_handling(self, index: int, *, committed: bool) -> None:
        """The power fails when the event has been handled: its writes are durable, or not; nothing was sent."""
        envelope = self.pick(index, keep=True)
        for receiver in self._receivers(envelope.to)[:1]:
            if receiver in self.down:
                continue
            effects = self.actors[receiver].handle(Received(envelope.sender, envelope.payload), self.now_ms)
            for effect in effects:
                if committed and isinstance(effect, Persist | Forget):
                    self._carry_out(receiver, effect)
            self.crash(receiver)

    def _post(self, sender: bytes, send: Send) -> None:
        is_contribution = isinstance(decode_frame(send.payload), Contribution)
        if is_contribution and ("ledger", send.round_id) not in self.stores[sender]:
            self.uncharged.append(sender)
        super()._post(sender, send)


class Rounds(RuleBasedStateMachine):
    """Up to three rounds of one small swarm, interleaved."""

    @initialize(
        clients=st.integers(4, 8), computes=st.integers(2, 3), tolerate=st.integers(0, 2), colluders=st.integers(0, 1)
    )
    def begin(self, clients: int, computes: int, tolerate: int, colluders: int) -> None:
        self.actors = exact_actors(clients, computes, policy=POLICY)
        self.network = self.actors.network(Chaos())
        self.terms = {"tolerate": tolerate, "colluders": min(colluders, tolerate)}
        self.requests: list[Any] = []
        self.network.healed = True
        self.network.deliver()
        self.network.healed = False
        self.open_round(60)

    @property
    def trainer(self) -> bytes:
        return self.actors.trainer_identity.id

    # --- what can happen ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.requests) < ROUNDS_MAX and self.trainer not in self.network.down)
    @rule(collect_s=st.sampled_from([20, 60]))
    def open_round(self, collect_s: int) -> None:
        self.requests.append(self.actors.request(collect_s=collect_s, **self.terms))
        self.network.command(self.trainer, self.requests[-1])

    @precondition(lambda self: self.network.waiting)
    @rule(count=st.integers(1, 60))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(min(count, self.network.waiting)):
            self.network.deliver_one(0)

    @precondition(lambda self: self.network.waiting)
    @rule(index=st.integers(0, 200), keep=st.booleans())
    def deliver_any(self, index: int, keep: bool) -> None:
        """Out of order, and, where it is kept, once more later."""
        self.network.deliver_one(index, keep=keep)

    @precondition(lambda self: self.network.waiting)
    @rule(index=st.integers(0, 200))
    def lose(self, index: int) -> None:
        self.network.pick(index, keep=False)

    @precondition(lambda self: self.network.waiting and len(self.network.down) < DOWN_MAX)
    @rule(index=st.integers(0, 200), committed=st.booleans())
    def power_fails(self, index: int, committed: bool) -> None:
        self.network.fail_while_handling(index, committed=committed)

    @precondition(lambda self: len(self.network.down) < DOWN_MAX)
    @rule(index=st.integers(0, 50))
    def crash(self, index: int) -> None:
        everybody = sorted(self.network.actors)
        self.network.crash(everybody[index % len(everybody)])

    @precondition(lambda self: self.network.down)
    @rule(index=st.integers(0, 50))
    def restart(self, index: int) -> None:
        down = sorted(self.network.down)
        self.network.restart(down[index % len(down)])

    @rule(seconds=st.sampled_from([1, 3, 10, 30]))
    def let_time_pass(self, seconds: int) -> None:
        self.network.advance(self.network.now_ms + seconds * SECOND_MS)

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def each_node_releases_at_most_one_partial_sum(self) -> None:
        """1: one sealed answer of a node to a round, byte for byte, however often; and never after an abort."""
        answers = defaultdict(set)
        for one in self.network.sent:
            if one.sender in self.actors.computes and kind_of(one) is Sealed:
                answers[one.sender, one.round_id].add(one.payload)
        assert all(len(payloads) == 1 for payloads in answers.values())
        aborted = {(who, fact.round_id) for who, fact in self.network.facts if isinstance(fact, NodeAborted)}
        assert not aborted & set(answers)

    @invariant()
    def no_release_below_the_threshold(self) -> None:
        """2: |A| >= n_min, of which every node holds a part."""
        n_min = len(self.actors.clients) - self.terms["tolerate"] + self.terms["colluders"]
        for fact in self.network.reported(Released):
            assert fact.contributors >= n_min

    @invariant()
    def each_message_has_one_content(self) -> None:
        """One contribution of a client, one list and one answer of a node to each round, whatever is killed.

        A node also passes on the answers of its peers.
        """
        payloads = defaultdict(set)
        for one in self.network.sent:
            if kind_of(one) in (Contribution, Answer):
                whose = getattr(body_of(one.payload), "compute", one.sender)
                payloads[whose, one.round_id, kind_of(one)].add(one.payload)
        assert all(len(contents) == 1 for contents in payloads.values())

    @property
    def nodes(self) -> list[Any]:
        return [self.network.actors[compute] for compute in self.actors.computes]

    @invariant()
    def a_result_is_the_exact_sum_of_who_is_in_it(self) -> None:
        """3: none twice, none lost; the same however often the trainer reports it."""
        values = defaultdict(set)
        for fact in self.network.reported(RoundCompleted):
            present = self.network.actors[self.trainer].contributors(fact.round_id)
            assert fact.aggregate.value.tolist() == [exact_sum(map(self.actors.clients.index, present))]
            assert len(present) == fact.aggregate.contributors
            values[fact.round_id].add(fact.aggregate.value.tobytes())
        assert all(len(one) == 1 for one in values.values())

    @invariant()
    def the_budget_holds_and_is_charged_first(self) -> None:
        """4: what is stored never exceeds the policy; no contribution left without a stored charge."""
        allowed = accounting.mu_of(POLICY.epsilon_per_period_max, POLICY.delta_max)
        for client in self.actors.clients:
            charges = [charge for charge in self.network.actors[client].ledger.charges if not charge.returned]
            assert accounting.compose(charge.mu for charge in charges) <= allowed
        assert self.network.uncharged == []

    @invariant()
    def a_charge_came_back_only_where_nothing_was_released(self) -> None:
        released = {fact.round_id for fact in self.network.reported(Released)}
        for client in self.actors.clients:
            returned = {charge.round_id for charge in self.network.actors[client].ledger.charges if charge.returned}
            assert not returned & released

    @invariant()
    def no_honest_client_is_taken_for_a_restored_one(self) -> None:
        """Whatever is lost, repeated, reordered or killed: the numbers of its charges never look used twice."""
        assert self.network.reported(LedgerReused) == []

    @invariant()
    def actors_hold_nothing_beyond_the_rounds(self) -> None:
        """6: whatever came, an actor knows the requested rounds and no others."""
        for actor in self.network.actors.values():
            assert len(actor._rounds) <= len(self.requests)

    def teardown(self) -> None:
        """7 and 8: when the network heals and all are up again, every round ends, with a result or a reason."""
        if not hasattr(self, "network"):
            return
        self.network.healed = True
        for actor in sorted(self.network.down):
            self.network.restart(actor)
        self.network.advance(self.network.now_ms + HOUR_MS)
        trainer = self.network.actors[self.trainer]
        for request in self.requests:
            forgotten = request.round_id not in trainer._rounds and not self.announced(request)
            assert forgotten or trainer.phase(request.round_id) in ("done", "failed", "returned")
        for node in self.nodes:
            assert {current.phase for current in node._rounds.values()} <= {"released", "aborted"}
        for check in (
            self.each_node_releases_at_most_one_partial_sum,
            self.no_release_below_the_threshold,
            self.a_result_is_the_exact_sum_of_who_is_in_it,
            self.the_budget_holds_and_is_charged_first,
            self.a_charge_came_back_only_where_nothing_was_released,
        ):
            check()

    def announced(self, request: Any) -> bool:
        return any(one.round_id == request.round_id for one in self.network.sent)


Rounds.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, derandomize=True, database=None
)
TestRounds = pytest.mark.long(Rounds.TestCase)
