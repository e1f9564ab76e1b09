"""The test vectors against our codec, the reference `msgpack`, and the script that writes them.

Every hash and key is worked out here once more, by hashlib and libsodium alone: a second implementation of DESIGN §2.4.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from nacl import bindings

from dca_proto.crypto.sealing import AgreementKey, Identity, actor_id, decrypt, open_sealed, verify
from dca_proto.errors import PeerError
from dca_proto.privacy.local import resolve
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import PROTOCOL_VERSION
from dca_proto.protocol.wire import messages
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import Sealed
from dca_proto.statistics import Sensitivity

FILE = Path(__file__).parent / "vectors" / f"v{PROTOCOL_VERSION}.json"
SCRIPT = Path(__file__).parents[3] / "scripts" / "make_vectors.py"
VECTORS = json.loads(FILE.read_text())
VARIANTS = {"Announcement of a node release", "Announcement of an LDP report", "Release of a report"}
"""Kinds that stand there more than once."""
DECODE = {"frame": decode_frame, "body": decode_body}


def parsed(value: Any) -> Any:
    """JSON with bytes for every "hex:..."."""
    if isinstance(value, str) and value.startswith("hex:"):
        return bytes.fromhex(value[4:])
    if isinstance(value, dict):
        return {name: parsed(item) for name, item in value.items()}
    return [parsed(item) for item in value] if isinstance(value, list) else value


def answer(what: str) -> tuple[dict[str, Any], Any]:
    (entry,) = [one for one in VECTORS["keys"] if one["what"] == what]
    return parsed(entry["given"]), parsed(entry["expected"])


def test_every_kind_of_message_has_a_vector() -> None:
    kinds = {kind.__name__ for union in (messages.Frame, messages.Body) for kind in union.__args__}
    assert {one["kind"] for one in VECTORS["messages"]} == kinds | VARIANTS


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda one: one["kind"])
def test_a_message_decodes_to_its_fields_and_encodes_to_its_bytes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    message = DECODE[vector["is"]](data)
    assert type(message).__name__ == vector["kind"].partition(" of ")[0]
    assert encode(message) == data
    assert msgspec.msgpack.decode(data) == parsed(vector["decoded"])


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda one: one["kind"])
def test_the_reference_msgpack_reads_and_writes_the_same(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["bytes"]), parsed(vector["decoded"])
    assert msgpack.unpackb(data) == fields
    assert msgpack.packb(fields) == data


@pytest.mark.parametrize("vector", VECTORS["must_not_decode"], ids=lambda one: one["what"])
def test_what_must_not_decode(vector: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="malformed"):
        DECODE[vector["is"]](bytes.fromhex(vector["bytes"]))


@pytest.mark.parametrize("vector", VECTORS["must_not_verify"], ids=lambda one: f"{one['is']}-{one['changed']}")
def test_what_must_not_verify(vector: dict[str, Any]) -> None:
    given = parsed(vector)
    if vector["is"] == "signature":
        with pytest.raises(PeerError, match="signature"):
            verify(given["public"], given["federation id"], given["body"], given["signature"])
    else:
        with pytest.raises(PeerError, match="ciphertext"):
            decrypt(given["key"], given["nonce"], given["ciphertext"], given["associated"])


def blake2b(person: str, *parts: bytes, key: bytes = b"", size: int = 32) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=size, key=key, person=person.encode()).digest()


def framed(person: str, *parts: bytes) -> bytes:
    """A digest of parts, each behind its length in 8 bytes."""
    return blake2b(person, *(piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)))


def pad(key: bytes, ah: bytes, entry: bytes, dimension: int) -> bytes:
    """Tag and mask (DESIGN §2.4)."""
    sponge, size = hashlib.shake_128(key + b"dca4-mask" + ah + entry), 8 + 8 * dimension
    if size <= 1024:
        return sponge.digest(size)
    head = sponge.digest(40)
    return head[:8] + bindings.randombytes_buf_deterministic(size - 8, head[8:])


def test_hashes() -> None:
    for what, person in (
        ("digest", "dca4-list"),
        ("announcement hash", "dca4-announce"),
        ("hello hash", "dca4-hello"),
        ("list hash", "dca4-list"),
        ("set hash", "dca4-set"),
        ("answer hash", "dca4-answer"),
    ):
        given, expected = answer(what)
        given.pop("person", None)
        flat = [part for value in given.values() for part in (value if isinstance(value, list) else [value])]
        assert framed(person, *flat) == expected, what
    given, expected = answer("entry")
    assert given["client"] + given["contribution"] + given["charge"].to_bytes(4, "little") == expected
    given, expected = answer("actor id")
    assert Identity(given["seed"]).public_key == given["public"]
    assert actor_id(given["public"]) == expected == blake2b("dca1-id", given["public"], size=16)
    given, expected = answer("federation id")
    assert framed("dca4-federation", *given.values()) == expected
    given, expected = answer("federation file")
    federation = Federation.from_toml(given["toml"])
    assert federation.frame.body == expected
    given, expected = answer("federation hash")
    assert framed("dca4-file", *given.values()) == expected == federation.hash
    assert given["federation id"] == federation.id


def test_derived_keys() -> None:
    for what, person, size in (
        ("derive", "dca4-one", 32),
        ("contribution keys", "dca4-one", 64),
        ("ask tag", "dca4-ask", 16),
    ):
        given, expected = answer(what)
        given.pop("person", None)
        key, *message = given.values()
        assert blake2b(person, *message, key=key, size=size) == expected, what
    for what in ("tag and mask", "long tag and mask"):
        given, expected = answer(what)
        assert pad(*given.values()) == expected
        assert len(expected) == 8 + 8 * given["dimension"]
    given, expected = answer("hedged root")
    words = np.array(given["value"], dtype="<i8").tobytes()
    charge = given["charge"].to_bytes(4, "little")
    hedge = blake2b("dca4-hedge", key=given["seed"])
    message = (given["fresh"], given["hello"], given["ah"], charge, words)
    assert blake2b("dca4-root", *message, key=hedge, size=48) == expected


def test_holders() -> None:
    """Multiply-shift hashing of a client's first 8 bytes by two words of ah."""
    given, expected = answer("holders")
    factor, offset = (int.from_bytes(given["ah"][at : at + 8], "little") for at in (0, 8))
    for client, holder in zip(given["clients"], expected, strict=True):
        hashed = ((factor | 1) * int.from_bytes(client[:8], "little") + offset) % 2**64 // 2**32
        assert hashed * given["nodes"] // 2**32 == holder
    assert len(set(expected)) > 5


def test_agreement() -> None:
    for what, person in (("agreement", "dca4-reply"), ("pair key", "dca4-pair")):
        given, expected = answer(what)
        secret, peer, *binding = given.values()
        publics = sorted((bindings.crypto_scalarmult_base(secret), peer))
        bound = [part.to_bytes(4, "big") if isinstance(part, int) else part for part in binding]
        assert framed(person, bindings.crypto_scalarmult(secret, peer), *publics, *bound) == expected


def test_signatures_and_sealing() -> None:
    given, expected = answer("signature")
    identity = Identity(given["seed"])
    assert identity.sign(given["federation id"], given["body"]) == expected
    verify(identity.public_key, given["federation id"], given["body"], expected)
    bindings.crypto_sign_open(
        expected + b"dca1-signature" + given["federation id"] + given["body"], identity.public_key
    )
    given, expected = answer("signed")
    verify(identity.public_key, given["federation id"], b"\4" + given["body"], expected)
    given, expected = answer("sealed")
    sealed = msgspec.convert(expected, Sealed)
    receiver = AgreementKey(bytes(range(32, 64)))
    assert receiver.public == given["public"]
    opened = open_sealed(receiver, sealed.ephemeral, sealed.nonce, sealed.ciphertext, given["associated"])
    assert opened == given["plaintext"]


def test_a_contribution_byte_for_byte() -> None:
    """Noise aside, from the secrets to the payload; and what the nodes add gives the value with its noise."""
    given = parsed(VECTORS["contribution"])
    ah, keys, charge = given["ah"], given["pair keys"], given["charge"].to_bytes(4, "little")
    client = Identity(given["seed"]).id
    words = np.array(given["value"], dtype="<i8").tobytes()
    hedge = blake2b("dca4-hedge", key=given["seed"])
    root = blake2b("dca4-root", given["fresh"], given["hello"], ah, charge, words, key=hedge, size=48)
    contribution = root[32:]
    pads = [pad(key, ah, client + contribution + charge, 3) for key in keys]
    masks = [[int.from_bytes(one[at : at + 8], "little") for at in (8, 16, 24)] for one in pads]
    noisy = [value + noise for value, noise in zip(given["value"], given["noise"], strict=True)]
    y = [(noisy[at] - sum(mask[at] for mask in masks)) % 2**64 for at in range(3)]
    plaintext = charge + b"".join(one[:8] for one in pads) + b"".join(word.to_bytes(8, "little") for word in y)
    own = blake2b("dca4-one", ah, contribution, key=keys[1], size=64)
    associated = ah + client + given["holder"] + contribution
    ciphertext = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plaintext, associated, bytes(24), own[:32])
    assert msgpack.packb([3, given["round"], contribution, ciphertext]) == given["payload"]
    assert own[32:48] == given["receipt"]
    assert any(given["noise"])
    assert [abs(one) < 10 * given["noise variance"] ** 0.5 for one in given["noise"]] == [True] * 3


@pytest.mark.parametrize("vector", VECTORS["invitations"], ids=lambda one: str(len(one["clients"])))
def test_invitations(vector: dict[str, Any]) -> None:
    """The tree by recursion: the left part of n leaves holds the largest power of two below n."""
    given = parsed(vector)

    def tree(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return framed("dca4-leaf", leaves[0])
        left = 1 << (len(leaves) - 1).bit_length() - 1
        return framed("dca4-node", tree(leaves[:left]), tree(leaves[left:]))

    def path(leaves: list[bytes], place: int) -> list[bytes]:
        if len(leaves) == 1:
            return []
        left = 1 << (len(leaves) - 1).bit_length() - 1
        if place < left:
            return [*path(leaves[:left], place), tree(leaves[left:])]
        return [*path(leaves[left:], place - left), tree(leaves[:left])]

    assert tree(given["clients"]) == given["root"]
    assert [path(given["clients"], place) for place in range(len(given["clients"]))] == given["paths"]


@pytest.mark.parametrize("vector", VECTORS["reports"], ids=lambda one: one["mechanism"])
def test_reports_of_the_local_mechanisms(vector: dict[str, Any]) -> None:
    given = parsed(vector)
    if "sensitivity" in given["parameters"]:
        given["parameters"]["sensitivity"] = Sensitivity(*given["parameters"]["sensitivity"])
    one = resolve(given["mechanism"], given["parameters"])
    for value, expected in given["reports"]:
        (report,) = one.randomise([value], given["key"])
        assert one.encode(report) == expected
        assert np.array_equal(one.decode(expected), report)
    for wrong in given["are no reports"]:
        with pytest.raises(PeerError, match=r"length|release"):
            one.decode(wrong)


def test_the_script_writes_this_very_file() -> None:
    """A difference is a change of the wire format: raise PROTOCOL_VERSION, or take the change back."""
    spec = importlib.util.spec_from_file_location("make_vectors", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PATH == FILE
    assert script.render() == FILE.read_text()
