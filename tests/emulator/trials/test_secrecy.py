"""The checker of secrets: it holds for production actors, and each planted fault of secrecy breaks it.

`scripts/planted_faults.toml` has more, which a sweep must find.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from trial_helpers import run, small

from dca_proto.crypto import labels, masks, sealing
from dca_proto.crypto.sealing import NONCE_BYTES, AgreementKey, Identity, derive, digest
from dca_proto.privacy import noise
from dca_proto.protocol import announcement, contribution, federation, names, pairing
from dca_proto.protocol.client import answer
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Effect, Report
from dca_proto.protocol.facts import DataFailed
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire.kinds import NODE_RELEASE
from dca_proto.protocol.wire.messages import Certificate
from dca_proto.testing import TestFederation

NUMBER = 12
ID_BYTES = 16
Plant = Callable[[pytest.MonkeyPatch], None]


def replacing(where: Any, name: str, made: Callable[..., Any]) -> Plant:
    """A fault: `made` runs instead of a function, and gets it as its first argument."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *given, **more: made(honest, *given, **more))

    return plant


def short_key(_: Any, key: bytes, chunk: int) -> bytes:
    return hashlib.blake2b(bytes([chunk % 256]), digest_size=32, key=key[:8], person=labels.NOISE_CHUNK).digest()


def tells_its_secret(honest: Any, self: Client, *given: Any) -> list[Effect]:
    effects: list[Effect] = honest(self, *given)
    return [*effects, Report(DataFailed(bytes(16), f"mean {self._identity.hedge.hex()}", "OSError"))]


def pointless(_: Any, self: AgreementKey, label: bytes, peer: bytes, *binding: bytes) -> bytes:
    return digest(label, *sorted((self.public, peer)), *binding)


def fixed_key(_: Any, label: bytes, public: bytes, plaintext: bytes, associated: bytes, random: Any) -> Any:
    own, nonce = AgreementKey(digest(labels.EPHEMERAL, public, associated)), random(24)
    return own.public, nonce, sealing.encrypt(own.agree(label, public), nonce, plaintext, associated)


def own_head(honest: Any, *given: bytes) -> masks.ContributionKeys:
    seal = honest(*given).seal
    return masks.ContributionKeys(seal, seal[:ID_BYTES], seal[ID_BYTES:])


def without_random(honest: Any, self: Trainer, *given: Any) -> list[Effect]:
    own, self._random = self._random, bytes
    try:
        effects: list[Effect] = honest(self, *given)
        return effects
    finally:
        self._random = own


def overlapping(honest: Any, absorbed: Any, dimension: int) -> Any:
    words = honest(absorbed, dimension).copy()
    words[:, 1] = words[:, 0]
    return words


FAULTS: dict[str, Plant] = {
    "the receipt's label": replacing(contribution, "noise_key", lambda _, root: derive(root, labels.RECEIPT_KEY)),
    "the id in clear": replacing(contribution, "noise_key", lambda _, root: 2 * contribution.contribution_id(root)),
    "half of the key in clear": replacing(
        contribution, "contribution_id", lambda _, root: contribution.noise_key(root)[:ID_BYTES]
    ),
    "public values": replacing(contribution, "noise_key", lambda _, root: hashlib.sha256(b"noise").digest()),
    "no secret": replacing(contribution, "hedged_root", lambda _, identity, fresh, *given: fresh),
    "no fresh bytes": replacing(
        contribution, "hedged_root", lambda honest, one, fresh, *given: honest(one, bytes(32), *given)
    ),
    "no value": replacing(contribution, "hedged_root", lambda honest, *given: honest(*given[:-1], 0 * given[-1])),
    "a short key": replacing(noise, "_chunk_seed", short_key),
    "an epoch without a secret": replacing(Identity, "hedged", lambda _, self, label, message, *size: message[:32]),
    "a tag of the key": replacing(contribution, "contribution_keys", own_head),
    "a reply key that repeats": replacing(Trainer, "_announce", without_random),
    "masks with the tag": replacing(masks, "_pads", overlapping),
    "no point": replacing(AgreementKey, "agree", pointless),
    "a key of public values": replacing(announcement, "seal_to", fixed_key),
    "one label for both": replacing(
        announcement, "seal_to", lambda honest, label, *given: honest(labels.REPLY, *given)
    ),
    "no epochs": replacing(pairing, "epoch_bytes", lambda honest, epoch: honest(0)),
    "in a fact": replacing(Client, "_contribute", tells_its_secret),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_secrecy_breaks_the_twelfth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    _, outcome = run(small(clients=3))
    assert NUMBER in outcome.broken, outcome.broken


def test_the_store_and_the_hedge_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Identity, "store_key", property(lambda self: self.hedge))
    _, outcome = run(small(clients=3))
    assert "the key of its store" in outcome.broken[NUMBER]


def test_a_release_has_a_receipt_key_and_a_noise_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "noise_key", lambda root: derive(root, labels.RECEIPT_KEY))
    _, outcome = run(small(clients=3, kind=NODE_RELEASE, rows_max=1))
    assert "noise key" in outcome.broken[NUMBER]


@pytest.mark.parametrize("leaks", [False, True])
def test_certificates_with_names_do_not_give_the_name_key_away(leaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(self: TestFederation, index: int, expires_ms: int = 1 << 52) -> Certificate:
        key = self.client_identities[index].public_key
        return federation.enrol(self.authority, self.federation, key, expires_ms, f"Station {index}")

    def seal_name(key: bytes, *about: Any) -> bytes:
        return key[:NONCE_BYTES] + names.seal_name(key, *about)[NONCE_BYTES:]

    monkeypatch.setattr(TestFederation, "certificate", named)
    if leaks:
        monkeypatch.setattr(federation, "seal_name", seal_name)
    _, outcome = run(small(clients=3))
    assert [NUMBER] * leaks == list(outcome.broken)
    assert not leaks or "the name key of the federation is known to others" in outcome.broken[NUMBER]


@pytest.mark.parametrize("kind", ["secure-sum", NODE_RELEASE])
def test_it_holds_for_production_actors_and_knows_each_kind_of_secret(kind: str) -> None:
    _, outcome = run(small(clients=3, kind=kind, rows_max=1))
    assert outcome.broken == {}
    (found,) = [one for one in outcome.invariants if one.number == NUMBER]
    assert found.checked > 100
