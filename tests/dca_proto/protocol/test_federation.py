"""The federation file and the certificates: who belongs."""

from __future__ import annotations

import msgspec
import pytest

from dca_proto.crypto.sealing import Identity, actor_id
from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.protocol.wire.messages import Certificate

AUTHORITY, CLIENT = Identity(bytes(32)), Identity(b"\1" * 32)
KEYS = [Identity(bytes([10 + index]) * 32).public_key for index in range(4)]
FEDERATION = sign_federation(
    AUTHORITY,
    Federation(
        "hospital-7",
        AUTHORITY.public_key,
        (Member("north", KEYS[0]), Member("Süd. 1_b", KEYS[1])),
        (Member("lab", KEYS[2]),),
    ),
)


def test_the_file_comes_back_as_it_was() -> None:
    assert Federation.from_toml(FEDERATION.to_toml()) == FEDERATION
    assert Federation.from_toml(FEDERATION.to_toml()).hash == FEDERATION.hash


def test_every_change_is_another_federation() -> None:
    changed = [
        msgspec.structs.replace(FEDERATION, **change)
        for change in (
            {"name": "hospital-8"},
            {"enrolment_key": KEYS[3]},
            {"computes": FEDERATION.computes[:1]},
            {"computes": FEDERATION.computes[::-1]},
            {"trainers": (Member("lab", KEYS[3]),)},
            {"trainers": (Member("lob", KEYS[2]),)},
            {"colluding": 1},
        )
    ]
    assert len({one.hash for one in [FEDERATION, *changed]}) == 8


@pytest.mark.parametrize(
    ("computes", "colluding", "p"),
    [(3, 0, 2), (3, 1, 1), (3, 2, 2), (3, 3, 2), (3, 255, 2), (2, 0, 1), (1, 0, 1), (0, 0, 1), (0, 9, 1)],
)
def test_p_is_at_most_all_but_one_and_never_less_than_one(computes: int, colluding: int, p: int) -> None:
    """A threshold of p + 1 aborts is never met by one node, nor by none."""
    members = tuple(Member(f"node-{index}", Identity(bytes([40 + index]) * 32).public_key) for index in range(computes))
    assert msgspec.structs.replace(FEDERATION, computes=members, colluding=colluding).p == p


@pytest.mark.parametrize("colluding", ["true", "1.0", "-1", "256", '"1"'])
def test_p_is_a_small_number(colluding: str) -> None:
    with pytest.raises(UsageError, match="colluding"):
        Federation.from_toml(FEDERATION.to_toml().replace("colluding = 0", f"colluding = {colluding}"))


def test_nobody_but_the_owner_changes_p() -> None:
    with pytest.raises(UsageError, match="did not sign"):
        Federation.from_toml(FEDERATION.to_toml().replace("colluding = 0", "colluding = 1"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "Hospital"}, "lower-case"),
        ({"name": "a/b"}, "lower-case"),
        ({"name": "a+#"}, "lower-case"),
        ({"name": ""}, "lower-case"),
        ({"name": "x" * 33}, "lower-case"),
        ({"enrolment_key": b"short"}, "not 32 bytes"),
        ({"trainers": (Member("lab", b"short"),)}, "not 32 bytes"),
        ({"trainers": (Member("north", KEYS[3]),)}, "have the same name"),
        ({"trainers": (Member("lab", KEYS[0]),)}, "have the same key"),
    ],
)
def test_a_file_that_cannot_be_is_the_callers_error(change: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        msgspec.structs.replace(FEDERATION, **change)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name = ",
        'name = "a"',
        'name = "a"\nenrolment_key = 3',
        'name = "a"\nenrolment_key = "zz"',
        FEDERATION.to_toml() + '\n[[computes]]\nname = "x"\n',
        FEDERATION.to_toml().replace("[[trainers]]", "[[traniers]]"),
        "unknown = 1\n" + FEDERATION.to_toml(),
    ],
)
def test_a_file_that_does_not_read_is_one_line_of_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Federation.from_toml(text)
    assert "\n" not in str(caught.value)
    assert "federation" in str(caught.value)


def test_members_are_found_by_id_and_role() -> None:
    assert FEDERATION.compute(actor_id(KEYS[0])).name == "north"
    assert FEDERATION.trainer(actor_id(KEYS[2])).name == "lab"
    with pytest.raises(PeerError, match="unknown-compute"):
        FEDERATION.compute(actor_id(KEYS[2]))
    with pytest.raises(PeerError, match="unknown-trainer"):
        FEDERATION.trainer(actor_id(KEYS[0]))


def test_a_certificate_is_the_enrolment_keys_word_until_it_expires() -> None:
    certificate = enrol(AUTHORITY, FEDERATION, CLIENT.public_key, 1000)
    assert FEDERATION.check_certificate(certificate, 999) == CLIENT.id
    with pytest.raises(PeerError, match="certificate: found a certificate until 1970-01-01"):
        FEDERATION.check_certificate(certificate, 1000)


@pytest.mark.parametrize(
    "change", [{"client_key": KEYS[0]}, {"expires_ms": 1001}, {"signature": bytes(64)}, {"name": bytes(88)}]
)
def test_a_changed_certificate_is_refused(change: dict) -> None:
    certificate = enrol(AUTHORITY, FEDERATION, CLIENT.public_key, 1000)
    with pytest.raises(PeerError, match="signature"):
        FEDERATION.check_certificate(msgspec.structs.replace(certificate, **change), 0)


def test_certificates_of_others_are_refused() -> None:
    with pytest.raises(UsageError, match="not the federation file's enrolment key"):
        enrol(CLIENT, FEDERATION, CLIENT.public_key, 1000)
    own = msgspec.structs.replace(FEDERATION, enrolment_key=CLIENT.public_key)
    foreign: Certificate = enrol(CLIENT, own, CLIENT.public_key, 1000)
    with pytest.raises(PeerError, match="signature"):
        FEDERATION.check_certificate(foreign, 0)


def test_a_change_keeps_the_federations_id_and_its_certificates() -> None:
    certificate = enrol(AUTHORITY, FEDERATION, CLIENT.public_key, 1000)
    changed = msgspec.structs.replace(FEDERATION, number=2, computes=FEDERATION.computes[:1], revoked=(KEYS[3][:16],))
    following = sign_federation(AUTHORITY, changed)
    assert following.id == FEDERATION.id != msgspec.structs.replace(FEDERATION, name="other").id
    assert following.hash != FEDERATION.hash
    assert following.check_certificate(certificate, 0) == CLIENT.id
    assert Federation.from_toml(following.to_toml()) == following
    revoking = sign_federation(AUTHORITY, msgspec.structs.replace(FEDERATION, number=2, revoked=(CLIENT.id,)))
    with pytest.raises(PeerError, match="revoked: found"):
        revoking.check_certificate(certificate, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("number = 1", "number = 2"),
        ('name = "north"', 'name = "south"'),
        ("revoked = []", f'revoked = ["{"00" * 16}"]'),
        (KEYS[0].hex(), KEYS[3].hex()),
        ('name = "hospital-7"', 'name = "hospital-8"'),
    ],
)
def test_a_change_by_hand_breaks_the_signature(old: str, new: str) -> None:
    text = FEDERATION.to_toml()
    assert old in text
    with pytest.raises(UsageError, match="the enrolment key did not sign this content"):
        Federation.from_toml(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"revoked": (bytes(16), bytes(16))}, "repeated, or not in ascending order"),
        ({"revoked": (b"\2" * 16, b"\1" * 16)}, "not in ascending order"),
        ({"revoked": (actor_id(KEYS[0]),)}, "the key of north is revoked"),
        ({"revoked": (bytes(15),)}, "members would refuse its content"),
        ({"number": 0}, "members would refuse its content"),
        ({"number": 1 << 32}, "members would refuse its content"),
        ({"trainers": (Member("x" * 65, KEYS[3]),)}, "a member is named 'xxx"),
    ],
)
def test_a_file_that_no_member_would_take_is_not_signed(change: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sign_federation(AUTHORITY, msgspec.structs.replace(FEDERATION, **change))
