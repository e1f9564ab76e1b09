"""Stores that another version wrote, or that were damaged: each actor reports in one line what cannot be read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from round_helpers import announced, begin, losing

from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import mu_of
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.messages import Answer, Close, Contribution, Receipt
from dca_proto.testing import TestFederation

Records = list[tuple[str, bytes, bytes]]
CANNOT = (
    "a record in the store's table '{}' cannot be read ({}): it is damaged, or of another version; "
    "run the version that wrote it, or start with a fresh store (a client enrolled anew), not with an old copy"
)


def records(role: str) -> tuple[Callable[[Records], object], Records]:
    """An actor's builder, and what its store holds in the middle of a round, or after a declined one."""
    actors = TestFederation(4, 2)
    if role == "declining client":
        actors.policy = Policy()
    network = actors.network()
    lost = {"node": (Close,), "answering node": (Answer,), "trainer": (Contribution,)}.get(role, (Receipt,))
    network.tamper = losing(*lost)
    begin(actors, network, collect_s=600)
    holder = announced(network, actors).holder(actors.clients[0]).id
    node = actors.computes.index(holder)
    actor, build = {
        "client": (actors.clients[0], lambda stored: actors.client(0, stored)),
        "declining client": (actors.clients[0], lambda stored: actors.client(0, stored)),
        "node": (holder, lambda stored: actors.compute(node, stored)),
        "answering node": (holder, lambda stored: actors.compute(node, stored)),
        "trainer": (actors.trainer_identity.id, actors.trainer),
    }[role]
    return build, [(table, key, value) for (table, key), value in network.stores[actor].items()]


BEFORE_REPORTS = (
    "8ba8726f756e645f6964c41072727272727272727272727272727272a9737461746973746963a373756da7747261696e6572c410747474747474"
    "74747474747474747474a26d75cb3fce4c5442e27820a7657073696c6f6ecb3ff0000000000000a564656c7461cb3eb0c6f7a0b5ed8da561745f"
    "6d73cf0000018bcfe56800a66e756d62657201a872657475726e6564c2a7636c69656e747390a872656c6174696f6eb27265706c6163652d6f6e"
    "652d636c69656e74",
    "8ba8726f756e645f6964c41073737373737373737373737373737373a9737461746973746963a373756da7747261696e6572c410747474747474"
    "74747474747474747474a26d75cb3fbfc56bab518e40a7657073696c6f6ecb3fe0000000000000a564656c7461cb3eb0c6f7a0b5ed8da561745f"
    "6d73cf0000018bcfe56801a66e756d62657202a872657475726e6564c2a7636c69656e747391c41063636363636363636363636363636363a872"
    "656c6174696f6eb27265706c6163652d6f6e652d636c69656e74",
)
"""A ledger's entries as they were written when all rounds were Gaussian: of ε = 1 and 0.5, the second of one client."""


def test_a_ledger_from_before_there_were_reports_is_read_as_gaussian_rounds() -> None:
    records = [(LEDGER, bytes([number]), bytes.fromhex(text)) for number, text in enumerate(BEFORE_REPORTS)]
    spent = TestFederation(4, 2).trainer(records).ledger.spent()
    assert spent == PrivacyCost(gaussian=mu_of(1.0, 1e-6) ** 2 + mu_of(0.5, 1e-6) ** 2)
    assert spent.mu == 0.2672663466514906, "the result of that version"


BEFORE_SLACK = (
    "8ba8726f756e645f6964c41072727272727272727272727272727272a9737461746973746963a373756da7747261696e6572c410747474747474"
    "74747474747474747474a26d75cb3fd127bfe5f64cc0a7657073696c6f6ecb3ff0000000000000a564656c7461cb3ee4f8b588e368f1a561745f"
    "6d73cf000001a0c4506c00a66e756d62657201a872657475726e6564c2a7636c69656e747390a872656c6174696f6eb27265706c6163652d6f6e"
    "652d636c69656e74",
    "8ba8726f756e645f6964c41073737373737373737373737373737373a9737461746973746963a36c6470a7747261696e6572c410747474747474"
    "74747474747474747474a26d75cb4000000000000000a7657073696c6f6ecb3fe0000000000000a564656c7461cb0000000000000000a561745f"
    "6d73cf000001a0c4506c01a66e756d62657202a872657475726e6564c3a7636c69656e747391c41063636363636363636363636363636363a872"
    "656c6174696f6eaf7265706c6163652d6f6e652d726f77",
)
"""As they were written before there were verified sums: a round of ε = 1, and a returned charge of one client."""


def test_a_ledger_from_before_there_were_verified_sums_has_no_slack() -> None:
    records = [(LEDGER, bytes([number]), bytes.fromhex(text)) for number, text in enumerate(BEFORE_SLACK)]
    ledger = TestFederation(4, 2).trainer(records).ledger
    assert ledger.spent() == PrivacyCost(gaussian=mu_of(1.0, 1e-5) ** 2)
    assert [(one.slack, one.returned, one.clients) for one in ledger.charges] == [
        (0.0, False, ()),
        (0.0, True, (b"c" * 16,)),
    ]
    again = ledger.count_again(b"s" * 16)
    plain, before = (msgspec.msgpack.decode(text) for text in (again.value, bytes.fromhex(BEFORE_SLACK[1])))
    assert plain == {**before, "returned": False, "slack": 0.0}, "what is written again keeps all that was known"


def test_a_ledger_without_numbers_is_of_an_older_version() -> None:
    """The protocol's first version did not number charges. Such a ledger must neither start nor be taken for empty."""
    build, stored = records("client")
    plain = msgspec.msgpack.decode
    without = [(table, key, plain(value)) for table, key, value in stored if table == "ledger"]
    old = [(table, key, value) for table, key, value in stored if table != "ledger"]
    for table, key, charge in without:
        del charge["number"]
        old.append((table, key, msgspec.msgpack.encode(charge)))
    with pytest.raises(UsageError) as raised:
        build(old)
    assert str(raised.value) == CANNOT.format("ledger", "Object missing required field `number`")


@pytest.mark.parametrize(
    ("role", "table"),
    [
        ("client", "ledger"),
        ("client", "client-round"),
        ("declining client", "declined"),
        ("node", "round"),
        ("node", "session"),
        ("node", "contribution"),
        ("answering node", "list"),
        ("trainer", "ledger"),
        ("trainer", "trainer-round"),
    ],
)
@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x81\xa1\xff\x00", b"\x01"])
def test_an_unreadable_record_stops_the_start_by_name(role: str, table: str, damage: bytes) -> None:
    build, stored = records(role)
    assert table in {kind for kind, _, _ in stored}
    build(stored)
    with pytest.raises(UsageError, match=rf"^a record in the store's table '{table}' cannot be read \(.*version"):
        build([(kind, key, damage if kind == table else value) for kind, key, value in stored])


@pytest.mark.parametrize(
    ("role", "table"),
    [
        ("client", "epoch"),
        ("client", "seen"),
        ("node", "epoch"),
        ("node", "seen"),
        ("answering node", "charges"),
    ],
)
@pytest.mark.parametrize("damage", [b"", b"\xc1"])
def test_plain_bytes_of_a_wrong_length_stop_the_start_by_name(role: str, table: str, damage: bytes) -> None:
    """A charge window that became empty would silently forget all of a client's numbers."""
    build, stored = records(role)
    kinds = {kind for kind, _, _ in stored}
    assert table in kinds, kinds
    with pytest.raises(UsageError, match=rf"^a record in the store's table '{table}' cannot be read \(.*version"):
        build([(kind, key, damage if kind == table else value) for kind, key, value in stored])


def test_a_contribution_without_its_round_stops_the_start() -> None:
    build, stored = records("node")
    with pytest.raises(UsageError, match="table 'contribution' cannot be read"):
        build([record for record in stored if record[0] != "round"])
