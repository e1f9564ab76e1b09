"""Attack 34: logs, metrics, error texts and `repr` never hold masks, noise, keys or data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from round_helpers import announced, begin, body_of, flipped, sent, until_the_end
from wiretap import keys_of

from dca_proto import testing
from dca_proto.crypto.masks import contribution_keys
from dca_proto.crypto.sealing import KEY_BYTES, AgreementKey, Identity
from dca_proto.protocol.effects import Effect, Persist, Report
from dca_proto.protocol.events import Received
from dca_proto.protocol.facts import Dropped
from dca_proto.protocol.wire.messages import Close, Contribution, FrozenList
from dca_proto.testing import Network, TestFederation


class Recorder:
    """Stands in for the seeded streams and keeps every draw of 32 bytes: a key of some kind, each of them."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def seeded(self, name: str) -> Any:
        stream = testing.SeededRandom(name)

        def draw(size: int) -> bytes:
            drawn = stream(size)
            self.keys += [drawn] if size == KEY_BYTES else []
            return drawn

        return draw


@pytest.fixture
def played(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> tuple[TestFederation, Network, set[bytes]]:
    """A full round with a restart, damaged messages and a drop, and all secrets that it had."""
    caplog.set_level(logging.DEBUG)
    recorder = Recorder()
    monkeypatch.setattr(testing, "seeded", recorder.seeded)
    rows = [np.array([[0.123456789 + index / 100]]) for index in range(4)]
    actors = TestFederation(4, 3, rows=rows)
    network = actors.network()
    begin(actors, network)
    for one in [*sent(network, Contribution), *sent(network, FrozenList), *sent(network, Close)]:
        network.handle(one.to.id, Received(one.sender, flipped(one.payload, len(one.payload) - 20)))
    opened = announced(network, actors)
    pairs = [key for client in actors.clients for keys in keys_of(network.actors[client], opened) for key in keys]
    network.restart(actors.clients[0])
    until_the_end(network)
    secrets = set(recorder.keys) | set(pairs) | {one.hedge for one in actors.client_identities}
    for sender, key in zip(actors.clients, pairs[::3], strict=True):
        contribution = body_of(sent(network, Contribution, sender=sender)[0].payload).contribution
        secrets.add(contribution_keys(key, opened.hash, contribution).seal)
    for store in network.stores.values():
        secrets |= {value for (table, _), value in store.items() if table == "epoch"}
    assert len(secrets) > 30
    return actors, network, secrets


def spellings(secret: bytes) -> Iterator[str]:
    """How bytes come into a text: as hexadecimal, as `repr`, as numbers, raw."""
    yield secret.hex()
    yield repr(secret)[2:-1]
    yield str(list(secret))[1:-1]
    yield secret.decode("latin-1")


def texts_of(network: Network) -> Iterator[str]:
    for _, fact in network.facts:
        yield repr(fact)
        yield str(fact)
    for actor in network.actors.values():
        yield repr(actor)
        for value in vars(actor).values():
            if not isinstance(value, bytes):
                yield repr(value)
    yield from (repr(one) for one in network.sent)


def test_attack_34_no_text_of_a_whole_round_holds_a_secret(
    played: tuple[TestFederation, Network, set[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """Facts, errors, logs and the `repr` of every attribute of every actor, against every key and every row."""
    _, network, secrets = played
    assert network.reported(Dropped), "error texts are among them"
    everything = "\n".join([*texts_of(network), caplog.text])
    for secret in secrets:
        for spelling in spellings(secret):
            assert spelling not in everything
    for index in range(4):
        assert f"{0.123456789 + index / 100:.7f}"[:8] not in everything


def test_attack_34_the_stored_records_do_not_show_in_effects(
    played: tuple[TestFederation, Network, set[bytes]],
) -> None:
    _, network, secrets = played
    keys = [value for store in network.stores.values() for (table, _), value in store.items() if table == "epoch"]
    assert len(set(keys) & secrets) >= 7, "of four clients and three nodes"
    effects: list[Effect] = [Persist("epoch", b"key", value) for value in keys] + [Report(None)]
    shown = repr(effects)
    assert not [key for key in keys for spelling in spellings(key) if spelling in shown]


@pytest.mark.parametrize("kind", [Identity, AgreementKey])
def test_attack_34_objects_that_hold_keys_show_their_public_part_only(kind: type) -> None:
    secret = bytes(range(100, 132))
    instance = kind(secret)
    for text in (repr(instance), str(instance), f"{instance}"):
        assert not [spelling for spelling in spellings(secret) if spelling in text]
        assert (instance.id if kind is Identity else instance.public).hex() in text


def test_attack_34_nothing_that_was_stored_of_a_contribution_is_a_key(
    played: tuple[TestFederation, Network, set[bytes]],
) -> None:
    """The 32 fresh bytes of a contribution, its pair keys and its sealing key are in no record and no message."""
    actors, network, secrets = played
    records = [(table, value) for store in network.stores.values() for (table, _), value in store.items()]
    kept = {value for table, value in records if table == "epoch"}
    kept |= {msgspec.msgpack.decode(value)["reply_secret"] for table, value in records if table == "trainer-round"}
    sent_bytes = b"".join(one.payload for one in network.sent)
    stored = b"".join(value for client in actors.clients for value in network.stores[client].values())
    for secret in secrets - kept:
        assert secret not in sent_bytes
        assert secret not in stored
