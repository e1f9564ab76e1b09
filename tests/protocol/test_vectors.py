"""The test vectors against our codec, against the reference `msgpack`, and against the script that writes them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest

from dca_proto.core import messages
from dca_proto.core.codec import decode_body, decode_frame, encode
from dca_proto.core.errors import PeerError
from dca_proto.core.federation import Federation
from dca_proto.core.mechanism import DistributedDiscreteGaussian
from dca_proto.core.messages import Sealed
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.sealing import (
    AgreementKey,
    Identity,
    actor_id,
    decrypt,
    derive,
    digest,
    encrypt,
    open_sealed,
    verify,
)
from dca_proto.core.shares import check_body, mask, share_bodies, vector_node
from dca_proto.core.upload import associated_data, plaintext, receipt_tag, round_key
from dca_proto.local import resolve
from dca_proto.statistics import Sensitivity

FILE = Path(__file__).parent / "vectors" / f"v{PROTOCOL_VERSION}.json"
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_vectors.py"
VECTORS = json.loads(FILE.read_text())
VARIANTS = {"Announcement of a local round", "Announcement of a report round", "Release of a report"}
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
            verify(given["public"], given["federation hash"], given["body"], given["signature"])
    else:
        with pytest.raises(PeerError, match="ciphertext"):
            decrypt(given["key"], given["nonce"], given["ciphertext"], given["associated"])


def test_hashes_and_keys() -> None:
    given, expected = answer("digest")
    assert digest(given["person"].encode(), *given["parts"]) == expected
    given, expected = answer("derive")
    assert derive(given["key"], given["person"].encode()) == expected
    given, expected = answer("actor id")
    assert Identity(given["seed"]).public_key == given["public"]
    assert actor_id(given["public"]) == expected
    given, expected = answer("federation hash")
    assert Federation.from_toml(given["toml"]).hash == expected
    given, expected = answer("round key")
    fields = ("pair key", "session", "client", "compute", "contribution")
    assert round_key(*(given[field] for field in fields)) == expected
    given, expected = answer("receipt tag")
    assert receipt_tag(given["round key"]) == expected
    given, expected = answer("associated data")
    assert associated_data(*(given[name] for name in ("session", "position", "contribution"))) == expected
    given, expected = answer("share plaintext")
    assert plaintext(given["charge"], given["share"]) == expected == b"\2\1\0\0" + given["share"]


def test_signatures_agreement_and_encryption() -> None:
    given, expected = answer("signature")
    identity = Identity(given["seed"])
    assert identity.sign(given["federation hash"], given["body"]) == expected
    verify(identity.public_key, given["federation hash"], given["body"], expected)
    given, expected = answer("agreement")
    assert AgreementKey(given["secret"]).agree(given["peer public"]) == expected
    given, expected = answer("share encryption")
    assert encrypt(given["key"], given["nonce"], given["plaintext"], given["associated"]) == expected
    assert decrypt(given["key"], given["nonce"], expected, given["associated"]) == given["plaintext"]
    given, expected = answer("sealed")
    sealed = msgspec.convert(expected, Sealed)
    receiver = AgreementKey(bytes(range(32, 64)))
    assert receiver.public == given["public"]
    opened = open_sealed(receiver, sealed.ephemeral, sealed.nonce, sealed.ciphertext, given["associated"])
    assert opened == given["plaintext"]


def test_shares_of_both_encodings_add_up_to_the_value() -> None:
    given = parsed(VECTORS["shares"])
    value = np.array(given["value"], dtype=np.int64).view(np.uint64)
    full_at = vector_node(given["round"], given["client"], 3)
    assert full_at == given["vector node"]
    for encoding, bodies in given["bodies"].items():
        assert share_bodies(value, given["root"], 3, full_at, encoding) == bodies
        total = np.zeros(3, dtype=np.uint64)
        for index, body in enumerate(bodies):
            is_vector = encoding == "vector" or index == full_at
            check_body(body, 3, is_vector)
            total += np.frombuffer(body, dtype="<u8") if is_vector else mask(body, 3)
        assert total.tolist() == value.tolist()


def test_noise() -> None:
    given = parsed(VECTORS["shares"])
    noise = DistributedDiscreteGaussian().sample(10_000, 3, derive(given["root"], b"dca1-noise"))
    assert noise.tolist() == given["noise of variance 10000"]


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
