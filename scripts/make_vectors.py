#!/usr/bin/env python3
"""Writes the protocol's test vectors: tests/dca_proto/protocol/vectors/v5.json, named by the protocol's version.

    scripts/make_vectors.py                   overwrites the file

Another implementation can test itself by the file. It has every message with its bytes and fields, every derived key,
one whole contribution, invitations, every local mechanism's report for a key, bytes that must not decode, and
signatures and ciphertexts that must not verify. The same code gives the same file, byte for byte. If a change alters an
entry, the wire format has changed, and so must PROTOCOL_VERSION. Bytes are written as "hex:..." where text is possible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from nacl.signing import SigningKey

from dca_proto.crypto import labels
from dca_proto.crypto.masks import ask_tag, contribution_keys, entry_of, holder_index, tag_and_mask
from dca_proto.crypto.sealing import AgreementKey, Identity, derive, digest, encrypt, seal_to
from dca_proto.crypto.shares import challenge, coins_of, open_shares, pads_of, point_of
from dca_proto.privacy.local import (
    MISSING,
    AnalyticGaussian,
    GridLaplace,
    LocalMechanism,
    RandomisedResponse,
    UnaryEncoding,
)
from dca_proto.privacy.mechanism import UNARY_ENCODING, DistributedDiscreteGaussian
from dca_proto.protocol.announcement import announcement_hash, invitation_root, invitations
from dca_proto.protocol.contribution import (
    contribution_id,
    hedged_root,
    make_contribution,
    noise_key,
    open_contribution,
    value_bits,
)
from dca_proto.protocol.lists import answer_hash, encode_places, list_hash, set_hash
from dca_proto.protocol.names import seal_name, wrap_name_key
from dca_proto.protocol.pairing import hello_hash, pair_key
from dca_proto.protocol.params import PROTOCOL_VERSION, Limits
from dca_proto.protocol.verified import MECHANISM as VERIFIED
from dca_proto.protocol.wire import messages
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, VerifiedSum
from dca_proto.protocol.wire.messages import (
    Abort,
    AbortWanted,
    Cancel,
    ChargeReused,
    ChargesStated,
    ChargesWanted,
    Contribution,
    Decline,
    Declines,
    FrozenList,
    HelloWanted,
    InvitedRound,
    ListHeader,
    PartialSum,
    Query,
    Release,
    Sealed,
    Signed,
    VerifiedAnswer,
    VerifiedHeader,
    VerifiedPart,
)
from dca_proto.statistics import Sensitivity
from dca_proto.testing import Network, TestFederation

PATH = Path(__file__).parent.parent / "tests/dca_proto/protocol/vectors" / f"v{PROTOCOL_VERSION}.json"
SECRET, OTHER_SECRET, ROOT = (bytes(range(start, start + 32)) for start in (0, 32, 64))
HASH, ROUND, CONTRIBUTION = bytes(range(96, 128)), bytes(range(16)), bytes(range(16, 32))
NONCE = bytes(range(24))


def plain(value: Any) -> Any:
    """Return a message's value as JSON data."""
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = [plain(getattr(value, name)) for name in value.__struct_fields__]
        return fields if tag is None else [tag, *fields]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def played() -> tuple[TestFederation, Network]:
    """Play a round of three clients and two Compute nodes with known keys, and ask the nodes for their sessions."""
    actors = TestFederation(3, 2, name="vectors", rows=[np.full((1, 1), 0.25 * index) for index in range(3)])
    network = actors.network()
    network.deliver()
    network.command(actors.trainer_identity.id, actors.request(tolerate=0, clients=0))
    network.advance(network.now_ms + 1000)
    return actors, network


def all_messages(actors: TestFederation, network: Network) -> dict[str, Any]:
    """Return a frame and a body of each kind, by its name."""
    found: dict[str, Any] = {}
    for one in network.sent:
        frame = decode_frame(one.payload)
        found.setdefault(type(frame).__name__, frame)
        if isinstance(frame, Signed):
            body = decode_body(frame.body)
            found.setdefault(type(body).__name__, body)
            found[f"signed {type(body).__name__}"] = frame
    announced = found["signed Announcement"]
    clients = tuple(sorted(actors.clients))
    head = (found["Announcement"].round_id,)
    about = (*head, announcement_hash(encode(announced)))
    entries = entry_of(clients[0], CONTRIBUTION, 1) + entry_of(clients[2], ROUND, 258)
    header = ListHeader(*about, list_hash(about[1], actors.computes[0], entries), 2)
    signed = sign(actors.compute_identities[0], actors.federation.id, header)
    why = ("epsilon", "2 at delta 1e-06", "<= 1 at delta 1e-05")
    release = Release(*about, actors.certificate(0), 3, CONTRIBUTION, SECRET, bytes(8))
    by_hand = (
        HelloWanted(clients[0]),
        Decline(*about, actors.certificate(0), *why),
        header,
        FrozenList(*head, actors.computes[1], signed, entries, bytes(range(16))),
        PartialSum(*about, set_hash(about[1], entries), 2, (HASH, ROOT), clients[0] + clients[2], bytes(8)),
        VerifiedHeader(*about, list_hash(about[1], actors.computes[0], entries, CONTRIBUTION), 2, CONTRIBUTION),
        VerifiedAnswer(*about, actors.computes[0], (HASH, ROOT), bytes(4), bytes(range(16))),
        VerifiedPart(*about, HASH, 1, (HASH, ROOT), clients[0], bytes(4), clients[2]),
        Abort(*about, actors.computes[0], "equivocation", "compute-1 signed two lists", 0, 3, (signed,) * 2),
        Query(*about),
        Cancel(*about, announced),
        decode_body(actors.federation.frame.body),
        ChargeReused(*about, clients[0], 6, 9),
        ChargesWanted(found["signed Hello"], CONTRIBUTION),
        ChargesStated(clients[0], CONTRIBUTION, 9, 1_700_000_000_000, actors.federation.stamp),
        Declines(*about, clients[0] + clients[2]),
        release,
        invitations(announced, clients)[clients[2]],
        InvitedRound(announced, b"".join(clients)),
        AbortWanted(announced, ask_tag(ROOT, about[1])),
    )
    sums = found["Announcement"].kind
    alone = msgspec.structs.replace(
        found["Announcement"], kind=NodeRelease(sums.mechanism, sums.clients), epochs=(), rows_max=3
    )
    reports = msgspec.structs.replace(
        alone, statistic="histogram", parameters={"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}, rows_max=1,
        delta=0.0, kind=LdpReport(UNARY_ENCODING, sums.clients), invited=HASH,
    )  # fmt: skip
    variants = {
        "Announcement of a node release": alone,
        "Announcement of an LDP report": reports,
        "Announcement of a verified sum": msgspec.structs.replace(
            found["Announcement"], kind=VerifiedSum(VERIFIED, sums.clients, sums.tolerate, noises=100, noise_bits=4)
        ),
        "Release of a report": msgspec.structs.replace(release, rows=1, vector=b"\5"),
    }
    met = {name: one for name, one in found.items() if not name.startswith("signed ")}
    return met | {type(one).__name__: one for one in by_hand} | variants


def positive(found: dict[str, Any]) -> list[dict[str, Any]]:
    frames = {kind.__name__ for kind in messages.Frame.__args__}
    return [
        {"kind": kind, "is": "frame" if kind in frames else "body", "bytes": encode(one).hex(), "decoded": plain(one)}
        for kind, one in sorted(found.items())
    ]


def negative(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return bytes that must not decode, with the reason."""
    kinds = ("Signed", "Receipt", "Query", "Progress", "ChargeReused", "Announcement")
    signed, receipt, query, progress, reused, announcement = (encode(found[kind]) for kind in kinds)
    charge_at = len(reused) - 2
    map_at = announcement.index(b"\x84\xa7columns")
    before, after = announcement[:map_at] + b"\x85", announcement[map_at + 1 :]
    tag = b"\xaasecure-sum"
    ask, _, terms = announcement.partition(b"\x96" + tag)
    end = len(encode(found["Announcement"].kind.mechanism)) + 4  # behind four small numbers
    more = ask + b"\x98" + tag + terms[:end] + b"\1\1"
    wrong: dict[str, tuple[str, bytes]] = {
        "empty": ("frame", b""),
        "trailing byte": ("frame", receipt + b"\0"),
        "two messages": ("frame", receipt + receipt),
        "unknown frame": ("frame", receipt[:1] + b"\x08" + receipt[2:]),
        "unknown body": ("body", query[:1] + b"\x1c" + query[2:]),
        "a frame where a body belongs": ("body", receipt),
        "a body where a frame belongs": ("frame", query),
        "non-canonical tag": ("frame", receipt[:1] + b"\xcc\x04" + receipt[2:]),
        "non-canonical array": ("frame", b"\xdc\0\x04" + receipt[1:]),
        "non-canonical bytes": ("frame", receipt[:2] + b"\xc5\0\x10" + receipt[4:]),
        "text for bytes": ("frame", receipt[:2] + b"\xb0" + b"a" * 16 + receipt[20:]),
        "an id too short": ("frame", receipt[:2] + b"\xc4\x0f" + receipt[5:]),
        "a tag too long": ("frame", receipt[:39] + b"\x11" + receipt[40:] + b"\0"),
        "charge 0": ("body", reused[:charge_at] + b"\0" + reused[charge_at + 1 :]),
        "a charge of 2^32": ("body", reused[:charge_at] + b"\xcf\0\0\0\1\0\0\0\0" + reused[charge_at + 1 :]),
        "nil for bytes": ("frame", receipt[:2] + b"\xc0" + receipt[20:]),
        "an extension for bytes": ("frame", receipt[:2] + b"\xd8\x01" + receipt[4:]),
        "an unknown field": ("frame", b"\x95" + receipt[1:] + b"\xc0"),
        "a missing field": ("frame", b"\x93" + receipt[1:38]),
        "a map": ("frame", b"\x81\x01\x02"),
        "deep nesting": ("frame", b"\x91" * 5000 + b"\xc0"),
        "an array of 2^32 - 1": ("frame", b"\xdd\xff\xff\xff\xff"),
        "a reserved byte": ("frame", b"\xc1"),
        **{f"version {one}": ("frame", signed[:-1] + bytes((one,))) for one in range(8) if one != PROTOCOL_VERSION},
        "version as a float": ("frame", signed[:-1] + b"\xcb" + struct.pack(">d", PROTOCOL_VERSION)),
        "version as a boolean": ("frame", signed[:-1] + b"\xc3"),
        "no version": ("frame", signed[:1].replace(b"\x94", b"\x93") + signed[1:-1]),
        "a negative number": ("body", progress[:-1] + b"\xff"),
        "a number of 2^32": ("body", progress[:-1] + b"\xcf\0\0\0\1\0\0\0\0"),
        "a non-canonical number": ("body", progress[:-1] + b"\xcd\0" + progress[-1:]),
        "a parameter twice": ("body", before + b"\xa7columns\x90" + after),
        "an extension as a parameter": ("body", before + b"\xa1x\xd4\x05\0" + after),
        "nil as a parameter": ("body", before + b"\xa1x\xc0" + after),
        "a map as a parameter": ("body", before + b"\xa1x\x80" + after),
        "text that is not UTF-8": ("body", before + b"\xa1\xff\x01" + after),
        "an unknown kind of round": ("body", ask + b"\x96" + tag.swapcase() + terms),
        "a secure sum without its terms": ("body", ask + b"\x91" + tag + terms),
        "a secure sum with the terms of a verified one": ("body", more + terms[end:]),
        "a node release with terms": ("body", ask + b"\x96\xacnode-release" + terms),
        "no kind of round": ("body", ask + b"\xc0" + terms),
    }  # fmt: skip
    cut = {f"cut after {size} bytes": ("frame", receipt[:size]) for size in (1, 2, 19, len(receipt) - 1)}
    return [{"what": what, "is": kind, "bytes": data.hex()} for what, (kind, data) in (wrong | cut).items()]


def all_labels() -> list[dict[str, Any]]:
    """Return, for each label, what a hash, key or signature of 64 bytes is under it; `given` are the parts in order."""
    ways: dict[str, tuple[list[bytes], Callable[[bytes], bytes]]] = {
        labels.DIGEST: ([HASH, b"abc"], lambda label: digest(label, HASH, b"abc")),
        labels.HASH: ([b"abc"], lambda label: hashlib.blake2b(b"abc", person=label).digest()),
        labels.DERIVE: ([ROOT, b"abc"], lambda label: derive(ROOT, label, b"abc", 64)),
        labels.SHAKE: ([ROOT, HASH, b"abc"], lambda label: hashlib.shake_128(ROOT + label + HASH + b"abc").digest(64)),
        labels.SIGNED: ([SECRET, b"abc"], lambda label: SigningKey(SECRET).sign(label + b"abc").signature),
    }
    return [
        {
            "label": one.text.decode(),
            "how": one.how,
            "given": plain(ways[one.how][0]),
            "expected": plain(ways[one.how][1](one.text)),
        }
        for one in labels.TABLE.values()
    ]


def keys() -> list[dict[str, Any]]:
    """Return known answers of hashing, derivation, agreement, signatures and encryption."""
    identity, alice, bob = Identity(SECRET), AgreementKey(SECRET), AgreementKey(OTHER_SECRET)
    sealed = Sealed(ROUND, *seal_to(labels.REPLY, bob.public, b"text", HASH, lambda size: (SECRET + NONCE)[:size]))
    federation = TestFederation(1, 2, name="vectors").federation
    pair = pair_key(alice, bob.public, federation.id, (ROUND, 7), (CONTRIBUTION, 8))
    entry = entry_of(ROUND, CONTRIBUTION, 258)
    value = np.array([1, -2], dtype=np.int64)
    root = hedged_root(identity, ROOT, OTHER_SECRET, HASH, 258, value)
    places = encode_places(np.array([0, 258]))
    answers: list[tuple[str, dict[str, Any], Any]] = [
        ("digest", {"person": labels.LIST.decode(), "parts": [HASH, b"abc"]}, digest(labels.LIST, HASH, b"abc")),
        ("derive", {"key": ROOT, "person": labels.ONE_KEYS.decode(), "message": b"abc"},
         derive(ROOT, labels.ONE_KEYS, b"abc")),
        ("actor id", {"seed": SECRET, "public": identity.public_key}, identity.id),
        ("federation id", {"name": federation.name.encode(), "enrolment key": federation.enrolment_key}, federation.id),
        ("federation file", {"toml": federation.to_toml()}, federation.frame.body),
        ("federation hash", {"federation id": federation.id, "body": federation.frame.body}, federation.hash),
        ("signature", {"seed": SECRET, "federation id": HASH, "body": b"abc"}, identity.sign(HASH, b"abc")),
        ("signed", {"seed": SECRET, "federation id": HASH, "body": encode(Query(ROUND, HASH))},
         sign(identity, HASH, Query(ROUND, HASH)).signature),
        ("agreement", {"secret": SECRET, "peer public": bob.public}, alice.agree(labels.REPLY, bob.public)),
        ("pair key", {"secret": SECRET, "peer public": bob.public, "federation id": federation.id, "client": ROUND,
                      "client epoch": 7, "compute": CONTRIBUTION, "compute epoch": 8}, pair),
        ("tag and mask", {"pair key": ROOT, "ah": HASH, "entry": entry, "dimension": 3},
         tag_and_mask(ROOT, HASH, entry, 3)),
        ("long tag and mask", {"pair key": ROOT, "ah": HASH, "entry": entry, "dimension": 200},
         tag_and_mask(ROOT, HASH, entry, 200)),
        ("contribution keys", {"pair key": ROOT, "ah": HASH, "contribution": CONTRIBUTION},
         b"".join(contribution_keys(ROOT, HASH, CONTRIBUTION))),
        ("ask tag", {"pair key": ROOT, "ah": HASH}, ask_tag(ROOT, HASH)),
        ("hedged root", {"seed": SECRET, "fresh": ROOT, "hello": OTHER_SECRET, "ah": HASH, "charge": 258,
                         "value": value.tolist()}, [root, noise_key(root), contribution_id(root)]),
        ("entry", {"client": ROUND, "contribution": CONTRIBUTION, "charge": 258}, entry),
        ("announcement hash", {"payload": b"abc"}, announcement_hash(b"abc")),
        ("hello hash", {"payload": b"abc"}, hello_hash(b"abc")),
        ("list hash", {"ah": HASH, "compute": ROUND, "entries": entry}, list_hash(HASH, ROUND, entry)),
        ("list hash with a coin", {"ah": HASH, "compute": ROUND, "entries": entry, "coin": CONTRIBUTION},
         list_hash(HASH, ROUND, entry, CONTRIBUTION)),
        ("set hash", {"ah": HASH, "entries": entry}, set_hash(HASH, entry)),
        ("answer hash", {"ah": HASH, "compute": ROUND, "lists": [SECRET, ROOT], "objections": places},
         answer_hash(HASH, ROUND, [SECRET, ROOT], places)),
        ("answer hash with openings", {"ah": HASH, "compute": ROUND, "lists": [SECRET, ROOT], "objections": places,
                                       "openings": SECRET}, answer_hash(HASH, ROUND, [SECRET, ROOT], places, SECRET)),
        ("challenge", {"ah": HASH, "lists": [SECRET, ROOT]}, challenge(HASH, [SECRET, ROOT])),
        ("point and coins", {"challenge": HASH, "entry": entry, "count": 20},
         [point_of(HASH).tolist(), coins_of(HASH, [entry], 20)[0].astype(int).tolist()]),
        ("share", {"pair key": ROOT, "ah": HASH, "entry": entry, "words": 5},
         pads_of([ROOT], [entry], HASH, 5)[0].tolist()),
        ("holders", {"ah": HASH, "nodes": 10, "clients": [bytes((one,)) * 16 for one in range(20)]},
         [holder_index(HASH, bytes((one,)) * 16, 10) for one in range(20)]),
        ("wrapped name key", {"seed": SECRET, "member": Identity(OTHER_SECRET).public_key, "federation id": HASH},
         wrap_name_key(identity, HASH, Identity(OTHER_SECRET).public_key)),
        ("sealed name", {"seed": SECRET, "client key": ROOT, "expires_ms": 1 << 40, "name": "Station 7"},
         seal_name(identity.name_key, ROOT, 1 << 40, "Station 7")),
        ("sealed", {"public": bob.public, "ephemeral secret": SECRET, "nonce": (SECRET + NONCE)[:24],
                    "plaintext": b"text", "associated": HASH}, sealed),
    ]  # fmt: skip
    return [{"what": what, "given": plain(given), "expected": plain(expected)} for what, given, expected in answers]


def contribution() -> dict[str, Any]:
    """Return a value of three coordinates on its way to the second of three nodes, and the nodes' sum."""
    mechanism, value = DistributedDiscreteGaussian(), np.array([1, -2, 2**40], dtype=np.int64)
    columns = [f"x{index}" for index in range(3)]
    flat = {"columns": columns, "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [1.0] * 3}
    actors = TestFederation(4, 3, name="vectors", columns=tuple(columns))
    _, validated = actors.request(parameters=flat).draft(mechanism, Limits())
    keys = [SECRET, OTHER_SECRET, ROOT]
    made = make_contribution(
        value,
        validated=validated,
        mechanism=mechanism,
        identity=Identity(SECRET),
        hello=OTHER_SECRET,
        round_id=ROUND,
        announcement_hash=HASH,
        charge=258,
        holder=CONTRIBUTION,
        holder_key=keys[1],
        pair_keys=keys,
        random=lambda size: ROOT[:size],
    )
    root = hedged_root(Identity(SECRET), ROOT, OTHER_SECRET, HASH, 258, value)
    variance = validated.noise_variance
    given = {"seed": SECRET, "fresh": ROOT, "hello": OTHER_SECRET, "round": ROUND, "ah": HASH, "charge": 258}
    return {
        **plain(given | {"holder": CONTRIBUTION, "pair keys": keys, "value": value.tolist()}),
        "noise variance": variance,
        "noise": mechanism.sample(variance, 3, noise_key(root)).tolist(),
        "payload": plain(made.payload),
        "receipt": plain(made.receipt),
    }


BINS = {"columns": ["x"], "edges": [0.0, 1.0, 2.0]}
BALL = {"columns": ["x", "y"], "centre": [0.0] * 2, "scale": [1.0] * 2, "bound": [1.0] * 2, "radius": 1.0}


def verified(statistic: str, parameters: dict[str, Any], row: list[float]) -> dict[str, Any]:
    """Return a verified contribution on its way to the second of three nodes, and each node's opening.

    `row` is the statistic of the client's only row.
    """
    mechanism, actors = DistributedDiscreteGaussian(), TestFederation(4, 3, name="vectors")
    kind = VerifiedSum(clients=40, tolerate=1)
    request = actors.request(statistic=statistic, parameters=parameters, rows_max=1, kind=kind)
    body, validated = request.draft(mechanism, Limits())
    assert validated.statement is not None, "it is verified"
    keys, statement, f = [SECRET, OTHER_SECRET, ROOT], validated.statement, body.fraction_bits
    value = np.rint(np.ldexp(row, value_bits(validated, f))).astype(np.int64)
    identity = Identity(SECRET)
    fields = {"seed": SECRET, "fresh": ROOT, "hello": OTHER_SECRET, "round": ROUND, "ah": HASH, "charge": 258}
    made = make_contribution(
        value, validated=validated, mechanism=mechanism, identity=identity, hello=OTHER_SECRET, round_id=ROUND,
        announcement_hash=HASH, charge=258, holder=CONTRIBUTION, holder_key=keys[1], pair_keys=keys,
        random=lambda size: ROOT[:size],
    )  # fmt: skip
    message = decode_frame(made.payload)
    assert isinstance(message, Contribution), "a client sends one"
    about = {"announcement_hash": HASH, "client": identity.id, "holder": CONTRIBUTION, "nodes": 3}
    held, _ = open_contribution(message, pair_key=keys[1], vector_bytes=validated.vector_bytes, **about)
    y = [held.y if place == 1 else b"" for place in range(3)]
    opened = [
        open_shares(statement, ROOT, [key], [held.entry], [part], HASH) for key, part in zip(keys, y, strict=True)
    ]
    return {
        **plain(fields | {"holder": CONTRIBUTION, "pair keys": keys, "value": value.tolist(), "challenge": ROOT}),
        "fraction bits": f,
        "noises": statement.noises,
        "noise bits": statement.noise_bits,
        "words": statement.words,
        "payload": plain(made.payload),
        "openings": [one.openings[0].tolist() for one in opened],
        "sums": [one.total.tolist() for one in opened],
    }


def merkle() -> list[dict[str, Any]]:
    """Return invitations of 1 to 9 clients: the root and each client's path."""
    signed, all_ids = Signed(b"", bytes(64)), [bytes((16 * one,)) * 16 for one in range(9)]
    return [
        {
            "clients": plain(ids),
            "root": plain(invitation_root(ids)),
            "paths": plain([one.path for one in invitations(signed, ids).values()]),
        }
        for ids in (all_ids[:count] for count in range(1, 10))
    ]


def local_reports() -> list[dict[str, Any]]:
    """Return a client's report by each local mechanism from one key, as bytes; and bytes that are no report."""
    grid = Sensitivity(l1=2**25, l2_squared=2**50, bound=2**24)
    vector, category = [-(2**24), 0, 12345], 3
    mechanisms: list[tuple[LocalMechanism, list[Any], list[bytes]]] = [
        (AnalyticGaussian(1.0, 1e-6, grid, 3), [vector], [bytes(23)]),
        (GridLaplace(1.0, grid, 3), [vector], [bytes(25)]),
        (RandomisedResponse(1.0, 10), [category, MISSING], [bytes(3), b"\x0a\0\0\0", b"\0\0\0\1"]),
        (UnaryEncoding(1.0, 10), [category, MISSING], [bytes(1), b"\0\4", bytes(3)]),
    ]
    return [
        {
            "mechanism": one.name,
            "parameters": {name: plain(getattr(one, name)) for name in one.__struct_fields__},
            "key": plain(ROOT),
            "reports": [[value, plain(one.encode(one.randomise([value], ROOT)[0]))] for value in values],
            "are no reports": plain(wrong),
        }
        for one, values, wrong in mechanisms
    ]


def forgeries() -> list[dict[str, Any]]:
    """Return signatures and ciphertexts with one changed bit: none verifies or opens."""
    signed = sign(Identity(SECRET), HASH, Query(ROUND, HASH))
    message = bytes([PROTOCOL_VERSION]) + signed.body
    ciphertext = encrypt(ROOT, NONCE, b"text", HASH)
    cases = [("signature", "body", message), ("signature", "signature", signed.signature)]
    cases += [("ciphertext", "ciphertext", ciphertext), ("ciphertext", "nonce", NONCE), ("ciphertext", "key", ROOT)]
    genuine: dict[str, dict[str, bytes]] = {
        "signature": {"public": Identity(SECRET).public_key, "federation id": HASH, "body": message,
                      "signature": signed.signature},
        "ciphertext": {"key": ROOT, "nonce": NONCE, "ciphertext": ciphertext, "associated": HASH},
    }  # fmt: skip
    return [
        {"is": kind, "changed": field, **plain(genuine[kind] | {field: bytes((data[0] ^ 1,)) + data[1:]})}
        for kind, field, data in cases
    ]


def render() -> str:
    """Return the file's text."""
    found = all_messages(*played())
    vectors = {
        "protocol_version": PROTOCOL_VERSION,
        "messages": positive(found),
        "must_not_decode": negative(found),
        "labels": all_labels(),
        "keys": keys(),
        "contribution": contribution(),
        "verified contribution": verified("histogram", BINS, [0.0, 1.0]),
        "verified row in a ball": verified("mean", BALL, [0.75, -0.625]),
        "invitations": merkle(),
        "reports": local_reports(),
        "must_not_verify": forgeries(),
    }
    return json.dumps(vectors, indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(render())
    print(f"wrote {PATH}")
