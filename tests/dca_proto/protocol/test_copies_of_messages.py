"""Attack 59: messages that are repeated or replayed. DESIGN §7 states the freshness of each, and what copies cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from changes import hand, without
from reporters import Reporters
from round_helpers import (
    OneTight,
    begin,
    body_of,
    copy_of,
    exact_actors,
    forged,
    losing,
    passing,
    restore,
    sends,
    sent,
)

import dca_proto
from dca_proto.errors import PeerError
from dca_proto.privacy.mechanism import GRID_LAPLACE
from dca_proto.protocol.announcement import open_answer
from dca_proto.protocol.effects import Effect, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import LedgerRestored
from dca_proto.protocol.params import QUESTIONS_BURST
from dca_proto.protocol.restore import kept_in_backup
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import decode_body
from dca_proto.protocol.wire.kinds import VerifiedSum
from dca_proto.testing import Network, NoNoise

COPIES, HOUR_MS = 20, 3_600_000
KINDS = {*get_args(m.Body), *get_args(m.Frame)} - {m.Signed, m.Sealed}
"""Every message; `Signed` and `Sealed` carry others."""
Scenario = Callable[["Copying"], None]


class Copying(Network):
    """A network that hands each message to its receiver another 20 times, at the same moment.

    Attributes:
        caused: kind of message -> the most messages that such copies have caused at once, all together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.caused: dict[type, int] = {}

    def handle(self, actor_id: bytes, event: object) -> list[Effect]:
        kinds = self._kinds(actor_id, event.payload) if isinstance(event, Received) else []
        effects = super().handle(actor_id, event)
        if isinstance(event, Received):
            copies = [e for _ in range(COPIES) for e in self.actors[actor_id].handle(event, self.now_ms)]
            for effect in copies:
                if not isinstance(effect, Send):
                    self._carry_out(actor_id, effect)
            for kind in kinds:
                self.caused[kind] = max(self.caused.get(kind, 0), len(sends(copies)))
        return effects

    def _kinds(self, receiver: bytes, payload: bytes) -> list[type]:
        """Return the kind of a message, or of what is sealed in it."""
        body = body_of(payload)
        if not isinstance(body, m.Sealed):
            return [type(body)]
        actor = self.actors[receiver]
        current = actor._rounds.get(body.round_id)
        if current is None:
            return []
        if not hasattr(current, "reply_key"):
            return [m.FrozenList, m.VerifiedHeader if current.is_verified else m.ListHeader]
        try:
            return [type(decode_body(open_answer(body, current.reply_key, current.hash).body))]
        except PeerError:
            return []


def a_sum_that_one_client_declines(network: Copying) -> None:
    actors = OneTight(4, 3, mechanism=NoNoise())
    actors.network(network)
    begin(actors, network, clients=0, epsilon=1.5, tolerate=2)
    network.advance(network.now_ms + 10_000)
    begin(actors, network, epsilon=1.5, tolerate=2)


def a_batch_without_receipts(network: Copying) -> None:
    actors = exact_actors(4, 3)
    actors.network(network)
    network.tamper = losing(m.Receipt, m.Close)
    begin(actors, network, invited=tuple(sorted(actors.clients)), clients=0)
    network.tamper = passing
    network.advance(network.now_ms + 60_000)


def an_aborted_sum(network: Copying) -> None:
    actors = exact_actors(4, 3)
    actors.network(network)
    network.tamper = losing(m.FrozenList)
    begin(actors, network)
    network.crash(actors.clients[0])
    network.advance(network.now_ms + 125_000)
    network.tamper = passing
    network.restart(actors.clients[0])
    network.advance(network.now_ms + 10_000)


def a_cancelled_sum(network: Copying) -> None:
    actors = exact_actors(4, 3)
    actors.network(network)
    network.tamper = losing(m.Answer)
    begin(actors, network)
    network.advance(network.now_ms + 185_000)


def a_verified_sum(network: Copying) -> None:
    actors = exact_actors(4, 3)
    actors.network(network)
    begin(actors, network, kind=VerifiedSum(tolerate=1))


def reports(network: Copying) -> None:
    actors = Reporters(GRID_LAPLACE, [0.5] * 4)
    actors.network(network)
    network.tamper = losing(m.Receipt)
    begin(actors, network)
    network.tamper = passing
    network.advance(network.now_ms + 60_000)


def lost_sessions(network: Copying) -> None:
    actors = exact_actors(4, 3)
    network.tamper = losing(m.Hello, sender=actors.clients[0])
    actors.network(network)
    begin(actors, network)
    network.tamper = passing
    network.advance(network.now_ms + 60_000)


def a_restored_ledger(network: Copying) -> None:
    actors = exact_actors(4, 3)
    actors.network(network)
    network.deliver()
    copy = copy_of(network, actors.clients[0])
    for _ in range(2):
        begin(actors, network)
        restore(network, actors.clients[0], copy)


def a_newer_file(network: Copying) -> None:
    actors = exact_actors(4, 3)
    actors.network(network)
    network.deliver()
    hand(network, actors.computes[0], without(actors, 3))
    network.deliver()


def a_client_from_a_backup(network: Copying) -> None:
    actors = exact_actors(4, 3)
    actors.network(network)
    begin(actors, network)
    client, now_ms = actors.clients[0], network.now_ms + HOUR_MS
    records = [(*place, value) for place, value in network.stores[client].items()]
    kept = kept_in_backup("client", records, actors.federation, now_ms, actors.policy)
    network.advance(now_ms + HOUR_MS)
    restore(network, client, {row[:2]: row[2] for row in kept})
    network.advance(network.now_ms + 1_000)
    assert network.reported(LedgerRestored, client)


SCENARIOS: tuple[Scenario, ...] = (
    a_sum_that_one_client_declines, a_batch_without_receipts, an_aborted_sum, reports, lost_sessions, a_restored_ledger,
    a_newer_file, a_cancelled_sum, a_client_from_a_backup, a_verified_sum,
)  # fmt: skip


@pytest.fixture(scope="module")
def caused() -> dict[type, int]:
    """The most messages that 20 copies of one message have caused, by kind."""
    most: defaultdict[type, int] = defaultdict(int)
    for scenario in SCENARIOS:
        network = Copying()
        scenario(network)
        for kind, count in network.caused.items():
            most[kind] = max(most[kind], count)
    return dict(most)


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_attack_59_copies_of_any_message_cause_a_bounded_number_of_answers(kind: type, caused: dict[type, int]) -> None:
    """20 copies at once: no answer, or one, which has at most a message for each of three Compute nodes."""
    assert kind in caused, f"no scenario of this test has a {kind.__name__}: add one"
    assert caused[kind] <= 3


def test_attack_59_the_table_of_design_states_the_freshness_of_every_message() -> None:
    design = (Path(dca_proto.__file__).parent / "DESIGN.md").read_text()
    table = design.split("**Copies and replays.**")[1].split("\n\n")[1]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(kind.__name__ for kind in KINDS)


def test_attack_59_2000_copies_of_a_question_get_one_answer_and_others_one_in_50_ms() -> None:
    """A trainer's question for sessions names a nonce, and so does the answer."""
    actors = exact_actors(4, 3)
    network = actors.network()
    begin(actors, network, clients=0)
    node = network.actors[actors.computes[0]]
    question = sent(network, m.SessionsWanted, to=node.id)[0]
    network.now_ms += 1_000
    answers = [node.handle(Received(question.sender, question.payload), network.now_ms) for _ in range(2_000)]
    assert len(sends([effect for effects in answers for effect in effects])) <= 2
    answers = []
    for number in range(1_000):  # the trainer's own, one a millisecond
        body = m.SessionsWanted(actors.federation.stamp, True, number.to_bytes(16, "big"))
        payload = forged(actors, actors.trainer_identity, body)
        answers += node.handle(Received(question.sender, payload), network.now_ms + 10 + number)
    assert len(sends(answers)) <= 2 * (1_000 // actors.timing.progress_ms + QUESTIONS_BURST)


def test_attack_59_two_processes_of_a_trainer_both_get_their_answers() -> None:
    """The second asks a moment after the first ended, and it does not ask again."""
    actors = exact_actors(4, 3)
    network = actors.network()
    begin(actors, network, clients=0)
    node = network.actors[actors.computes[0]]
    network.now_ms += 1_000
    for number in range(3):
        body = m.SessionsWanted(actors.federation.stamp, False, number.to_bytes(16, "big"))
        payload = forged(actors, actors.trainer_identity, body)
        answers = node.handle(Received(actors.trainer_identity.id, payload), network.now_ms + number)
        assert len(sends(answers)) == 1


def test_attack_59_a_replayed_count_of_sessions_is_dropped() -> None:
    """An old count would let the trainer announce another n_min."""
    actors = exact_actors(4, 3)
    network = actors.network()
    begin(actors, network, clients=0)
    trainer = network.actors[actors.trainer_identity.id]
    old = sent(network, m.Sessions, sender=actors.computes[0])[0]
    (dropped,) = trainer.handle(Received(old.sender, old.payload), network.now_ms)
    assert dropped.fact.code == "nonce"
    network.advance(network.now_ms + 1_000)
    network.tamper = losing(m.Sessions, sender=actors.computes[0])
    begin(actors, network, clients=0)
    (dropped,) = trainer.handle(Received(old.sender, old.payload), network.now_ms)
    assert dropped.fact.code == "nonce"
