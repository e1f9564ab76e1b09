"""The wire format cannot change unnoticed: DESIGN names all of it, and each protocol version has one fingerprint.

**If `test_the_wire_format_of_a_version_never_changes` fails**, the encoding of a message or a label has changed.
Members with the old and the new code would misread each other, or refuse each other without a reason. So:

1. If the version is released (`RELEASED`), raise `PROTOCOL_VERSION` in `dca_proto/protocol/params.py`, and `PREFIX` in
   `dca_proto/crypto/labels.py`. A line of `FINGERPRINTS` for a released version never changes.
2. Write the change into DESIGN, then run `python scripts/make_vectors.py` and `python scripts/make_diagrams.py`.
3. Put the fingerprint from the failure into `FINGERPRINTS`, in a new line or in that of the unreleased version.

Names of fields and of Python types are no part of a fingerprint, because they are not on the wire. The packed bytes
within fields are held by the test vectors (`test_vectors.py`), which are computed a second time by other libraries.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta, inspect

from dca_proto.crypto import labels
from dca_proto.protocol.params import PROTOCOL_VERSION
from dca_proto.protocol.wire import messages
from make_diagrams import ROOT, encoding, fields_of, structs

FINGERPRINTS = {5: "2a5c6184b237d07c77650d10dd22887d"}
RELEASED = 4
"""The highest protocol version in a release of the package."""
DESIGN = (ROOT / "dca_proto" / "DESIGN.md").read_text(encoding="utf-8")


def fingerprint(types: tuple[type[msgspec.Struct], ...], rows: list[labels.Label]) -> str:
    """Return a hash of each type's tag and the encodings of its fields in order, and of all labels."""
    numbers = {f"`{one.__name__}`": f"<{number}>" for number, one in enumerate(types)}
    lines = []
    for one in types:
        plain = " ".join(of for _, of in fields_of(one))
        lines.append(f"{one.__struct_config__.tag}: {re.sub('`[A-Za-z]+`', lambda name: numbers[name[0]], plain)}")
    lines += [f"{one.text.decode()} {one.how} {one.inputs}" for one in rows]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def test_the_wire_format_of_a_version_never_changes() -> None:
    found = fingerprint(structs(), list(labels.TABLE.values()))
    assert found == FINGERPRINTS.get(PROTOCOL_VERSION), f"the wire format has changed; see the head of {__file__}"
    assert max(FINGERPRINTS) == PROTOCOL_VERSION >= RELEASED
    assert f"dca{PROTOCOL_VERSION}-".encode() == labels.PREFIX


class Plain(msgspec.Struct, array_like=True, tag=1):
    first: Annotated[bytes, Meta(max_length=16)]
    second: int


class Renamed(msgspec.Struct, array_like=True, tag=1):
    other: Annotated[bytes, Meta(max_length=16)]
    name: int


class Swapped(msgspec.Struct, array_like=True, tag=1):
    second: int
    first: Annotated[bytes, Meta(max_length=16)]


class Longer(msgspec.Struct, array_like=True, tag=1):
    first: Annotated[bytes, Meta(max_length=17)]
    second: int


class More(msgspec.Struct, array_like=True, tag=1):
    first: Annotated[bytes, Meta(max_length=16)]
    second: int
    third: int


class Tagged(msgspec.Struct, array_like=True, tag=2):
    first: Annotated[bytes, Meta(max_length=16)]
    second: int


@pytest.mark.parametrize("other", [Swapped, Longer, More, Tagged])
def test_a_fingerprint_notices_each_change_of_an_encoding_and_no_new_name(other: type[msgspec.Struct]) -> None:
    assert fingerprint((other,), []) != fingerprint((Plain,), []) == fingerprint((Renamed,), [])


def test_each_field_of_each_message_is_named_in_the_design() -> None:
    """Beside the column that lists it: with what it means."""
    begin, end = DESIGN.split("<!-- messages -->"), "<!-- /messages -->"
    rows = {row.split(" | ")[0][3:-1]: row.split(" | ") for row in begin[1].partition(end)[0].splitlines()[3:]}
    assert set(rows) == {one.__name__ for one in structs()}
    elsewhere = begin[0]
    unnamed = [
        f"{one.__name__}.{name}"
        for one in structs()
        for name, _ in fields_of(one)
        if f"`{name}`" not in rows[one.__name__][3] and f"`{name}`" not in elsewhere
    ]
    assert not unnamed, "state what they mean in the types' docstrings, then run scripts/make_diagrams.py"


def test_bytes_of_no_fixed_length_have_their_encoding_in_the_design() -> None:
    """In the first column of §3's table; another implementation needs what is packed into them."""
    table = DESIGN.partition("| bytes | content |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    fields = {field for one in structs() for field in fields_of(one)}
    packed = {name for name, of in fields if re.fullmatch(r"bytes|(at most|\d+ to) \d+ bytes", of)}
    assert len(packed) > 12
    assert sorted(packed - named) == []


def test_the_design_states_the_tags_of_frames_and_bodies() -> None:
    tags = [[one.__struct_config__.tag for one in union.__args__] for union in (messages.Frame, messages.Body)]
    (first, last), (low, high) = ((min(one), max(one)) for one in tags)
    assert f"Frames have tags {first} to {last}, bodies {low} to {high}." in " ".join(DESIGN.split())


def test_each_way_to_write_an_encoding() -> None:
    """An encoding that the words leave out would change without a new fingerprint."""
    named = {
        bytes: "bytes",
        Annotated[bytes, Meta(min_length=2, max_length=2)]: "2 bytes",
        Annotated[str, Meta(min_length=1, max_length=9)]: "text of 1 to 9 characters",
        Annotated[int, Meta(ge=0, lt=1 << 32)]: "0 to 2^32 − 1",
        Annotated[int, Meta(ge=0, le=40)]: "0 to 40",
        dict[str, int]: "map from text to integer",
        tuple[str, bytes]: "[text, bytes]",
        Annotated[tuple[int, ...], Meta(max_length=3)]: "array of at most 3 × (integer)",
        list[bool | float]: "array of (bool or float)",
    }
    for kind, words in named.items():
        assert encoding(inspect.type_info(kind)) == words
