"""The Compute node's state machine: what each phase takes, and that nothing else changes anything."""

from __future__ import annotations

import msgspec
import pytest
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    forged,
    forged_list,
    kind_of,
    losing,
    passing,
    refused,
    results,
    sends,
    sent,
    snapshot,
)
from wiretap import keys_of

from dca_proto.crypto.masks import ENTRY_BYTES, contribution_keys
from dca_proto.errors import UsageError
from dca_proto.protocol import facts
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.round import OPEN, TABLE
from dca_proto.protocol.effects import Channel, Forget, Persist, Report, Send
from dca_proto.protocol.events import Command, Received, Started, TimerFired
from dca_proto.protocol.events import Timer as TimerName
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.messages import (
    Abort,
    Announcement,
    Answer,
    ChargeReused,
    Close,
    Contribution,
    Declines,
    EpochKey,
    FrozenList,
    HelloWanted,
    ListHeader,
    Query,
    Receipt,
)
from dca_proto.testing import Envelope, TestFederation, seeded

PHASES = ("new", "collecting", "frozen", "answered", "released", "aborted")
EVENTS = {
    "announcement": ("announcement",),
    "contribution": ("contribution", "repeated contribution", "late contribution"),
    "close": ("freeze", "close"),
    "list": ("list", "freeze", "repeated list"),
    "answer": ("peer answer", "repeated answer"),
    "query": ("query",),
    "declines": ("declines",),
    "peer abort": ("abort", "late abort"),
}
"""What arrives, and the events of the table that it can be."""
LOST = {
    "new": (Announcement,),
    "collecting": (Close,),
    "frozen": (FrozenList, Answer),
    "answered": (Answer,),
    "aborted": (FrozenList, Answer),
}
GRACE_MS = Timing().epoch_grace_ms


class ActorInPhase:
    """The holder of client 0 among three nodes, brought to a phase with four clients."""

    def __init__(self, phase: str) -> None:
        self.actors = exact_actors(4, 3)
        self.network = self.actors.network()
        self.network.tamper = losing(*LOST.get(phase, ()), *([Contribution] if phase == "new" else []))
        begin(self.actors, self.network)
        self.opened = announced(self.network, self.actors)
        self.round_id = self.opened.body.round_id
        self.node = self.opened.holder(self.actors.clients[0]).id
        self.peer = next(one for one in self.actors.compute_identities if one.id != self.node)
        if phase == "aborted":
            self.fire("commit")
        assert self.actor.phase(self.round_id) == phase

    def fire(self, purpose: str) -> list:
        return self.network.handle(self.node, TimerFired(TimerName(purpose, self.round_id)))

    @property
    def actor(self) -> ComputeNode:
        return self.network.actors[self.node]

    def contribution(self) -> tuple[bytes, bytes]:
        client = self.actors.clients[0]
        known = sent(self.network, Contribution, sender=client)
        made = known[0].payload if known else encode(Contribution(self.round_id, bytes(16), bytes(64)))
        return client, made

    def frozen_list(self) -> tuple[bytes, bytes]:
        known = sent(self.network, FrozenList, sender=self.peer.id, to=self.node)
        if known:
            return self.peer.id, known[0].payload
        like = Envelope(self.peer.id, Send(self.opened.holder(self.actors.clients[0]), self.round_id, b""))
        return self.peer.id, forged_list(self.network, self.actors, like, b"", b"").payload

    def answer(self) -> tuple[bytes, bytes]:
        known = sent(self.network, Answer, sender=self.peer.id, to=self.node)
        body = Answer(self.round_id, self.opened.hash, self.peer.id, (bytes(32),) * 3, b"")
        return self.peer.id, known[0].payload if known else forged(self.actors, self.peer, body)

    def message(self, event: str) -> tuple[bytes, bytes]:
        """(sender, payload) of a valid message of that kind."""
        trainer, head = self.actors.trainer_identity, (self.round_id, self.opened.hash)
        match event:
            case "announcement":
                return trainer.id, encode(self.opened.frame)
            case "contribution":
                return self.contribution()
            case "list":
                return self.frozen_list()
            case "answer":
                return self.answer()
            case "close":
                return trainer.id, forged(self.actors, trainer, Close(*head))
            case "declines":
                return trainer.id, forged(self.actors, trainer, Declines(*head, b""))
            case "query":
                return trainer.id, forged(self.actors, trainer, Query(*head))
            case _:
                body = Abort(*head, self.peer.id, "too-few", "2 of 4", 2, 3, ())
                return self.peer.id, forged(self.actors, self.peer, body)


def is_legal(phase: str, event: str) -> bool:
    repeated = event == "announcement" and phase != "new"  # a known one is answered again
    return repeated or any((phase, name) in TABLE for name in EVENTS[event])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("event", EVENTS)
def test_a_message_outside_the_table_changes_nothing(phase: str, event: str) -> None:
    phased = ActorInPhase(phase)
    message = phased.message(event)
    early = phase == "new" and event in ("peer abort", "contribution")  # broadcast; or kept for a moment
    late = phase not in ("new", "collecting") and event == "declines"  # they may cross with the close
    if early or late:
        assert phased.actor.handle(Received(*message), phased.network.now_ms) == []
    elif is_legal(phase, event):
        before = dict(phased.actor.dropped)
        phased.network.handle(phased.node, Received(*message))
        assert dict(phased.actor.dropped) == before
    else:
        refused(phased.network, phased.node, *message)


@pytest.mark.parametrize("phase", PHASES)
def test_a_timer_that_has_lost_its_purpose_changes_nothing(phase: str) -> None:
    """Above all, no timer forgets a round that is still open: a forgotten one could be opened again."""
    phased = ActorInPhase(phase)
    stale = {
        "new": ("freeze", "commit", "resend", "progress", "close"),
        "collecting": ("resend",),
        "frozen": ("freeze", "progress"),
        "answered": ("freeze", "progress"),
    }.get(phase, ("freeze", "commit", "resend", "progress"))
    for purpose in stale:
        before = snapshot(phased.actor)
        effects = phased.actor.handle(TimerFired(TimerName(purpose, phased.round_id)), phased.network.now_ms)
        assert sends(effects) == []
        assert not [effect for effect in effects if isinstance(effect, Persist | Forget)]
        assert snapshot(phased.actor) == before


@pytest.mark.parametrize("phase", PHASES)
def test_a_compute_node_takes_no_commands(phase: str) -> None:
    phased = ActorInPhase(phase)
    before = snapshot(phased.actor)
    with pytest.raises(UsageError, match="takes no command"):
        phased.actor.handle(Command(object()), phased.network.now_ms)
    assert snapshot(phased.actor) == before


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_restart_restores_the_phase_and_all_that_was_promised(phase: str) -> None:
    phased = ActorInPhase(phase)
    before = phased.actor._rounds[phased.round_id]
    phased.network.down |= set(phased.actors.computes) - {phased.node} | {phased.actors.trainer_identity.id}
    phased.network.restart(phased.node)
    after = phased.actor._rounds[phased.round_id]
    assert (after.stored, after.kept) == (before.stored, before.kept)
    if phase == "answered":
        assert (after.lists, after.answers) == (before.lists, before.answers)


def test_every_entry_of_the_table_is_taken() -> None:
    """By the messages above, by timers, and by what completes a set of lists or answers."""
    taken = {(phase, name) for phase in PHASES for event in EVENTS for name in EVENTS[event] if (phase, name) in TABLE}
    inner = {
        ("frozen", "all lists"),
        ("answered", "all answers"),
    }
    timers = {("collecting", "progress"), ("released", "forget"), ("aborted", "forget")}
    timers |= {(phase, "commit") for phase in OPEN} | {(phase, "resend") for phase in ("frozen", "answered")}
    assert taken | inner | timers == set(TABLE)


def test_closing_forgets_all_but_keys_sessions_and_charge_numbers_after_the_retention() -> None:
    phased = ActorInPhase("released")
    phased.network.tamper = lambda envelope: ()
    phased.network.advance(phased.network.now_ms + 8 * 24 * 3600 * 1000)
    assert phased.actor.phase(phased.round_id) == "new"
    tables = {table for table, _ in phased.network.stores[phased.node]}
    assert tables == {"epoch", "seen", "since", "charges", "session"}


# What each step does.


def tables(effects: list) -> list:
    return [effect.table if isinstance(effect, Persist) else type(effect) for effect in effects]


def test_a_contribution_is_durable_before_its_receipt_leaves() -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = losing(Contribution)
    begin(actors, network)
    one = sent(network, Contribution)[0]
    effects = network.actors[one.to.id].handle(Received(one.sender, one.payload), network.now_ms)
    assert tables(effects)[:2] == ["contribution", Send]
    assert isinstance(body_of(effects[1].payload), Receipt)
    assert Report(facts.ContributionKept(one.round_id, one.sender, 1)) in effects


def test_contributions_that_overtook_their_announcement_are_taken_with_it() -> None:
    """Without waiting for the clients to send again; what does not open is dropped alone."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.tamper = lambda one: [] if kind_of(one) is Announcement and one.to.id in actors.computes else [one]
    begin(actors, network)
    made = sent(network, Contribution)
    forged_one = Contribution(made[0].round_id, bytes(16), bytes(64))
    opened = announced(network, actors)
    ids = (bytes([number] * 16) for number in range(256))
    other = next(sender for sender in ids if opened.holder(sender).id != made[0].to.id)
    network.handle(made[0].to.id, Received(other, encode(forged_one)))
    assert sent(network, Receipt) == [], "nothing is promised yet"
    network.tamper = passing
    for one in sent(network, Announcement):
        if one.to.id in actors.computes:
            network.handle(one.to.id, Received(one.sender, one.payload))
    network.advance(network.now_ms + actors.timing.progress_ms)
    assert len(sent(network, Contribution)) == len(made) == 4
    assert network.actors[made[0].to.id].dropped.total() == 1
    assert [result.value.tolist() for result in results(network)] == [[exact_sum(range(4))]]


def test_a_list_is_durable_before_it_leaves_and_the_answer_with_lists_and_numbers() -> None:
    phased = ActorInPhase("collecting")
    effects = phased.network.handle(phased.node, Received(*phased.message("close")))
    assert tables(effects)[0] == "round"
    assert len(sends(effects)) == 2
    phased = ActorInPhase("frozen")
    lists = sent(phased.network, FrozenList, to=phased.node)
    for one in lists:
        effects = phased.network.handle(phased.node, Received(one.sender, one.payload))
    kinds = tables(effects)
    assert kinds[: kinds.index(Send)] == ["charges", "list", "list", "round"], "one transaction, then the answer"


def test_the_final_message_is_durable_before_it_leaves_and_the_contributions_are_deleted_with_it() -> None:
    phased = ActorInPhase("answered")
    stored = len(phased.actor._rounds[phased.round_id].kept)
    for one in sent(phased.network, Answer, to=phased.node):
        effects = phased.actor.handle(Received(one.sender, one.payload), phased.network.now_ms)
    released = next(
        at for at, each in enumerate(effects) if isinstance(each, Send) and each.to.channel is Channel.TRAINER
    )
    assert tables(effects).index("round") < released
    forgotten = sum(isinstance(effect, Forget) for effect in effects)
    assert forgotten == stored + 3, "all contributions, the two other lists, and the announcement"
    assert phased.actor._rounds[phased.round_id].kept == {}


@pytest.mark.parametrize("phase", ["frozen", "answered", "released"])
def test_a_contribution_after_the_freeze_gets_a_receipt_that_it_was_late(phase: str) -> None:
    """By the key that it came with: nobody else can prove it. Nothing of it is kept."""
    actors = exact_actors(5, 3)
    network, late = actors.network(), actors.clients[4]
    lost = losing(*LOST.get(phase, ()))
    network.tamper = lambda one: [] if (one.sender, kind_of(one)) == (late, Contribution) else lost(one)
    begin(actors, network)
    network.advance(network.now_ms + 1000)
    (made, opened) = sent(network, Contribution, sender=late)[0], announced(network, actors)
    node = network.actors[made.to.id]
    assert node.phase(made.round_id) == phase
    before = snapshot(node)
    (answer,) = node.handle(Received(late, made.payload), network.now_ms)
    assert snapshot(node) == before
    key = keys_of(network.actors[late], opened)[0][opened.computes.index(node.id)]
    contribution = body_of(made.payload).contribution
    tag = contribution_keys(key, opened.hash, contribution).late
    assert (answer.to.channel, answer.to.id) == (Channel.CLIENT, late)
    assert body_of(answer.payload) == Receipt(made.round_id, contribution, tag)


@pytest.mark.parametrize(
    ("case", "phase", "answer"),
    [
        ("repeated", "collecting", Receipt),
        ("refused", "collecting", ChargeReused),
        ("repeated", "released", Receipt),
        ("late", "released", Receipt),
    ],
)
def test_copies_of_a_contribution_are_answered_once_a_second(case: str, phase: str, answer: type) -> None:
    """Anybody can send copies, and some answers cost a signature. An honest resend comes after two seconds."""
    phased = ActorInPhase(phase)
    client, made = phased.contribution()
    if case == "late":
        phased.actor._rounds[phased.round_id].store(entries=b"")
    if case == "refused":
        del phased.actor._rounds[phased.round_id].kept[client]
        phased.actor._charges.is_used = lambda slot, number: True
    answers, now_ms = [], phased.network.now_ms
    for wait_ms in (0, 0, 999, 1, Timing().resend_first_ms):
        now_ms += wait_ms
        effects = phased.actor.handle(Received(client, made), now_ms)
        answers.append([type(body_of(one.payload)) for one in sends(effects)])
    assert answers == [[answer], [], [], [answer], [answer]]
    assert phased.actor.dropped["ledger-rollback"] == (5 if case == "refused" else 0)


@pytest.mark.parametrize("more", [0, 4])
def test_an_answer_has_room_for_an_objection_to_every_entry_and_no_more(more: int) -> None:
    """M lists of n_max entries, 4 bytes each. What fits is looked at; what does not is dropped."""
    phased = ActorInPhase("answered")
    most = 4 * phased.opened.body.kind.n_max * 3
    sender, payload = phased.answer()
    longer = msgspec.structs.replace(body_of(payload), objections=bytes(most + more))
    payload = forged(phased.actors, phased.peer, longer)
    if more:
        refused(phased.network, phased.node, sender, payload, "answer")
    else:
        phased.network.handle(phased.node, Received(sender, payload))
        assert not phased.actor.dropped
        assert sender in phased.actor._rounds[phased.round_id].answers


def test_an_abort_for_other_list_hashes_shows_headers_and_neither_lists_nor_answers() -> None:
    """An answer may have megabytes of objections; an abort goes to everybody."""
    phased = ActorInPhase("answered")
    known = {one.hash for one in phased.actor._rounds[phased.round_id].lists.values()}
    phased.network.tamper = passing
    for one in sent(phased.network, Answer, to=phased.node):
        body = msgspec.structs.replace(body_of(one.payload), lists=(bytes(32),) * 3)
        identity = next(each for each in phased.actors.compute_identities if each.id == one.sender)
        phased.network.handle(phased.node, Received(one.sender, forged(phased.actors, identity, body)))
    (abort,) = sent(phased.network, Abort, sender=phased.node)
    body = body_of(abort.payload)
    shown = [decode_body(frame.body) for frame in body.evidence]
    assert body.reason == "equivocation"
    assert [type(one) for one in shown] == [ListHeader] * 3
    assert {one.list_hash for one in shown} == known


def test_one_abort_of_each_node_is_kept_and_given_to_clients_with_a_session_alone() -> None:
    """A peer with two different aborts crowds out nobody, and a stranger gets the question for its session alone."""
    phased = ActorInPhase("aborted")
    (other,) = [one for one in phased.actors.compute_identities if one.id not in (phased.node, phased.peer.id)]
    head = (phased.round_id,)
    for identity, detail in ((phased.peer, "first"), (phased.peer, "second"), (phased.peer, "third"), (other, "last")):
        body = Abort(*head, phased.opened.hash, identity.id, "too-few", detail, 2, 3, ())
        phased.network.handle(phased.node, Received(identity.id, forged(phased.actors, identity, body)))
    client, contribution = phased.contribution()
    given = sends(phased.actor.handle(Received(client, contribution), phased.network.now_ms))
    assert [(one.to.id, body_of(one.payload).compute) for one in given] == [
        (client, phased.node), (client, phased.peer.id), (client, other.id)
    ]  # fmt: skip
    assert [body_of(one.payload).detail for one in given[1:]] == ["first", "last"]
    stranger = (bytes([salt]) * 16 for salt in range(256))
    posing = next(one for one in stranger if phased.opened.holder(one).id == phased.node)
    (reply,) = phased.actor.handle(Received(posing, contribution), phased.network.now_ms)
    assert body_of(reply.payload) == HelloWanted(posing)


def test_lists_go_to_each_peer_with_its_own_tags_alone() -> None:
    """44 bytes an entry, whatever M is."""
    phased = ActorInPhase("frozen")
    sizes = {len(one.payload) for one in sent(phased.network, FrozenList, sender=phased.node)}
    entries = len(phased.actor._rounds[phased.round_id].stored.entries) // ENTRY_BYTES
    assert len(sizes) == 1
    assert 44 * entries < sizes.pop() < 44 * entries + 500


@pytest.mark.parametrize("silent", [0, 2])
def test_a_silent_peer_means_an_abort_that_names_it(silent: int) -> None:
    actors = exact_actors(4, 3)
    network = actors.network()
    mute = losing(FrozenList, sender=actors.computes[silent])
    network.tamper = lambda one: [] if isinstance(body_of(one.payload), Abort) else mute(one)
    begin(actors, network)
    network.advance(network.now_ms + 200_000)
    details = [fact.detail for fact in network.reported(facts.NodeAborted)]
    assert any(
        f"no list of contributions came from compute-{silent} until the end of the round, " in detail
        for detail in details
    )
    assert results(network) == []


def test_a_new_epoch_publishes_a_new_key_and_deletes_the_old_one() -> None:
    actors = TestFederation(4, 2)
    network = actors.network()
    first = body_of(sent(network, EpochKey, actors.computes[0])[0].payload)
    network.advance(first.expires_ms + GRACE_MS)
    made = {
        body.epoch: body.public
        for body in (body_of(one.payload) for one in sent(network, EpochKey, actors.computes[0]))
    }
    assert sorted(made) == [first.epoch, first.epoch + 1]
    assert len(set(made.values())) == 2
    stored = [key for table, key in network.stores[actors.computes[0]] if table == "epoch"]
    assert stored == [(first.epoch + 1).to_bytes(4, "big")]


def test_randomness_is_an_argument() -> None:
    """Two nodes of one stream write the same bytes."""
    actors = TestFederation(4, 2)
    nodes = [ComputeNode(actors.compute_identities[0], actors.federation, random=seeded("same")) for _ in range(2)]
    first, second = (node.handle(Started(), 10**12) for node in nodes)
    assert first == second
