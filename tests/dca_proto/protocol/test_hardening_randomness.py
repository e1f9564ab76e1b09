"""Point 3 of the hardening: a snapshot that also restores the random generator repeats no noise and no key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hospitals import Hospitals
from reporters import Reporters
from round_helpers import announced, begin, body_of, losing, recompose, sends

from dca_proto.crypto import labels
from dca_proto.crypto.sealing import AgreementKey, Identity, open_sealed, seal_to
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.protocol import contribution
from dca_proto.protocol.client import answer
from dca_proto.protocol.events import Received
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Announcement, Contribution, Sealed
from dca_proto.testing import TestFederation

NOW_MS = 1_700_000_000_000
CASTS: dict[str, Callable[[], TestFederation]] = {
    "secure sum": lambda: TestFederation(4, 3),
    "node release": lambda: Hospitals(2),
    **{name: lambda name=name: Reporters(name, [1, 2]) for name in LOCAL_MECHANISMS},
}


def same_bytes(size: int) -> bytes:
    """A random generator that was restored with the machine, and repeats its output."""
    return bytes(index % 251 for index in range(size))


def earlier(number: int) -> tuple[str, bytes, bytes]:
    """The record of a charge, so that the next has another number."""
    entry = Charge(bytes([number]) * 16, "mean", bytes(16), mu=0.01, epsilon=0.01, delta=1e-6, at_ms=0, number=number)
    return LEDGER, entry.round_id, msgspec.msgpack.encode(entry)


class Snapshot:
    """Client 0 started again and again from one copy of a machine; what it drew and what it sent, by what differed."""

    def __init__(self, actors: TestFederation, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: list[bytes] = []
        self.sent: list[bytes] = []
        self._actors = actors
        network = actors.network()
        network.tamper = losing(Announcement, to=b"")
        self.payloads = []
        for _ in range(2):
            begin(actors, network)
            self.payloads.append(encode(announced(network, actors).frame))
        root = contribution.hedged_root
        for module in (contribution, answer):
            monkeypatch.setattr(module, "hedged_root", lambda *given: self._note(root(*given)))
        self._records = [(table, key, value) for (table, key), value in network.stores[actors.clients[0]].items()]

    def _note(self, root: bytes) -> bytes:
        self.drawn.append(root)
        return root

    def start(self, *, payload: int = 0, value: float = 1.0, charges: Iterable[int] = ()) -> None:
        actor = self._actors.client(0, [*self._records, *map(earlier, charges)])
        actor._random = same_bytes
        recompose(actor, random=same_bytes, rows=lambda columns: np.array([[value]]))
        effects = actor.handle(Received(self._actors.trainer_identity.id, self.payloads[payload]), NOW_MS)
        self.sent += [one.payload for one in sends(effects) if isinstance(body_of(one.payload), Contribution | Sealed)]


@pytest.mark.parametrize("kind", CASTS)
def test_hardening_3_a_restored_generator_does_not_repeat_noise_when_announcement_charge_or_value_differ(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Snapshot(CASTS[kind](), monkeypatch)
    snapshot.start()
    snapshot.start(value=0.0)
    snapshot.start(payload=1)
    snapshot.start(charges=[1])
    snapshot.start(charges=[1, 2], payload=1, value=0.0)
    assert len(snapshot.sent) == len(set(snapshot.drawn)) == 5
    heads = [body_of(one).ephemeral if kind != "secure sum" else body_of(one).contribution for one in snapshot.sent]
    assert len(set(heads)) == 5, "nor is any sealed under the key of another"


@pytest.mark.parametrize("kind", CASTS)
def test_hardening_3_residual_risk_the_same_input_gives_the_same_bytes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the broker sees whether a value has changed, for one announcement, charge number and session; and no more."""
    snapshot = Snapshot(CASTS[kind](), monkeypatch)
    snapshot.start()
    snapshot.start()
    assert snapshot.sent[0] == snapshot.sent[1]
    assert snapshot.drawn[0] == snapshot.drawn[1]


def test_hardening_3_another_identity_draws_other_noise_from_the_same_generator() -> None:
    """The images of many devices: each has a key of its own."""
    given: tuple[Any, ...] = (bytes(32), bytes(32), bytes(32), 1, np.zeros(3, dtype=np.int64))
    roots = {contribution.hedged_root(Identity(bytes([number]) * 32), *given) for number in range(8)}
    assert len(roots) == 8


def test_hardening_3_two_texts_are_never_sealed_under_one_key() -> None:
    """One key and nonce for two texts would show their difference, and forge a third."""
    receiver, other = AgreementKey(bytes(range(32))), AgreementKey(bytes(range(1, 33)))
    cases = [(receiver, b"text", b"round"), (receiver, b"Text", b"round"), (receiver, b"text", b"other")]
    every = [*cases, (other, b"text", b"round")]
    sealed = [seal_to(labels.REPLY, key.public, text, about, same_bytes) for key, text, about in every]
    assert len({ephemeral for ephemeral, _, _ in sealed}) == 4
    for one, (_, text, about) in zip(sealed, cases, strict=False):
        assert open_sealed(labels.REPLY, receiver, *one, about) == text
    assert seal_to(labels.REPLY, receiver.public, b"text", b"round", same_bytes) == sealed[0]
