"""The table of domain labels: one label for each purpose, used in one place, and written out nowhere else."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from sources import sources

from dca_proto.crypto import labels
from dca_proto.protocol.params import PROTOCOL_VERSION

NAMES = {name: value for name, value in vars(labels).items() if isinstance(value, bytes) and value in labels.TABLE}
WITH_LABEL = {
    "digest": 0, "derive": 1, "hedged": 0, "agree": 0, "seal_to": 0, "open_sealed": 0, "_sealed": 0, "_unsealed": 0,
    "_derive": 0,
}  # fmt: skip
"""Functions of the product that take a label, and its position among their arguments."""
METHODS = {"hedged", "agree", "_derive"}
OTHERS = {"agreement.agree"}
"""A method of one of these names that takes no label: the agreement of nodes on a set."""
HASHES = {"blake2b", "blake2s", "sha256", "sha512", "sha3_256", "pbkdf2_hmac"}
BOTH_ENDS = {"REPLY", "PEER_LIST", "NAMES_WRAP", "ENROL_REQUEST"}
"""Labels that a sealing and an opening function name, or a signing and a checking one, side by side.

MASK also gives the length of a row."""
WITHOUT_LABEL = {
    "dca_proto/runtime/access.py hashlib.pbkdf2_hmac",  # mosquitto's format of passwords has no room for one
    "dca_proto/report/page.py hashlib.sha256",  # a browser's of a page's style neither
    "dca_proto/jobs/standing.py hashlib.blake2b",  # a part of a file's name
    "dca_proto/protocol/pairing.py hashlib.blake2b",  # compared within one process; it never leaves
}
REFERENCES = {"emulator/pairs.py", "emulator/derivations.py", "emulator/trials/checkers/sums.py"}
"""They derive a second time, independently of the code, and so write labels out."""


def is_label(node: ast.expr) -> bool:
    return ast.unparse(node).startswith("labels.")


def test_each_label_has_one_name_and_the_prefix_of_this_version() -> None:
    assert f"dca{PROTOCOL_VERSION}-".encode() == labels.PREFIX
    assert sorted(NAMES.values()) == sorted(labels.TABLE)
    assert all(text.startswith(labels.PREFIX) for text in labels.TABLE)
    rows = list(labels.TABLE.values())
    assert len({(row.how, row.inputs, row.gives) for row in rows}) == len(rows), "two rows of one purpose"
    assert all(all(row) for row in rows)


def test_a_second_label_of_the_same_text_is_refused() -> None:
    with pytest.raises(AssertionError, match="each purpose"):
        labels._label("noise", labels.DERIVE, "root", "something else", labels.ONE)


@pytest.mark.parametrize("first", labels.TABLE.values(), ids=lambda row: row.text.decode())
def test_a_personalisation_fits_and_is_no_beginning_of_another(first: labels.Label) -> None:
    """BLAKE2b pads a personalisation with zeros. Where a label precedes other bytes, a longer one could be mistaken."""
    if first.how in (labels.SHAKE, labels.SIGNED):
        others = [one.text for one in labels.TABLE.values() if one.how == first.how and one is not first]
        assert not [other for other in others if other.startswith(first.text)]
    else:
        assert len(first.text) <= labels.PERSON_BYTES_MAX
        assert not first.text.endswith(b"\0")


def test_no_label_is_written_out_elsewhere() -> None:
    found = [
        f"{path}:{node.lineno} {node.value!r}"
        for path, nodes in sources()
        if path not in REFERENCES and path != "dca_proto/crypto/labels.py"
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and node.value.startswith(b"dca")
        if path.startswith("dca_proto") or node.value.startswith(labels.PREFIX)
    ]
    assert found == []


def label_arguments(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Call, ast.expr | None]]:
    """The calls that hash, derive, agree, seal or open, and what each takes as its label; None if it takes none."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node.func)
        name = text.rpartition(".")[2]
        person = next((keyword.value for keyword in node.keywords if keyword.arg == "person"), None)
        if person is not None or name in HASHES:
            yield node, person
        elif name in WITH_LABEL and (isinstance(node.func, ast.Name) or name in METHODS) and text not in OTHERS:
            yield node, node.args[WITH_LABEL[name]]


def test_every_hash_key_and_signature_of_the_product_has_a_label_of_the_table() -> None:
    """Only functions with an argument `label` pass on a variable; and each of them is in `WITH_LABEL`."""
    wrong: list[str] = []
    passing: set[str] = set()
    for path, nodes in sources("dca_proto"):
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        own = {id(one): node.name for node in functions if takes_label(node) for one in ast.walk(node)}
        for call, label in label_arguments(nodes):
            where = f"{path} {ast.unparse(call.func)}"
            if label is not None and ast.unparse(label) == "label" and id(call) in own:
                passing.add(own[id(call)])
            elif where not in WITHOUT_LABEL and not (label is not None and is_label(label)):
                wrong.append(f"{path}:{call.lineno} {ast.unparse(call)[:80]}")
    assert wrong == []
    assert passing == set(WITH_LABEL), "a new function that takes a label, or an old name"


def takes_label(node: ast.FunctionDef) -> bool:
    return any(argument.arg == "label" for argument in node.args.args)


def test_a_label_is_used_in_one_place() -> None:
    uses: Counter[str] = Counter()
    modules: dict[str, set[str]] = {name: set() for name in NAMES}
    for path, nodes in sources("dca_proto"):
        for node in nodes:
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "labels" and node.attr in NAMES:
                uses[node.attr] += 1
                modules[node.attr].add(path)
    assert {name: count for name, count in uses.items() if count != 1} == dict.fromkeys(BOTH_ENDS | {"MASK"}, 2)
    assert not [name for name, found in modules.items() if len(found) != 1], "unused, or used in two modules"
