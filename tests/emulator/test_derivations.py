"""The second derivation of all keys: its labels are those of DESIGN §9, and its results those of the test vectors."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import vector_file

import dca_proto
from dca_proto.crypto.sealing import KEY_BYTES, Identity, verify
from dca_proto.protocol import enrolment
from dca_proto.testing import seeded
from emulator import derivations

ROOT = Path(dca_proto.__file__).parents[1]


def answer(what: str) -> tuple[list[Any], Any]:
    """Return the inputs in their order, and the result."""
    given, expected = vector_file.answer(what)
    return list(given.values()), expected


def test_the_labels_are_those_of_the_design() -> None:
    text = (ROOT / "dca_proto" / "DESIGN.md").read_text(encoding="utf-8")
    prefix, found = derivations.PREFIX.decode(), defaultdict(set)
    for label, how in re.findall(rf"^\| `{prefix}([a-z-]+)` \| ([A-Za-z0-9]+) ", text, re.MULTILINE):
        found[how].add(label)
    assert found == {how: set(labels) for how, labels in derivations.LABELS.items()}


def test_keys_of_a_pair() -> None:
    (secret, peer, federation, client, epoch, node, node_epoch), expected = answer("pair key")
    own = derivations.bindings.crypto_scalarmult_base(secret)
    assert derivations.pair_key(secret, peer, own, federation, (client, epoch), (node, node_epoch)) == expected
    for what in ("tag and mask", "long tag and mask"):
        given, expected = answer(what)
        assert derivations.tag_and_mask(*given) == expected
    given, expected = answer("contribution keys")
    assert b"".join(derivations.contribution_keys(*given)) == expected


def test_the_root_and_what_follows_from_it() -> None:
    (seed, fresh, hello, ah, charge, value), expected = answer("hedged root")
    words = b"".join((number % 2**64).to_bytes(8, "little") for number in value)
    root = derivations.root(derivations.hedge(seed), fresh, hello, ah, charge, words)
    own_id = derivations.derive(root, "contrib-id", size=16)
    assert [root, derivations.derive(root, "noise"), own_id] == expected


def test_a_sealed_message() -> None:
    (public, fresh, nonce, plaintext, associated), expected = answer("sealed")
    _, _, ephemeral, _, ciphertext = expected
    secret = derivations.ephemeral_secret([bytes(32), fresh], ephemeral, public, plaintext, associated)
    assert secret is not None
    key = derivations.sealing_key("reply", secret, public, ephemeral)
    assert derivations.opened(key, nonce, ciphertext, associated) == plaintext
    assert derivations.opened(key, nonce, ciphertext, bytes(32)) is None
    assert derivations.ephemeral_secret([bytes(32)], ephemeral, public, plaintext, associated) is None
    other = derivations.sealing_key("peer-list", secret, public, ephemeral)
    assert derivations.opened(other, nonce, ciphertext, associated) is None


def test_what_a_registrar_derives() -> None:
    """Its passwords, the hashes of its codes and of entrances, and what the two requests of a device sign."""
    device, registrar = (Identity(seeded(name)(KEY_BYTES)) for name in ("device", "registrar"))
    federation, code, now_ms = seeded("federation")(32), seeded("code")(16), 1_700_000_000_000
    password = derivations.derive(registrar.seed, "broker-pass", device.id, 24)
    assert base64.urlsafe_b64decode(enrolment.broker_password(registrar, device.id)) == password
    assert enrolment.code_hash(federation, code) == derivations.digest("enrol-code", federation, code)
    entrance = enrolment.Entrance("host", 1, "mqtts://host", "ca", "file")
    packed = msgspec.msgpack.encode(["host", 1, "mqtts://host", "ca", "file"])
    assert entrance.digest == derivations.digest("entrance", packed)[:16]
    for request, label, inputs in (
        (enrolment.enrol_request(device, federation, code), b"enrol-request", code + device.public_key),
        (enrolment.renew_request(device, federation, now_ms), b"renew-request",
         device.public_key + now_ms.to_bytes(8, "little")),
    ):  # fmt: skip
        verify(device.public_key, federation, derivations.PREFIX + label + inputs, request.signature)
