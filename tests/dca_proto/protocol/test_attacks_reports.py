"""Attacks on report rounds; the numbers are those of the list that the other attacks' tests cite."""

from __future__ import annotations

import contextlib
import io
import math
from contextlib import redirect_stderr
from typing import Any

import msgspec
import numpy as np
import pytest
from hospitals import OPEN, check_replayed_announcement, released
from reporters import SCALED, Reporters, edges, report_of, reported
from round_helpers import announced as opened_of
from round_helpers import (
    begin,
    body_of,
    copy_of,
    losing,
    refused,
    resigned,
    restore,
    results,
    sealed_by,
    sent,
    until_the_end,
)

from dca_proto.errors import UsageError
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import (
    ANALYTIC_GAUSSIAN,
    GRID_LAPLACE,
    LOCAL_MECHANISMS,
    PURE_MECHANISMS,
    RANDOMISED_RESPONSE,
    UNARY_ENCODING,
)
from dca_proto.protocol import facts
from dca_proto.protocol.events import Received
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement, Receipt, Release
from dca_proto.runtime.logs import FactLog, configure_logs
from dca_proto.statistics import ADD_OR_REMOVE_ONE_CLIENT
from dca_proto.statistics.sum import Sum
from dca_proto.testing import Network, SeededRandom

SUMS = "distributed-discrete-gaussian"
"""What a node release is announced with."""


def gathering(by: str, categories: int = 5) -> tuple[Reporters, Network]:
    """A round of three in which the last client is not there: it goes on."""
    actors = Reporters(by, [0, 1, 2], categories)
    network = actors.network()
    network.down.add(actors.clients[-1])
    begin(actors, network)
    assert results(network) == []
    return actors, network


def give(network: Network, actors: Reporters, sender: bytes, payload: bytes, code: str) -> None:
    """The trainer drops it for that reason, and nothing has changed."""
    refused(network, actors.trainer_identity.id, sender, payload, code)


def report_of_the_last(actors: Reporters, network: Network, **changes: Any) -> tuple[bytes, bytes]:
    """The third client's id, and a report that it signs: that of the first one with some fields changed."""
    identity = actors.client_identities[2]
    body = report_of(actors, network, 0, certificate=actors.certificate(2), **changes)
    return identity.id, sealed_by(actors, identity, body, opened_of(network, actors))


# What is no report


@pytest.mark.parametrize(
    ("by", "categories", "vector", "code"),
    [
        (UNARY_ENCODING, 5, b"", "length"),
        (UNARY_ENCODING, 5, bytes(2), "length"),
        (UNARY_ENCODING, 5, b"\x20", "release"),  # the sixth bit of five
        (UNARY_ENCODING, 5, b"\xff", "release"),
        (UNARY_ENCODING, 9, bytes(1), "length"),
        (UNARY_ENCODING, 9, b"\0\2", "release"),
        (UNARY_ENCODING, 5, bytes(8), "length"),
        (RANDOMISED_RESPONSE, 5, b"\0", "length"),
        (RANDOMISED_RESPONSE, 5, bytes(8), "length"),
        (RANDOMISED_RESPONSE, 5, b"\5\0\0\0", "release"),
        (RANDOMISED_RESPONSE, 5, b"\0\0\0\1", "release"),  # big-endian
        (RANDOMISED_RESPONSE, 5, b"\xff\xff\xff\xff", "release"),
        (GRID_LAPLACE, 5, b"", "length"),
        (GRID_LAPLACE, 5, bytes(7), "length"),
        (GRID_LAPLACE, 5, bytes(9), "length"),  # what is outside of the ring of 64 bits
        (ANALYTIC_GAUSSIAN, 5, bytes(16), "length"),
    ],
)
def test_attack_20_bytes_that_the_mechanism_cannot_give(by: str, categories: int, vector: bytes, code: str) -> None:
    actors, network = gathering(by, categories)
    give(network, actors, *report_of_the_last(actors, network, vector=vector), code)
    assert len(network.reported(facts.ReleaseKept)) == 2


@pytest.mark.parametrize(
    ("by", "categories", "vector"),
    [
        (UNARY_ENCODING, 5, b"\x1f"),
        (UNARY_ENCODING, 8, b"\xff"),
        (UNARY_ENCODING, 9, b"\xff\1"),
        (RANDOMISED_RESPONSE, 5, b"\4\0\0\0"),
        (GRID_LAPLACE, 5, b"\xff" * 8),
    ],
)
def test_the_mechanisms_extreme_vector_is_accepted(by: str, categories: int, vector: bytes) -> None:
    actors, network = gathering(by, categories)
    sender, payload = report_of_the_last(actors, network, vector=vector)
    network.handle(actors.trainer_identity.id, Received(sender, payload))
    assert results(network)[0].contributors == 3


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
@pytest.mark.parametrize("rows", [0, 2, 2**32 - 1])
def test_attack_20_a_report_with_a_row_count_is_dropped(by: str, rows: int) -> None:
    """A report that reveals more than its mechanism is dropped; a client without a row stays in the result."""
    actors, network = gathering(by)
    give(network, actors, *report_of_the_last(actors, network, rows=rows), "release")


def test_attack_22_a_report_copied_from_another_client_or_in_its_name() -> None:
    actors, network = gathering(UNARY_ENCODING)
    stolen = released(network, actors.clients[0])[0].payload
    give(network, actors, actors.clients[2], stolen, "sender")
    give(network, actors, actors.clients[1], stolen, "known-release")
    sybil, opened = actors.client_identities[0], opened_of(network, actors)
    forged = report_of(actors, network, 0, certificate=actors.certificate(2))
    give(network, actors, actors.clients[2], sealed_by(actors, sybil, forged, opened), "signature")


def test_attack_23_messages_of_the_uninvited_are_dropped_and_a_flood_is_kept_up_to_the_limit() -> None:
    actors = Reporters(RANDOMISED_RESPONSE, [0, 1, 2])
    network = actors.network()
    network.tamper = losing(Announcement, to=actors.clients[1])
    begin(actors, network, invited=actors.clients[:2], clients=0)
    give(network, actors, *report_of_the_last(actors, network), "invited")
    network.tamper = lambda one: [one]
    network.actors[actors.trainer_identity.id]._limits = Limits(clients_max=2)
    begin(actors, network, clients=0)
    assert network.actors[actors.trainer_identity.id].dropped["releases"] == 1


# Replay, and second messages


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
def test_attack_7_the_same_report_again_after_the_end_after_a_restart_and_after_the_clean_up(by: str) -> None:
    actors = Reporters(by, [0, 1, 2])
    network = reported(actors)
    trainer, again = actors.trainer_identity.id, released(network, actors.clients[0])[0]
    for restarted in (False, True):
        if restarted:
            network.restart(trainer)
        (receipt,) = network.handle(trainer, Received(again.sender, again.payload))
        assert body_of(receipt.payload) == body_of(sent(network, Receipt, to=again.sender)[0].payload)
    assert {result.contributors for result in results(network)} == {3}
    until_the_end(network, hours=24 * 8)
    give(network, actors, again.sender, again.payload, "unknown-round")


def test_attack_7_an_announcement_again_after_the_end_and_after_a_restart() -> None:
    """A client never reports twice to one round: first it knows the round, and then its ledger does."""
    actors = Reporters(UNARY_ENCODING, [0, 1])
    network = reported(actors)
    check_replayed_announcement(network, actors.clients[0], actors.trainer_identity.id)


def test_attack_41_another_report_under_a_known_id_and_another_announcement() -> None:
    """The first one of each client counts, whatever its identity signs later; a round's id is of one announcement."""
    actors, network = gathering(UNARY_ENCODING)
    identity, opened = actors.client_identities[0], opened_of(network, actors)
    first = report_of(actors, network, 0)
    other = sealed_by(actors, identity, msgspec.structs.replace(first, vector=bytes([first.vector[0] ^ 1])), opened)
    give(network, actors, identity.id, other, "known-release")
    until_the_end(network)
    give(network, actors, identity.id, other, "known-release")
    genuine = sent(network, Announcement)[0].payload
    again = resigned(actors, actors.trainer_identity, genuine, mechanism=RANDOMISED_RESPONSE)
    refused(network, actors.clients[0], actors.trainer_identity.id, again, "replay")


def test_attack_24_a_report_of_another_round() -> None:
    """Neither the sealed bytes nor the signed body fit another announcement, of the same mechanism or another."""
    actors = Reporters(RANDOMISED_RESPONSE, [0, 1])
    network = reported(actors)
    old, body = released(network, actors.clients[0])[0], report_of(actors, network, 0)
    network.tamper = losing(Announcement)
    begin(actors, network)
    opened = opened_of(network, actors)
    moved = msgspec.structs.replace(body_of(old.payload), round_id=opened.body.round_id)
    give(network, actors, old.sender, encode(moved), "ciphertext")
    give(network, actors, old.sender, sealed_by(actors, actors.client_identities[0], body, opened), "release")


def test_attack_25_after_the_deadline_nothing_is_reported_or_taken() -> None:
    actors, network = gathering(GRID_LAPLACE)
    sender, late = report_of_the_last(actors, network)
    network.advance(opened_of(network, actors).body.commit_by_ms)
    trainer = network.actors[actors.trainer_identity.id]
    before = {one.id: dict(one.releases) for one in trainer._rounds.values()}
    (answer,) = trainer.handle(Received(sender, late), network.now_ms)
    assert isinstance(body_of(answer.payload), Receipt), "a notice that it was late; nothing is stored or reported"
    assert {one.id: one.releases for one in trainer._rounds.values()} == before
    network.down.clear()
    payload = sent(network, Announcement)[0].payload
    refused(network, actors.clients[2], actors.trainer_identity.id, payload, "late")
    assert network.actors[actors.clients[2]].ledger.charges == ()


def test_attack_31_a_forged_receipt_stops_nothing() -> None:
    actors = Reporters(UNARY_ENCODING, [0, 1])
    network = actors.network()
    network.tamper = losing(Receipt)
    begin(actors, network)
    client, trainer = actors.clients[0], actors.trainer_identity.id
    genuine = body_of(sent(network, Receipt, to=client)[0].payload)
    refused(network, client, trainer, encode(msgspec.structs.replace(genuine, tag=bytes(16))), "receipt")
    other = body_of(sent(network, Receipt, to=actors.clients[1])[0].payload)
    refused(network, client, trainer, encode(other), "receipt")
    count = len(released(network, client))
    network.advance(network.now_ms + 30_000)
    assert len(released(network, client)) > count, "it is still sent"


# Terms


@pytest.mark.parametrize(
    ("by", "changes", "reason", "found"),
    [
        (UNARY_ENCODING, {"epsilon": 1.5}, "epsilon", "1.5 at delta 0"),
        (UNARY_ENCODING, {"delta": 1e-6}, "announcement", "found delta 1e-06"),
        (UNARY_ENCODING, {"delta": math.nan}, "announcement", "found delta nan"),
        (UNARY_ENCODING, {"epsilon": math.inf}, "announcement", "epsilon is inf"),
        (UNARY_ENCODING, {"epsilon": -1.0}, "announcement", "epsilon is -1.0"),
        (UNARY_ENCODING, {"rows_max": 0}, "announcement", "rows_max is 0, expected 1"),
        (UNARY_ENCODING, {"statistic": "mean", "parameters": SCALED}, "announcement", "has no categories"),
        (UNARY_ENCODING, {"parameters": edges(7)}, "bounds", "x within -0.5 to 6.5"),
        (UNARY_ENCODING, {"parameters": {"columns": ["y"], "edges": [0.0, 1.0, 2.0]}}, "columns", "no column y"),
        (UNARY_ENCODING, {"mechanism": "histogram-encoding", "delta": 1e-6}, "announcement", "makes no reports"),
        (UNARY_ENCODING, {"kind": SecureSum(SUMS, 4, 2), "delta": 1e-6, "mu": 0.1}, "announcement", "M = 0 Compute"),
        (UNARY_ENCODING, {"mu": 0.1}, "announcement", "found delta 0 and mu 0.1"),
        (UNARY_ENCODING, {"epsilon": 1e-17}, "announcement", "is too small for 5 categories"),
        (RANDOMISED_RESPONSE, {"epsilon": 1e-17}, "announcement", "is too small for 5 categories"),
        (RANDOMISED_RESPONSE, {"epsilon": 1e-300}, "announcement", "epsilon is 1e-300"),
        (GRID_LAPLACE, {"epsilon": 1e-300}, "announcement", "epsilon is 1e-300"),
        (ANALYTIC_GAUSSIAN, {"delta": 0.0}, "announcement", "delta is 0.0, expected a number in (0, 1)"),
        (ANALYTIC_GAUSSIAN, {"delta": 1e-4}, "delta", "0.0001"),
        (ANALYTIC_GAUSSIAN, {"epsilon": 1.5}, "epsilon", "1.5 at delta 1e-06"),
        (ANALYTIC_GAUSSIAN, {"statistic": "second-moments"}, "statistic", "second-moments"),
        (ANALYTIC_GAUSSIAN, {"kind": NodeRelease(SUMS), "rows_max": 1}, "rows-of-many", "one row"),
    ],
)  # fmt: skip
def test_attack_16_weaker_terms_are_declined_with_a_reason(
    by: str, changes: dict[str, Any], reason: str, found: str
) -> None:
    """A trainer announces whatever it likes: each client compares it with its own policy, and charges nothing."""
    policy = Policy(statistics=("sum", "mean", "histogram"), bounds={"x": (-0.5, 4.5)})
    actors = Reporters(by, [0], policy=policy)
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    genuine = sent(network, Announcement)[0].payload
    by = changes["kind"].mechanism if "kind" in changes else by
    terms = {"mechanism": by, "epsilon": 1.0, "delta": body_of(genuine).delta, **changes}
    epsilon, pure = terms["epsilon"], terms["mechanism"] in PURE_MECHANISMS
    with contextlib.suppress(UsageError):  # a hostile trainer announces the μ that fits
        cost = PrivacyCost.of_pure(epsilon) if pure else PrivacyCost.of(epsilon, terms["delta"])
        changes = {"mu": cost.mu, **changes}
    payload = resigned(actors, actors.trainer_identity, genuine, round_id=bytes(16), **changes)
    network.handle(actors.clients[0], Received(actors.trainer_identity.id, payload))
    (declined,) = network.reported(facts.Declined)
    assert (declined.reason, network.actors[actors.clients[0]].ledger.charges) == (reason, ())
    assert found in declined.found
    assert not network.reported(facts.Contributed)


def test_attack_16_floors_and_rows_of_many_do_not_apply_to_reports() -> None:
    """A report protects all of a hospital's data, also if its policy has rows of many people."""
    for policy in (Policy(clients_min=1000, honest_min=900, computes_min=9), OPEN):
        actors = Reporters(GRID_LAPLACE, [0, 1], policy=policy)
        network = reported(actors)
        (result,) = results(network)
        assert result.sensitivity == pytest.approx(2.0, rel=1e-6)
        assert network.actors[actors.clients[0]].ledger.charges[0].relation == "replace-one-client"


def test_attack_16_a_sensitivity_of_another_relation_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    from dca_proto.statistics import base

    class OneSided(Sum, frozen=True, kw_only=True):  # type: ignore[misc]
        name = "one-sided"

        def row_sensitivity(self, fraction_bits: int) -> Any:
            return msgspec.structs.replace(super().row_sensitivity(fraction_bits), relation=ADD_OR_REMOVE_ONE_CLIENT)

    monkeypatch.setitem(base._REGISTRY, "one-sided", OneSided)
    actors = Reporters(GRID_LAPLACE, [0])
    network = actors.network()
    network.tamper = losing(Announcement)
    begin(actors, network)
    payload = resigned(actors, actors.trainer_identity, sent(network, Announcement)[0].payload, statistic="one-sided")
    network.handle(actors.clients[0], Received(actors.trainer_identity.id, payload))
    (declined,) = network.reported(facts.Declined)
    assert "a sensitivity under 'add-or-remove-one-client' was given" in declined.found


# Secrets and copies


class Watched(SeededRandom):
    """Random bytes of a client that are written down, as no device does."""

    def __init__(self, name: str, drawn: list[bytes]) -> None:
        super().__init__(name)
        self._drawn = drawn

    def __call__(self, size: int) -> bytes:
        self._drawn.append(super().__call__(size))
        return self._drawn[-1]


@pytest.mark.parametrize("by", LOCAL_MECHANISMS)
def test_attack_34_no_log_repr_or_store_shows_a_row_the_noise_or_a_key(by: str) -> None:
    """All facts and logs of client and trainer, and what a client stores, is searched for its secrets.

    No text shows the value (it is a number of nine digits), nor is the report before the result, nor any of the
    random bytes but those of the receipt's id, which is public.
    """
    value, drawn = 3.14159265, []
    actors = Reporters(by, [value, value], name="wiretap")
    network = actors.network()
    watched = Watched("wiretapped", drawn)
    network.actors[actors.clients[0]]._random = watched
    network.actors[actors.clients[0]]._composer = msgspec.structs.replace(
        network.actors[actors.clients[0]]._composer, random=watched
    )
    network.tamper = losing(Receipt)
    lines = io.StringIO()
    with redirect_stderr(lines):
        configure_logs(json=True, level=0)
        log = FactLog()
        begin(actors, network)
        body = report_of(actors, network, 0)
        give(network, actors, actors.clients[1], released(network, actors.clients[0])[0].payload, "known-release")
        for _, fact in network.facts:
            log(fact)
    configure_logs(level=30)
    client, trainer = network.actors[actors.clients[0]], network.actors[actors.trainer_identity.id]
    shown = [lines.getvalue(), repr(body)]
    shown += [repr(fact) for _, fact in network.facts] + [repr(one) for one in network.sent]
    shown += [repr(part) for actor in (client, trainer) for part in vars(actor).values()]
    shown += [repr(vars(one)) for one in trainer._rounds.values()]
    shown += [repr((one.stored, one.opened)) for one in client._rounds.values()]
    text = "\n".join(shown)
    assert "Contributed" in text, "the logs were written"
    keys = [one for one in drawn if len(one) == 32]
    assert len(keys) >= 2, "of the report and of the sealing"
    for secret in (*keys, body.receipt_key, *([body.vector] if len(body.vector) >= 8 else [])):
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
    assert "3.1415" not in text
    stored = b"".join(part for key, kept in network.stores[actors.clients[0]].items() for part in (key[1], kept))
    assert not [one for one in keys if one in stored], "a client keeps what it sent, sealed, and no key of it"
    assert np.float64(value).tobytes() not in stored


def test_attack_17_a_restored_copy_repeats_no_randomness_and_the_first_report_counts() -> None:
    """Documented break: a ledger restored from an old copy has forgotten the charge, and nobody notices.

    It reports once more for the same announcement, from other random bytes; an honest trainer keeps the first.
    """
    actors = Reporters(GRID_LAPLACE, [4, 4])
    network = actors.network()
    client, trainer = actors.clients[0], actors.trainer_identity.id
    network.down.add(actors.clients[1])
    copy = copy_of(network, client)
    begin(actors, network)
    first = report_of(actors, network, 0)
    restore(network, client, copy)
    network.handle(client, Received(trainer, sent(network, Announcement)[0].payload))
    second = report_of(actors, network, 0)
    assert second.vector != first.vector
    give(network, actors, client, released(network, client)[-1].payload, "known-release")
    until_the_end(network)
    kept = np.frombuffer(first.vector, dtype="<i8") / 2**24
    assert results(network)[0].reports.values.tolist() == [kept.tolist()]


def test_attack_26_a_false_category_moves_a_count_by_one_report_and_a_vector_far_out_is_left_out() -> None:
    """Documented break: a client's report is accepted where noise may reach; of a category it is one report."""
    actors, network = gathering(UNARY_ENCODING)
    sender, payload = report_of_the_last(actors, network, vector=b"\x1f")
    network.handle(actors.trainer_identity.id, Received(sender, payload))
    (result,) = results(network)
    p, q = result.reports.probabilities
    honest = result.reports.values.sum(axis=0) - 1
    moved = result.value - (honest - 2 * q) / (p - q)
    assert moved == pytest.approx(np.full(5, (1 - q) / (p - q)))
    actors, network = gathering(GRID_LAPLACE)
    lie = np.array([1000 << 24], dtype="<i8").tobytes()
    sender, payload = report_of_the_last(actors, network, vector=lie)
    network.handle(actors.trainer_identity.id, Received(sender, payload))
    (result,) = results(network)
    assert 1000.0 not in result.reports.values
    (doubt,) = result.doubts
    assert sender.hex()[:12] in doubt


def test_all_reports_of_a_round_have_one_length() -> None:
    """Whatever a client holds, a row or none: the broker sees sizes."""
    for by in LOCAL_MECHANISMS:
        actors = Reporters(by, [0, 4, None, math.nan])
        network = reported(actors)
        assert len({len(one.payload) for one in released(network)}) == 1
        assert all(isinstance(report_of(actors, network, index), Release) for index in range(4))
