"""The test vectors against our codec, the reference `msgpack`, and the script that writes them.

Every hash and key is worked out here once more, by hashlib and libsodium alone: a second implementation of DESIGN §2.4.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from nacl import bindings
from vector_file import FILE, VECTORS, answer, parsed

from dca_proto.crypto.sealing import AgreementKey, Identity, actor_id, decrypt, open_sealed, verify
from dca_proto.errors import PeerError
from dca_proto.privacy.local import resolve
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.params import PROTOCOL_VERSION
from dca_proto.protocol.wire import messages
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.messages import Sealed
from dca_proto.statistics import Sensitivity

DESIGN = Path(__file__).parents[3] / "dca_proto" / "DESIGN.md"
SCRIPT = Path(__file__).parents[3] / "scripts" / "make_vectors.py"
VARIANTS = {
    "Announcement of a node release", "Announcement of an LDP report", "Announcement of a verified sum",
    "Release of a report",
}  # fmt: skip
"""Kinds that stand there more than once."""
DECODE = {"frame": decode_frame, "body": decode_body}


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
    is_other = re.fullmatch("version [0-9]+", vector["what"]) is not None
    with pytest.raises(PeerError, match="version" if is_other else "malformed"):
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
    sponge, size = hashlib.shake_128(key + b"dca5-mask" + ah + entry), 8 + 8 * dimension
    if size <= 1024:
        return sponge.digest(size)
    head = sponge.digest(40)
    return head[:8] + bindings.randombytes_buf_deterministic(size - 8, head[8:])


def test_hashes() -> None:
    for what, person in (
        ("digest", "dca5-list"),
        ("announcement hash", "dca5-announce"),
        ("hello hash", "dca5-hello"),
        ("list hash", "dca5-list"),
        ("list hash with a coin", "dca5-list"),
        ("set hash", "dca5-set"),
        ("answer hash", "dca5-answer"),
        ("answer hash with openings", "dca5-answer"),
        ("challenge", "dca5-challenge"),
    ):
        given, expected = answer(what)
        given.pop("person", None)
        flat = [part for value in given.values() for part in (value if isinstance(value, list) else [value])]
        assert framed(person, *flat) == expected, what
    given, expected = answer("entry")
    assert given["client"] + given["contribution"] + given["charge"].to_bytes(4, "little") == expected
    given, expected = answer("actor id")
    assert Identity(given["seed"]).public_key == given["public"]
    assert actor_id(given["public"]) == expected == blake2b("dca5-id", given["public"], size=16)
    given, expected = answer("federation id")
    assert framed("dca5-federation", *given.values()) == expected
    given, expected = answer("federation file")
    federation = Federation.from_toml(given["toml"])
    assert federation.frame.body == expected
    given, expected = answer("federation hash")
    assert framed("dca5-file", *given.values()) == expected == federation.hash
    assert given["federation id"] == federation.id


def test_derived_keys() -> None:
    for what, person, size in (
        ("derive", "dca5-one", 32),
        ("contribution keys", "dca5-one", 64),
        ("ask tag", "dca5-ask", 16),
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
    hedge = blake2b("dca5-hedge", key=given["seed"])
    message = (given["fresh"], given["hello"], given["ah"], charge, words)
    root = blake2b("dca5-root", *message, key=hedge)
    assert expected == [root, blake2b("dca5-noise", key=root), blake2b("dca5-contrib-id", key=root, size=16)]


@pytest.mark.parametrize("vector", VECTORS["labels"], ids=lambda one: one["label"])
def test_each_label_by_hand(vector: dict[str, Any]) -> None:
    """The five ways in which a label enters, written here a second time."""
    label, given = vector["label"], parsed(vector["given"])
    found: dict[str, Any] = {
        "digest": lambda *parts: framed(label, *parts),
        "hash": lambda data: blake2b(label, data, size=64),
        "derive": lambda key, message: blake2b(label, message, key=key, size=64),
        "SHAKE128": lambda key, *parts: hashlib.shake_128(b"".join((key, label.encode(), *parts))).digest(64),
        "Ed25519": lambda seed, message: bindings.crypto_sign(
            label.encode() + message, bindings.crypto_sign_seed_keypair(seed)[1]
        )[:64],
    }
    assert found[vector["how"]](*given) == parsed(vector["expected"])


def test_every_label_has_a_vector() -> None:
    """In the order of the table of DESIGN §9."""
    rows = re.findall(r"^\| `(dca5-[a-z-]+)` \| ([A-Za-z0-9]+) ", DESIGN.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(one["label"], one["how"]) for one in VECTORS["labels"]] == rows
    assert len(rows) > 40


def test_holders() -> None:
    """Multiply-shift hashing of a client's first 8 bytes by two words of ah."""
    given, expected = answer("holders")
    factor, offset = (int.from_bytes(given["ah"][at : at + 8], "little") for at in (0, 8))
    for client, holder in zip(given["clients"], expected, strict=True):
        hashed = ((factor | 1) * int.from_bytes(client[:8], "little") + offset) % 2**64 // 2**32
        assert hashed * given["nodes"] // 2**32 == holder
    assert len(set(expected)) > 5


def test_agreement() -> None:
    for what, person in (("agreement", "dca5-reply"), ("pair key", "dca5-pair")):
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
        expected + b"dca5-signature" + given["federation id"] + given["body"], identity.public_key
    )
    given, expected = answer("signed")
    verify(identity.public_key, given["federation id"], bytes([PROTOCOL_VERSION]) + given["body"], expected)
    given, expected = answer("sealed")
    sealed = msgspec.convert(expected, Sealed)
    receiver = AgreementKey(bytes(range(32, 64)))
    assert receiver.public == given["public"]
    opened = open_sealed(
        b"dca5-reply", receiver, sealed.ephemeral, sealed.nonce, sealed.ciphertext, given["associated"]
    )
    assert opened == given["plaintext"]


def test_names_of_clients() -> None:
    """From the two ends: the owner's key pair with the member's public key, and the member's with the owner's."""
    given, expected = answer("wrapped name key")
    name_key = blake2b("dca5-names", key=given["seed"])
    owner, own_secret = bindings.crypto_sign_seed_keypair(given["seed"])
    member, secret = bindings.crypto_sign_seed_keypair(bytes(range(32, 64)))
    assert member == given["member"]
    for mine, peer in ((own_secret, member), (secret, owner)):
        scalar = bindings.crypto_sign_ed25519_sk_to_curve25519(mine)
        point = bindings.crypto_scalarmult(scalar, bindings.crypto_sign_ed25519_pk_to_curve25519(peer))
        publics = sorted(map(bindings.crypto_sign_ed25519_pk_to_curve25519, (owner, member)))
        key, about = framed("dca5-names-wrap", point, *publics, given["federation id"]), given["federation id"]
        assert bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(expected, about, bytes(24), key) == name_key
    given, expected = answer("sealed name")
    about = given["client key"] + given["expires_ms"].to_bytes(8, "little")
    padded = given["name"].encode().ljust(48, b"\0")
    nonce = blake2b("dca5-name-nonce", about, padded, key=blake2b("dca5-names", key=given["seed"]), size=24)
    key = blake2b("dca5-names", key=given["seed"])
    assert expected == nonce + bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(padded, about, nonce, key)


def test_a_contribution_byte_for_byte() -> None:
    """Noise aside, from the secrets to the payload; and what the nodes add gives the value with its noise."""
    given = parsed(VECTORS["contribution"])
    ah, keys, charge = given["ah"], given["pair keys"], given["charge"].to_bytes(4, "little")
    client = Identity(given["seed"]).id
    words = np.array(given["value"], dtype="<i8").tobytes()
    hedge = blake2b("dca5-hedge", key=given["seed"])
    root = blake2b("dca5-root", given["fresh"], given["hello"], ah, charge, words, key=hedge)
    contribution = blake2b("dca5-contrib-id", key=root, size=16)
    pads = [pad(key, ah, client + contribution + charge, 3) for key in keys]
    masks = [[int.from_bytes(one[at : at + 8], "little") for at in (8, 16, 24)] for one in pads]
    noisy = [value + noise for value, noise in zip(given["value"], given["noise"], strict=True)]
    y = [(noisy[at] - sum(mask[at] for mask in masks)) % 2**64 for at in range(3)]
    plaintext = charge + b"".join(one[:8] for one in pads) + b"".join(word.to_bytes(8, "little") for word in y)
    own = blake2b("dca5-one", ah, contribution, key=keys[1], size=64)
    associated = ah + client + given["holder"] + contribution
    ciphertext = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plaintext, associated, bytes(24), own[:32])
    assert msgpack.packb([3, given["round"], contribution, ciphertext]) == given["payload"]
    assert own[32:48] == given["receipt"]
    assert any(given["noise"])
    assert [abs(one) < 10 * given["noise variance"] ** 0.5 for one in given["noise"]] == [True] * 3


P = 2**31 - 1
"""The field of verified sums; here an element of its extension is a pair of plain integers (DESIGN §12)."""


def share(key: bytes, ah: bytes, entry: bytes, count: int) -> list[int]:
    seed = hashlib.shake_128(key + b"dca5-share" + ah + entry + b"\0").digest(32)
    stream = bindings.randombytes_buf_deterministic(4 * count, seed)
    words = [int.from_bytes(stream[at : at + 4], "little") & P for at in range(0, 4 * count, 4)]
    assert P not in words, "the next attempt would follow"
    return words


def point_and_coins(seed: bytes, entry: bytes, count: int) -> tuple[tuple[int, int], list[int]]:
    stream = blake2b("dca5-point", key=seed, size=64)
    words = [int.from_bytes(stream[at : at + 4], "little") & P for at in (0, 4)]
    assert words[0] < P > words[1] > 0
    octets = hashlib.shake_128(seed + b"dca5-noise-coins" + entry).digest(-(-count // 8))
    return (words[0], words[1]), [octets[at // 8] >> at % 8 & 1 for at in range(count)]


def times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return (a[0] * b[0] - a[1] * b[1]) % P, (a[0] * b[1] + a[1] * b[0]) % P


def at_point(coefficients: list[int], r: tuple[int, int]) -> tuple[int, int]:
    """The value of a polynomial, lowest coefficient first, by Horner's rule."""
    value = (0, 0)
    for one in reversed(coefficients):
        real, cross = times(value, r)
        value = (real + one) % P, cross
    return value


def test_shares_points_and_coins_of_a_verified_sum() -> None:
    given, expected = answer("share")
    assert share(*given.values()) == expected
    given, expected = answer("point and coins")
    r, coins = point_and_coins(*given.values())
    assert [list(r), coins] == expected


def words_of(given: dict[str, Any]) -> tuple[list[int], bytes]:
    """The words of a verified contribution, which the nodes' shares add up to, and its entry."""
    ah, keys, charge = given["ah"], given["pair keys"], given["charge"].to_bytes(4, "little")
    client, count = Identity(given["seed"]).id, given["words"]
    value = np.array(given["value"], dtype="<i8").tobytes()
    hedge = blake2b("dca5-hedge", key=given["seed"])
    root = blake2b("dca5-root", given["fresh"], given["hello"], ah, charge, value, key=hedge)
    contribution = blake2b("dca5-contrib-id", key=root, size=16)
    tag, round_id, sent, ciphertext = msgpack.unpackb(given["payload"])
    assert (tag, round_id, sent) == (3, given["round"], contribution)
    own = blake2b("dca5-one", ah, contribution, key=keys[1], size=64)
    about = ah + client + given["holder"] + contribution
    opened = bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext, about, bytes(24), own[:32])
    entry = client + contribution + charge
    assert opened[:28] == charge + b"".join(pad(key, ah, entry, 0)[:8] for key in keys)
    y = [int.from_bytes(opened[at : at + 4], "little") for at in range(28, len(opened), 4)]
    shares = [share(key, ah, entry, count) for key in keys]
    shares[1] = [(word + more) % P for word, more in zip(shares[1], y, strict=True)]
    return [sum(parts) % P for parts in zip(*shares, strict=True)], entry


def test_a_verified_contribution_from_the_payload_to_the_sum() -> None:
    """The nodes' shares add up to words that prove a vote for the second bin, and open as DESIGN §12 says."""
    given = parsed(VECTORS["verified contribution"])
    (words, entry), f = words_of(given), given["fraction bits"]
    m, a, width = given["noises"], given["noise bits"], f + 1  # two bins and their sum are numbers on 0..2^f
    end = 3 * width + 2 * m * a
    bits, blinds, quotient = words[:end], words[end : end + 4], words[end + 4 :]
    assert set(bits) == {0, 1}
    weights = [*(1 << at for at in range(width - 1)), 2**f - 2 ** (width - 1) + 1]
    numbers = [sum(w * bit for w, bit in zip(weights, bits[at:], strict=False)) for at in (0, width, 2 * width)]
    assert numbers == [0, 2**f, 2**f]
    n = next(n for n in range(len(bits), P) if (P - 1) % n == 0)
    assert len(quotient) == n + 7
    omega = pow(7, (P - 1) // n, P)
    u = [sum(bit * pow(omega, -at * place, P) for place, bit in enumerate(bits)) * pow(n, -1, P) % P for at in range(n)]
    f_of_x = [*((one - blind) % P for one, blind in zip(u, [*blinds, *[0] * (n - 4)], strict=True)), *blinds]
    r, coins = point_and_coins(given["challenge"], entry, 2 * m * a)
    power = (1, 0)
    for _ in range(n):
        power = times(power, r)
    a_opened, c_opened = at_point(f_of_x, r), times(((power[0] - 1) % P, power[1]), at_point(quotient, r))
    assert [sum(parts) % P for parts in zip(*given["openings"], strict=True)] == [*a_opened, *c_opened, 0, 0]
    square = times(a_opened, a_opened)
    assert ((square[0] - a_opened[0]) % P, (square[1] - a_opened[1]) % P) == c_opened
    noise = [bit if not coin else -bit for bit, coin in zip(bits[3 * width :], coins, strict=True)]
    of_noise = [sum((noise[k * m * a + at]) << at % a for at in range(m * a)) for k in (0, 1)]
    sums = [(number + more) % P for number, more in zip(numbers, of_noise, strict=False)]
    assert [sum(parts) % P for parts in zip(*given["sums"], strict=True)] == sums


def test_a_verified_row_proves_its_norm() -> None:
    """Of (0.75, -0.625) in the ball of radius 1: G and its wire follow from the numbers and blinds, and so do openings.

    A norm that is longer by one, or another coefficient of G, would be seen: the last checks fail with them.
    """
    given = parsed(VECTORS["verified row in a ball"])
    (words, entry), f = words_of(given), given["fraction bits"]
    m, a = given["noises"], given["noise bits"]
    most = math.ceil((2**f + (1 + 2.0**-16) * math.sqrt(2)) ** 2)
    sizes = [2 ** (f + 1), 2 ** (f + 1), most]
    end = sum(size.bit_length() for size in sizes) + 2 * m * a
    numbers, at = [], 0
    for size in sizes:
        b = size.bit_length()
        weights = [*(1 << place for place in range(b - 1)), size - 2 ** (b - 1) + 1]
        numbers.append(sum(w * bit for w, bit in zip(weights, words[at : at + b], strict=True)))
        at += b
    assert set(words[:end]) == {0, 1}
    x = [number - 2**f for number in numbers[:2]]
    assert all(0 <= one - float(exact) * 2**f + 1 < 2 for one, exact in zip(x, (0.75, -0.625), strict=True))
    assert numbers[2] == most - x[0] ** 2 - x[1] ** 2
    n = next(n for n in range(end, P) if (P - 1) % n == 0)
    blinds, squares = words[end + 4 + n + 7 :][:4], words[end + 4 + n + 7 + 4 :]
    h = 2  # 2h + 16 is the least for one wire of two numbers
    assert len(squares) == 2 * h + 6
    half = pow(2, -1, P)
    u = [(numbers[0] + numbers[1]) * half % P, (numbers[0] - numbers[1]) * half % P]  # at 1 and -1
    wire = [(u[0] - blinds[0]) % P, (u[1] - blinds[1]) % P, *[0] * 4]
    for place, blind in enumerate(blinds):
        wire[place + h] = (wire[place + h] + blind - (blinds[place + h] if place < 2 else 0)) % P
    product = [sum(wire[i] * wire[k - i] for i in range(max(0, k - 5), min(k, 5) + 1)) % P for k in range(11)]
    assert squares == product[1:], "G, without its lowest coefficient"
    r, _ = point_and_coins(given["challenge"], entry, 2 * m * a)
    of_wire, known = at_point(wire, r), (most - 2 * 4**f) * half
    total = [sum(parts) % P for parts in zip(*given["openings"], strict=True)]
    assert len(total) == 4 + 2 + 2
    assert tuple(total[6:]) == of_wire
    assert ((total[4] + known) % P, total[5]) == times(of_wire, of_wire) == at_point(product, r)


@pytest.mark.parametrize("vector", VECTORS["invitations"], ids=lambda one: str(len(one["clients"])))
def test_invitations(vector: dict[str, Any]) -> None:
    """The tree by recursion: the left part of n leaves holds the largest power of two below n."""
    given = parsed(vector)

    def tree(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return framed("dca5-leaf", leaves[0])
        left = 1 << (len(leaves) - 1).bit_length() - 1
        return framed("dca5-node", tree(leaves[:left]), tree(leaves[left:]))

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
