"""What a registrar decides: codes, keys, limits (DESIGN §2.9)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.protocol.enrolment import (
    CLOCK_MS,
    DAY_MS,
    BookedInvitation,
    Bundle,
    Decision,
    Desk,
    Enrol,
    Enrolled,
    EnrolmentRefused,
    Entrance,
    EntranceOpened,
    broker_password,
    code_hash,
    enrol_request,
    renew_request,
)
from dca_proto.protocol.federation import Federation, sign_federation
from dca_proto.protocol.names import open_name
from dca_proto.protocol.wire.messages import Registrar
from dca_proto.testing import TestFederation, seeded

NOW_MS = 1_700_000_000_000
CODE = seeded("code")(16)


def identity(name: str) -> Identity:
    return Identity(seeded(name)(KEY_BYTES))


CAST, DOOR, DEVICE, THIEF = TestFederation(1, 3), identity("door"), identity("device"), identity("thief")
LIMITS = Registrar("door", DOOR.public_key, b"", NOW_MS + 100 * DAY_MS, 5, 30, 3)
INVITED = BookedInvitation("ward-7", NOW_MS + 7 * DAY_MS, 90)


def file(number: int = 1, registrars: tuple[Registrar, ...] = (LIMITS,), **changes: Any) -> Federation:
    new = msgspec.structs.replace(CAST.federation, number=number, registrars=registrars, **changes)
    return sign_federation(CAST.authority, new)


FILE = file()


def desk(federation: Federation = FILE, enrolled: int = 0, issued: int = 0) -> Desk:
    return Desk(DOOR, federation, enrolled, issued)


def request(by: Identity = DEVICE, code: bytes = CODE) -> Enrol:
    return enrol_request(by, FILE.id, code)


def refusal(decision: Decision) -> str:
    """The code of a refusal, which stores nothing; empty for an enrolment."""
    if isinstance(decision.answer, EnrolmentRefused):
        assert decision.store is None
        return decision.answer.code
    return ""


def enrolled(decision: Decision) -> Enrolled:
    assert isinstance(decision.answer, Enrolled), decision.answer
    return decision.answer


def used() -> BookedInvitation:
    """The invitation after the device's first request."""
    stored = desk().enrol(request(), INVITED, NOW_MS).store
    assert stored is not None
    return stored


def test_a_device_gets_a_certificate_with_the_name_of_its_invitation() -> None:
    answer = enrolled(desk().enrol(request(), INVITED, NOW_MS))
    assert FILE.check_certificate(answer.certificate, NOW_MS) == DEVICE.id
    assert answer.certificate.expires_ms == NOW_MS + 30 * DAY_MS, "the registrar's limit, below the invitation's"
    assert open_name(FILE.name_key(CAST.trainer_identity) or b"", answer.certificate) == "ward-7" == answer.name
    assert Federation.from_toml(answer.federation) == FILE
    assert answer.password == broker_password(DOOR, DEVICE.id) != broker_password(DOOR, THIEF.id)


def test_a_repeated_request_gets_the_same_answer_and_counts_once() -> None:
    first, stored = desk().enrol(request(), INVITED, NOW_MS), used()
    for at_ms in (NOW_MS, NOW_MS + DAY_MS, INVITED.until_ms + DAY_MS):
        again = desk(enrolled=5, issued=3).enrol(request(), stored, at_ms)
        assert (again.answer, again.store) == (first.answer, None)


def test_a_second_device_with_the_code_is_refused_and_named_to_the_operator() -> None:
    decision = desk().enrol(request(THIEF), used(), NOW_MS)
    assert refusal(decision) == "spent"
    assert decision.is_alarm


REFUSED = {
    "signature": (desk(), msgspec.structs.replace(request(), client_key=THIEF.public_key), INVITED, NOW_MS),
    "code": (desk(), request(), None, NOW_MS),
    "expired": (desk(), request(), INVITED, INVITED.until_ms),
    "cancelled": (desk(), request(), msgspec.structs.replace(INVITED, is_cancelled=True), NOW_MS),
    "limit": (desk(enrolled=5), request(), INVITED, NOW_MS),
    "rate": (desk(issued=3), request(), INVITED, NOW_MS),
    "revoked": (desk(file(2, revoked=(DEVICE.id,))), request(), INVITED, NOW_MS),
    "registrar": (desk(file(2, registrars=())), request(), INVITED, NOW_MS),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused(code: str) -> None:
    at, asked, known, now_ms = REFUSED[code]
    assert refusal(at.enrol(asked, known, now_ms)) == code


def test_a_revocation_also_ends_repeated_answers() -> None:
    assert refusal(desk(file(2, revoked=(DEVICE.id,))).enrol(request(), used(), NOW_MS)) == "revoked"
    assert refusal(desk(file(2, registrars=())).enrol(request(), used(), NOW_MS)) == "registrar"


def test_no_certificate_outlives_the_registrar() -> None:
    late = LIMITS.until_ms - DAY_MS
    invited = msgspec.structs.replace(INVITED, until_ms=late + DAY_MS)
    assert enrolled(desk().enrol(request(), invited, late)).certificate.expires_ms == LIMITS.until_ms
    over = msgspec.structs.replace(INVITED, until_ms=LIMITS.until_ms + DAY_MS)
    assert refusal(desk().enrol(request(), over, LIMITS.until_ms)) == "registrar"


def test_a_client_renews_with_its_key_alone() -> None:
    stored, later = used(), NOW_MS + 20 * DAY_MS
    decision = desk(enrolled=5).renew(renew_request(DEVICE, FILE.id, later), stored, later)
    assert enrolled(decision).certificate.expires_ms == later + 30 * DAY_MS
    assert decision.store is not None
    assert decision.store.client_key == DEVICE.public_key


def test_who_may_not_renew() -> None:
    stored, asked = used(), renew_request(DEVICE, FILE.id, NOW_MS)
    other = msgspec.structs.replace(asked, client_key=THIEF.public_key)
    assert refusal(desk().renew(other, stored, NOW_MS)) == "signature"
    assert refusal(desk().renew(asked, stored, NOW_MS + CLOCK_MS + 1)) == "clock", "a replayed request"
    assert refusal(desk().renew(asked, None, NOW_MS)) == "unknown"
    assert refusal(desk().renew(asked, msgspec.structs.replace(stored, is_cancelled=True), NOW_MS)) == "unknown"
    later = NOW_MS + DAY_MS
    assert refusal(desk(issued=3).renew(renew_request(DEVICE, FILE.id, later), stored, later)) == "rate"
    assert refusal(desk(file(2, revoked=(DEVICE.id,))).renew(asked, stored, NOW_MS)) == "revoked"


def test_a_client_that_renews_without_end_uses_up_one_certificate_a_day() -> None:
    stored, soon = used(), NOW_MS + DAY_MS - 1
    decision = desk(issued=3).renew(renew_request(DEVICE, FILE.id, soon), stored, soon)
    assert (enrolled(decision).certificate, decision.store) == (stored.certificate, None)


def test_a_certificate_that_newer_limits_exclude_is_not_given_again() -> None:
    short = file(2, registrars=(msgspec.structs.replace(LIMITS, days=3),))
    assert enrolled(desk(short).enrol(request(), used(), NOW_MS)).certificate.expires_ms == NOW_MS + 3 * DAY_MS


def test_a_key_of_another_invitation_gets_no_second_name() -> None:
    taken = msgspec.structs.replace(desk(), is_taken=True)
    assert refusal(taken.enrol(request(), INVITED, NOW_MS)) == "taken"


def test_requests_of_one_purpose_or_federation_are_none_of_another() -> None:
    asked = renew_request(DEVICE, FILE.id, NOW_MS)
    moved = Enrol(CODE, DEVICE.public_key, asked.signature)
    assert refusal(desk().enrol(moved, INVITED, NOW_MS)) == "signature"
    elsewhere = enrol_request(DEVICE, bytes(32), CODE)
    assert refusal(desk().enrol(elsewhere, INVITED, NOW_MS)) == "signature"
    assert code_hash(FILE.id, CODE) != code_hash(bytes(32), CODE)


class FirstEntrance(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entrance of version 0.1.0."""

    host: str
    port: int
    broker: str
    ca: str
    federation: str


class FirstOpened(msgspec.Struct, frozen=True, array_like=True, tag=5, forbid_unknown_fields=True):
    entrance: FirstEntrance


def test_a_device_of_the_first_version_opens_the_link_of_an_invitation_that_suggests_no_policy() -> None:
    first = FirstEntrance("127.0.0.1", 1, "mqtts://127.0.0.1", "ca", "file")
    entrance = Entrance(*msgspec.structs.astuple(first))
    sent = msgspec.msgpack.encode(EntranceOpened.of(entrance))
    assert msgspec.msgpack.decode(sent, type=FirstOpened) == FirstOpened(first)
    known = msgspec.msgpack.encode(FirstOpened(first))
    assert msgspec.msgpack.decode(known, type=EntranceOpened).entrance == entrance
    suggesting = msgspec.structs.replace(entrance, policy="clients_min = 4\n")
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode(EntranceOpened.of(suggesting)), type=EntranceOpened).entrance
        == suggesting
    )
    assert suggesting.digest != entrance.digest


def test_no_secret_is_shown() -> None:
    entrance = Entrance("127.0.0.1", 1, "mqtts://127.0.0.1", "", "")
    decision = desk().enrol(request(), INVITED, NOW_MS)
    shown = f"{Bundle('ward-7', CODE, entrance)!r} {request()!r} {decision!r}"
    assert enrolled(decision).password not in shown
    assert repr(CODE) not in shown
    assert CODE.hex() not in shown
