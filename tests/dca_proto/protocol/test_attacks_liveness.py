"""Attack 58, on requests that should go on: debts, requests that wait, one node or client that stops all (§4.8)."""

from __future__ import annotations

import msgspec
import pytest
from roll_call import up
from round_helpers import (
    announced,
    begin,
    body_of,
    exact_actors,
    exact_sum,
    failures,
    forged,
    kind_of,
    losing,
    passing,
    results,
    sent,
    the_sum,
)

from dca_proto.crypto.sealing import AgreementKey, Identity
from dca_proto.protocol.announcement import seal_answer
from dca_proto.protocol.effects import Address, Channel, Send
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import NodeAborted, Released
from dca_proto.protocol.wire.codec import decode_frame, encode, sign
from dca_proto.protocol.wire.messages import (
    Abort,
    Answer,
    Cancel,
    ChargesWanted,
    EpochKey,
    Hello,
    PartialSum,
    Progress,
    Query,
    Sealed,
    Sessions,
)
from dca_proto.testing import Envelope, Network, TestFederation

SECONDS = 1000


def four() -> TestFederation:
    return exact_actors(4, 4, colluding=1)


def seconds(network: Network, number: float) -> None:
    network.advance(network.now_ms + int(number * SECONDS))


# --- debts -----------------------------------------------------------------------------------------------------------


def test_attack_58_a_sum_that_comes_after_the_charge_has_come_back_pays_for_its_node() -> None:
    """The node has all answers, its own reached nobody: it has released, the others abort. Before, its sum was refused,
    and it was left out until its next epoch."""
    actors = four()
    network = actors.network()
    network.deliver()
    lost, trainer = actors.computes[2], actors.trainer_identity.id
    lose = losing(Answer, sender=lost), losing(Sealed, sender=lost, to=trainer)
    network.tamper = lambda one: [one] if all(each(one) for each in lose) else []
    _, request = begin(actors, network)
    network.crash(lost)
    network.tamper = passing
    seconds(network, 40)
    actor = network.actors[trainer]
    assert (actor.phase(request.round_id), [*actor._owing_since()]) == ("returned", [lost])
    network.restart(lost)
    seconds(network, 5)
    assert network.actors[lost].phase(request.round_id) == "released"
    assert (actor.phase(request.round_id), [*actor._owing_since()]) == ("returned", [])
    assert not actor.ledger.is_charged(request.round_id)
    network.restart(trainer)
    begin(actors, network)
    seconds(network, 5)
    assert results(network)[-1].quorum.nodes == tuple(f"compute-{node}" for node in range(4))


def new_key(actors: TestFederation, network: Network, node: Identity, number: int) -> None:
    """Let a node publish another key for its epoch."""
    published = [one for one in network.sent if one.sender == node.id and kind_of(one) is EpochKey]
    public = AgreementKey(bytes([number]) * 32).public
    body = msgspec.structs.replace(body_of(published[-1].payload), public=public)
    network.handle(actors.trainer_identity.id, Received(node.id, forged(actors, node, body)))


def test_attack_58_a_node_that_changes_its_key_again_and_again_burns_two_rounds_in_an_epoch() -> None:
    """A new key ends a debt, for a node with a fresh store. Before, it did so each time."""
    actors = four()
    network = actors.network()
    network.deliver()
    liar, trainer = actors.compute_identities[2], network.actors[actors.trainer_identity.id]
    network.crash(liar.id)
    took_part = 0
    for request in range(5):
        new_key(actors, network, liar, request + 1)
        begin(actors, network)
        took_part += liar.id in [*trainer._rounds.values()][-1].opened.computes
        seconds(network, 12)
    assert took_part == 2


# --- requests that wait ----------------------------------------------------------------------------------------------


def beside_an_open_round(**changes: object):
    """A trainer that has just started again beside an open round, and has a request: no answer to a question comes."""
    actors, network = up(4, 1)
    begin(actors, network, clients=5, tolerate=0, collect_s=900.0)
    seconds(network, 20)
    network.tamper = losing(Sessions)
    trainer = network.restart(actors.trainer_identity.id)
    request = actors.request(**changes)
    network.command(trainer.id, request)
    seconds(network, 1)
    assert trainer.phase(request.round_id) == "new"
    return actors, network, trainer, request


def test_attack_58_a_request_is_announced_once_reports_have_shown_that_its_nodes_are_up() -> None:
    """Before, it lacked nothing, was not announced, and ended with an empty reason."""
    _, network, trainer, request = beside_an_open_round(collect_s=60.0)
    seconds(network, 11)
    assert trainer.phase(request.round_id) == "done"
    assert failures(network) == []


def test_attack_58_a_request_is_not_forgotten_when_another_one_becomes_ready_with_it() -> None:
    """Before, it asked nothing, had no time to end, and waited until some node published its key."""
    actors, network, trainer, request = beside_an_open_round(collect_s=300.0)
    second = actors.request(clients=0)
    network.command(trainer.id, second)
    network.deliver()
    assert trainer.phase(request.round_id) == "collecting"
    network.tamper = passing
    seconds(network, 10)
    assert trainer.phase(second.round_id) == "done"


def test_attack_58_a_node_that_has_paid_what_it_owed_takes_the_place_of_a_dead_one() -> None:
    """Two of three nodes are enough, and up. Before, the request waited for the dead one until its end."""
    actors, network = up(3, 1)
    _, dead, back = actors.computes
    begin(actors, network)
    seconds(network, 5)
    network.crash(back)
    begin(actors, network)
    seconds(network, 300)
    network.crash(dead)
    begin(actors, network, collect_s=120.0)
    network.restart(back)
    seconds(network, 30)
    assert len(results(network)) == 2
    assert results(network)[-1].quorum.nodes == ("compute-0", "compute-2")


@pytest.mark.parametrize("clients", [0, 4])
def test_attack_58_a_node_without_sessions_is_left_out_if_the_others_are_enough(clients: int) -> None:
    """Its store is fresh, and the broker has lost the Hellos; or it lies. Before, it made every round too small."""
    actors, network = up(4, 1)
    begin(actors, network, clients=clients)
    seconds(network, 5)
    poor = actors.computes[2]
    network.stores[poor] = {}
    network._retained = {key: one for key, one in network._retained.items() if key[1] is not Channel.HELLO}
    network.restart(poor)
    seconds(network, 130)
    begin(actors, network, clients=clients)
    seconds(network, 20)
    assert (len(results(network)), failures(network)) == (2, [])
    assert results(network)[-1].clients == 4
    assert "compute-2" not in results(network)[-1].quorum.nodes
    for client in actors.clients:
        network.restart(client)
    seconds(network, 10)
    begin(actors, network, clients=clients)
    seconds(network, 20)
    assert len(results(network)[-1].quorum.nodes) == 4, "what it said before is out of date"


# --- aborts ----------------------------------------------------------------------------------------------------------


def test_attack_58_a_long_abort_of_one_node_keeps_no_other_abort_out_of_a_repeat() -> None:
    """Each node states its peer's reason. Before, 500 characters of four bytes made all aborts too long."""
    actors = four()
    network = actors.network()
    network.deliver()
    network.crash(actors.computes[3])
    _, request = begin(actors, network, clients=5, tolerate=1)
    liar = actors.compute_identities[0]
    reason = Abort(request.round_id, announced(network, actors).hash, liar.id, "peer-silent", "𝄞" * 500, 0, 3, ())
    for node in (*actors.computes[1:3], actors.trainer_identity.id):
        network.handle(node, Received(liar.id, forged(actors, liar, reason)))
    network.deliver()
    stored = network.actors[actors.trainer_identity.id]._rounds[request.round_id].stored
    assert {body_of(encode(frame)).compute for frame in stored.aborts} == {*actors.computes[1:3]}


@pytest.mark.parametrize("left", ["one that has released", "one whose abort is known"])
def test_attack_58_a_client_hears_of_an_abort_whose_node_is_gone(left: str) -> None:
    """Two of three nodes abort, one of which is gone; it alone told this client nothing. Before, no other one did."""
    actors = exact_actors(4, 3, colluding=1)
    network = actors.network()
    one, gone, released = actors.computes
    deaf = actors.clients[0]
    held = [losing(Answer, to=one), losing(Answer, to=gone)]
    lose = [*held, losing(Abort, sender=gone)]

    def tamper(envelope: Envelope) -> list[Envelope]:
        if not all(each(envelope) for each in lose):
            is_told = kind_of(envelope) is Abort and gone not in network.down
            inboxes = [Address(Channel.COMPUTE, node) for node in (one, released) if is_told]
            return [Envelope(gone, Send(to, envelope.round_id, envelope.payload)) for to in inboxes]
        return [envelope]

    network.tamper = tamper
    _, request = begin(actors, network)
    phases = [network.actors[node].phase(request.round_id) for node in actors.computes]
    assert phases == ["answered", "answered", "released"]
    opened, trainer = announced(network, actors), actors.trainer_identity
    cancel = forged(actors, trainer, Cancel(request.round_id, opened.hash, opened.frame))
    for node in (gone, one):
        network.handle(node, Received(trainer.id, cancel))
        network.deliver()
    network.crash(gone)
    network.tamper = passing
    network.crash(trainer.id)
    network.crash(released if "known" in left else one)
    assert network.actors[deaf]._rounds[request.round_id].stored.aborted_by == (one,)
    seconds(network, 300)
    assert not network.actors[deaf].ledger.is_charged(request.round_id)
    assert len(network.reported(Released)) == 1


@pytest.mark.parametrize("away_s", [12, 25])
def test_attack_58_an_abort_that_a_reboot_delays_still_lets_the_round_be_repeated(away_s: int) -> None:
    """One of three nodes is dead, the other two have to abort. Before, the failure was final five seconds later."""
    actors = exact_actors(4, 3, colluding=1)
    network = actors.network()
    network.deliver()
    slow = actors.computes[1]
    network.crash(actors.computes[2])

    def tamper(envelope: Envelope) -> list[Envelope]:
        if kind_of(envelope) is Cancel and envelope.to.id == slow:
            network.crash(slow)
        return [envelope]

    network.tamper = tamper
    begin(actors, network)
    seconds(network, 12)
    assert slow in network.down
    network.tamper = passing
    seconds(network, away_s)
    assert failures(network) == []
    network.restart(slow)
    seconds(network, 20)
    (failure,) = failures(network)
    assert failure.repeatable
    assert failure.reason.endswith("its charge came back to the account")


def test_a_trainer_that_collects_and_holds_a_sum_cancels_only_if_enough_others_have_not_released() -> None:
    """A node of three sends a sum early, and goes on reporting. Of the others one is lost: no charge would return."""
    actors = exact_actors(4, 3, colluding=1)
    network = actors.network()
    network.deliver()
    begin(actors, network, clients=5, tolerate=0, collect_s=120.0)
    network.crash(actors.computes[2])
    opened, trainer = announced(network, actors), actors.trainer_identity.id
    early = actors.compute_identities[0]
    about = opened.body.round_id, opened.hash
    body = PartialSum(*about, bytes(32), 4, (bytes(32),) * 3, b"", bytes(8))
    part = seal_answer(sign(early, actors.federation.id, body), opened, lambda size: bytes(range(size)))
    network.handle(trainer, Received(early.id, part))
    report = Progress(*about, 0, 0, 0, 0, b"")
    for _ in range(20):
        network.handle(trainer, Received(early.id, forged(actors, early, report)))
        seconds(network, 2)
    assert sent(network, Cancel) == []


# --- a client that publishes session after session -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["Hellos", "a question for its charges"])
def test_attack_58_a_client_with_many_sessions_spoils_no_reboot_of_a_node(how: str) -> None:
    """A node has answered, the others have released, and it reboots: its masks follow from the sessions that it used.
    Before, two newer Hellos of one client made it abort, and everybody had paid for nothing."""
    actors = exact_actors(4, 3)
    network = actors.network()
    network.deliver()
    lost, client = actors.computes[2], actors.client_identities[0]
    network.tamper = losing(Answer, to=lost)
    begin(actors, network)
    network.crash(lost)
    network.tamper = passing
    (first,) = [one.payload for one in sent(network, Hello, sender=client.id)]
    network.restart(lost)
    for number in (1, 2, 3):
        public = AgreementKey(bytes([number]) * 32).public
        body = msgspec.structs.replace(body_of(first), serial=body_of(first).serial + number, public=public)
        hello = forged(actors, client, body)
        if how == "Hellos":
            network.handle(lost, Received(client.id, hello))
        else:
            network.handle(lost, Received(client.id, _question(actors, client, hello, number)))
    seconds(network, 10)
    assert network.reported(NodeAborted) == []
    assert the_sum(network) == exact_sum(range(4))
    network.handle(lost, Received(client.id, hello))
    assert network.actors[lost].dropped["hello"] >= 1, "after the round it is taken"
    assert network.actors[lost].sessions._stored(network.actors[lost].sessions.slots[client.id]).current.serial == (
        body.serial
    )


def _question(actors: TestFederation, client: Identity, hello: bytes, number: int) -> bytes:
    return forged(actors, client, ChargesWanted(decode_frame(hello), bytes([number]) * 16))


# --- much work, and much to send -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "longer_s"), [(5, 0), (100_000, 4), (1_000_000, 40), (10_000_000, 60)])
def test_a_node_that_adds_up_many_masks_is_not_silent(clients: int, longer_s: int) -> None:
    """With a million clients that takes half a minute of a core. Before, faster nodes had the round cancelled."""
    actors = exact_actors(4, 20, colluding=1)
    network = actors.network()
    network.deliver()
    begin(actors, network, clients=clients, most=0, tolerate=clients - 3)
    trainer = network.actors[actors.trainer_identity.id]
    (current,) = trainer._rounds.values()
    assert trainer._silent_ms(current) == 8 * SECONDS
    trainer._close(current, "quiet", network.now_ms)
    assert trainer._silent_ms(current) == (8 + longer_s) * SECONDS


def test_attack_59_questions_of_one_node_cost_the_others_no_more_than_a_link_carries() -> None:
    """Each is short, and the answers of all nodes may be megabytes: these are sent again once they have arrived."""
    timing = msgspec.structs.replace(exact_actors().timing, resend_free_bytes=100, resend_rate=1)
    actors = exact_actors(4, 4, timing=timing)
    network, request = begin(actors)
    seconds(network, 5)
    asked, peer = actors.computes[0], actors.compute_identities[1]
    query = forged(actors, peer, Query(request.round_id, announced(network, actors).hash))
    sizes = []
    for _ in range(60):
        answers = network.handle(asked, Received(peer.id, query))
        sizes.append(sum(len(one.payload) for one in answers))
        seconds(network, 1)
    assert sizes[0] > 500
    assert sum(sizes) <= 60 * SECONDS + sizes[0] + 100 * sum(size > 0 for size in sizes)
    assert sum(size > 0 for size in sizes) >= 20
    other = actors.compute_identities[2]
    query = forged(actors, other, Query(request.round_id, announced(network, actors).hash))
    assert network.handle(asked, Received(other.id, query)), "another node is answered"
