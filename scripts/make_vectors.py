#!/usr/bin/env python3
"""Write the protocol's test vectors: tests/protocol/vectors/v3.json, named by the protocol's version.

    scripts/make_vectors.py                   writes the file, whatever is there

Another implementation checks itself against the file: every message with its bytes and its fields, every derived key,
every local mechanism's report of a key, what must not decode, and what must not verify. The same code gives the same
file, byte for byte; where a change alters what was there, the wire format has changed and PROTOCOL_VERSION has to.
Bytes stand as "hex:..." wherever text could stand too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dca_proto.core import messages
from dca_proto.core.codec import decode_body, decode_frame, encode, sign
from dca_proto.core.commit import encode_entries, position_bits
from dca_proto.core.events import Command
from dca_proto.core.mechanism import UNARY_ENCODING, DistributedDiscreteGaussian, LocalMechanism
from dca_proto.core.messages import Abort, Behind, Decline, FrozenList, PartialSum, Query, Release, Sealed, Signed
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.round import list_hash, session_hash
from dca_proto.core.sealing import AgreementKey, Identity, derive, digest, encrypt, seal_to
from dca_proto.core.shares import LOCAL, share_bodies, vector_node
from dca_proto.core.upload import associated_data, plaintext, receipt_tag, round_key
from dca_proto.local import MISSING, AnalyticGaussian, GridLaplace, RandomisedResponse, UnaryEncoding
from dca_proto.statistics import Sensitivity
from dca_proto.testing import Cast, Network

PATH = Path(__file__).parent.parent / "tests" / "protocol" / "vectors" / f"v{PROTOCOL_VERSION}.json"
SECRET, OTHER_SECRET, ROOT = (bytes(range(start, start + 32)) for start in (0, 32, 64))
SESSION, ROUND, CONTRIBUTION = bytes(range(96, 128)), bytes(range(16)), bytes(range(16, 32))
NONCE = bytes(range(24))


def plain(value: Any) -> Any:
    """Any value of a message as JSON."""
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = [plain(getattr(value, name)) for name in value.__struct_fields__]
        return fields if tag is None else [tag, *fields]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def played() -> tuple[Cast, Network]:
    """A round of three clients and two Compute nodes, all keys known."""
    cast = Cast(3, 2, name="vectors", rows=[np.full((1, 1), 0.25 * index) for index in range(3)])
    network = cast.network()
    network.deliver()
    network.handle(cast.trainer_identity.id, Command(cast.request(tolerated=0)))
    network.deliver()
    return cast, network


def all_messages(cast: Cast, network: Network) -> dict[str, Any]:
    """One frame and one body of each kind, by the name of the kind."""
    found: dict[str, Any] = {}
    for one in network.sent:
        frame = decode_frame(one.payload)
        found.setdefault(type(frame).__name__, frame)
        if isinstance(frame, Signed):
            body = decode_body(frame.body)
            found.setdefault(type(body).__name__, body)
    for join in found["Roster"].joins:
        found.setdefault("Join", decode_body(join.body))
    head, session = (PROTOCOL_VERSION, found["Roster"].round_id), session_hash(found["Roster"].terms)
    why = ("epsilon", "2 at delta 1e-06", "<= 1 at delta 1e-05")
    rest = (
        Decline(*head, found["Join"].announcement_hash, cast.certificate(0), *why),
        FrozenList(*head, session, encode_entries({0: CONTRIBUTION, 2: ROUND})),
        PartialSum(*head, session, list_hash(session, b""), position_bits([0, 2], 3), (SESSION, SESSION), bytes(8)),
        Abort(*head, session, "too-few", "2 contributed, 3 were needed", 2, 3),
        Query(*head, session),
        Behind(*head, session, cast.clients[0], 6, 9),
    )
    release = Release(*head, found["Join"].announcement_hash, cast.certificate(0), 3, CONTRIBUTION, SECRET, bytes(8))
    local = msgspec.structs.replace(found["Announcement"], encoding=LOCAL, computes=(), rows_max=3)
    reports = msgspec.structs.replace(
        local, statistic="histogram", parameters={"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}, rows_max=1,
        mechanism=UNARY_ENCODING, delta=0.0,
    )  # fmt: skip
    variants = {
        "Announcement of a local round": local,
        "Announcement of a report round": reports,
        "Release of a report": msgspec.structs.replace(release, rows=1, vector=b"\5"),
    }
    return found | {type(body).__name__: body for body in (*rest, release)} | variants


def positive(found: dict[str, Any]) -> list[dict[str, Any]]:
    frames = {kind.__name__ for kind in messages.Frame.__args__}
    return [
        {"kind": kind, "is": "frame" if kind in frames else "body", "bytes": encode(one).hex(), "decoded": plain(one)}
        for kind, one in sorted(found.items())
    ]


def negative(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What must not decode, with the reason."""
    share, query, start, behind = (encode(found[kind]) for kind in ("Share", "Query", "Start", "Behind"))
    nonce_at, charge_at = share.index(b"\xc4\x18"), len(behind) - 2
    announcement = encode(found["Announcement"])
    map_at = announcement.index(b"\x84\xa7columns")
    before, after = announcement[:map_at] + b"\x85", announcement[map_at + 1 :]
    wrong: dict[str, tuple[str, bytes]] = {
        "empty": ("frame", b""),
        "trailing byte": ("frame", share + b"\0"),
        "two messages": ("frame", share + share),
        "unknown tag": ("frame", share[:1] + b"\x09" + share[2:]),
        "a frame where a body belongs": ("body", share),
        "a body where a frame belongs": ("frame", query),
        "non-canonical tag": ("frame", share[:1] + b"\xcc\x03" + share[2:]),
        "non-canonical array": ("frame", b"\xdc\0\x05" + share[1:]),
        "non-canonical bytes": ("frame", share[:2] + b"\xc5\0\x10" + share[4:]),
        "text for bytes": ("frame", share[:2] + b"\xb0" + b"a" * 16 + share[20:]),
        "an id too short": ("frame", share[:2] + b"\xc4\x0f" + share[5:]),
        "charge 0": ("body", behind[:charge_at] + b"\0" + behind[charge_at + 1 :]),
        "a charge of 2^32": ("body", behind[:charge_at] + b"\xcf\0\0\0\1\0\0\0\0" + behind[charge_at + 1 :]),
        "a charge in clear": ("frame", b"\x96" + share[1:nonce_at] + b"\1" + share[nonce_at:]),
        "nil for bytes": ("frame", share[:2] + b"\xc0" + share[20:]),
        "an extension for bytes": ("frame", share[:2] + b"\xd8\x01" + share[4:]),
        "an unknown field": ("frame", b"\x96" + share[1:] + b"\xc0"),
        "a missing field": ("frame", b"\x94" + share[1:nonce_at] + b"\xc4\0"),
        "a map": ("frame", b"\x81\x01\x02"),
        "deep nesting": ("frame", b"\x91" * 5000 + b"\xc0"),
        "an array of 2^32 - 1": ("frame", b"\xdd\xff\xff\xff\xff"),
        "a reserved byte": ("frame", b"\xc1"),
        "version 0": ("body", query[:2] + b"\0" + query[3:]),
        "version 1": ("body", query[:2] + b"\x01" + query[3:]),
        "version 2": ("body", query[:2] + b"\x02" + query[3:]),
        "version 4": ("body", query[:2] + b"\x04" + query[3:]),
        "version as a float": ("body", query[:2] + b"\xcb\x40\0\0\0\0\0\0\0" + query[3:]),
        "version as a boolean": ("body", query[:2] + b"\xc3" + query[3:]),
        "a negative number": ("body", start[:-1] + b"\xff"),
        "a non-canonical number": ("body", start[:-1] + b"\xcd\0" + start[-1:]),
        "a parameter twice": ("body", before + b"\xa7columns\x90" + after),
        "an extension as a parameter": ("body", before + b"\xa1x\xd4\x05\0" + after),
        "nil as a parameter": ("body", before + b"\xa1x\xc0" + after),
        "a map as a parameter": ("body", before + b"\xa1x\x80" + after),
        "text that is not UTF-8": ("body", before + b"\xa1\xff\x01" + after),
    }  # fmt: skip
    cut = {f"cut after {size} bytes": ("frame", share[:size]) for size in (1, 2, 19, len(share) - 1)}
    return [{"what": what, "is": kind, "bytes": data.hex()} for what, (kind, data) in (wrong | cut).items()]


def keys() -> list[dict[str, Any]]:
    """Known answers of hashing, derivation, agreement, signatures and encryption."""
    identity, alice, bob = Identity(SECRET), AgreementKey(SECRET), AgreementKey(OTHER_SECRET)
    key = round_key(ROOT, SESSION, ROUND, CONTRIBUTION, CONTRIBUTION)
    bound = associated_data(SESSION, 7, CONTRIBUTION)
    hidden = plaintext(258, ROOT)
    sealed = Sealed(ROUND, *seal_to(bob.public, b"text", SESSION, lambda size: (SECRET + NONCE)[:size]))
    federation = Cast(1, 2, name="vectors").federation
    answers: list[tuple[str, dict[str, Any], Any]] = [
        ("digest", {"person": "dca1-list", "parts": [SESSION, b"abc"]}, digest(b"dca1-list", SESSION, b"abc")),
        ("derive", {"key": ROOT, "person": "dca1-noise"}, derive(ROOT, b"dca1-noise")),
        ("actor id", {"seed": SECRET, "public": identity.public_key}, identity.id),
        ("federation hash", {"toml": federation.to_toml()}, federation.hash),
        ("signature", {"seed": SECRET, "federation hash": SESSION, "body": b"abc"}, identity.sign(SESSION, b"abc")),
        ("agreement", {"secret": SECRET, "peer public": bob.public}, alice.agree(bob.public)),
        ("round key", {"pair key": ROOT, "session": SESSION, "client": ROUND, "compute": CONTRIBUTION,
                       "contribution": CONTRIBUTION}, key),
        ("receipt tag", {"round key": key}, receipt_tag(key)),
        ("associated data", {"session": SESSION, "position": 7, "contribution": CONTRIBUTION}, bound),
        ("share plaintext", {"charge": 258, "share": ROOT}, hidden),
        ("share encryption", {"key": key, "nonce": NONCE, "plaintext": hidden, "associated": bound},
         encrypt(key, NONCE, hidden, bound)),
        ("sealed", {"public": bob.public, "ephemeral secret": SECRET, "nonce": (SECRET + NONCE)[:24],
                    "plaintext": b"text", "associated": SESSION}, sealed),
    ]  # fmt: skip
    return [{"what": what, "given": plain(given), "expected": plain(expected)} for what, given, expected in answers]


def shares() -> dict[str, Any]:
    """One value of three coordinates, split for three nodes in both encodings, and noise for it."""
    value = np.array([1, -2, 2**53], dtype=np.int64)
    full_at = vector_node(ROUND, CONTRIBUTION, 3)
    noise = DistributedDiscreteGaussian().sample(10_000, 3, derive(ROOT, b"dca1-noise"))
    return {
        "value": value.tolist(),
        "root": plain(ROOT),
        "round": plain(ROUND),
        "client": plain(CONTRIBUTION),
        "vector node": full_at,
        "noise of variance 10000": noise.tolist(),
        "bodies": {
            encoding: plain(share_bodies(value.view(np.uint64), ROOT, 3, full_at, encoding))
            for encoding in ("seed", "vector")
        },
    }


def local_reports() -> list[dict[str, Any]]:
    """What a client reports by each local mechanism from one key, as its bytes; and bytes that are no report."""
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
    """Signatures and ciphertexts with one bit changed: none verifies or opens."""
    signed = sign(Identity(SECRET), SESSION, Query(PROTOCOL_VERSION, ROUND, SESSION))
    ciphertext = encrypt(ROOT, NONCE, b"text", SESSION)
    cases = [("signature", "body", signed.body), ("signature", "signature", signed.signature)]
    cases += [("ciphertext", "ciphertext", ciphertext), ("ciphertext", "nonce", NONCE), ("ciphertext", "key", ROOT)]
    genuine: dict[str, dict[str, bytes]] = {
        "signature": {"public": Identity(SECRET).public_key, "federation hash": SESSION, "body": signed.body,
                      "signature": signed.signature},
        "ciphertext": {"key": ROOT, "nonce": NONCE, "ciphertext": ciphertext, "associated": SESSION},
    }  # fmt: skip
    return [
        {"is": kind, "changed": field, **plain(genuine[kind] | {field: bytes((data[0] ^ 1,)) + data[1:]})}
        for kind, field, data in cases
    ]


def render() -> str:
    """The file's text."""
    found = all_messages(*played())
    vectors = {
        "protocol_version": PROTOCOL_VERSION,
        "messages": positive(found),
        "must_not_decode": negative(found),
        "keys": keys(),
        "shares": shares(),
        "reports": local_reports(),
        "must_not_verify": forgeries(),
    }
    return json.dumps(vectors, indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(render())
    print(f"wrote {PATH}")
