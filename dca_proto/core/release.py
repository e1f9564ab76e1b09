"""A release in a local round, a data node's or a client's report: signed and sealed (DESIGN §4.8, §4.9).

Pure functions that both ends build on, as `upload` has them for shares. What is in it is the `randomiser`'s.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.codec import verify_signed
from dca_proto.core.errors import PeerError
from dca_proto.core.federation import Federation
from dca_proto.core.messages import Body, Certificate, Receipt, Release, Signed
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.randomiser import Randomiser
from dca_proto.core.round import OpenedAnnouncement, seal_answer
from dca_proto.core.sealing import ID_BYTES, KEY_BYTES, Random
from dca_proto.core.upload import Contribution, receipt_tag


def make_release(
    value: NDArray[np.int64],
    rows: int,
    *,
    randomiser: Randomiser,
    opened: OpenedAnnouncement,
    certificate: Certificate,
    sign: Callable[[Body], Signed],
    random: Random,
) -> Contribution:
    """Randomise, sign and seal a client's value.

    Args:
        value: its clipped, encoded contribution, shape ``(dimension,)``, in grid units. rows: how many rows that is of.
        randomiser: of the round. sign: with the client's identity.
        random: the operating system's generator; all randomness comes from 32 fresh bytes that are not kept.
    """
    told_rows, vector = randomiser.release(value, rows, random(KEY_BYTES))
    contribution, key = random(ID_BYTES), random(KEY_BYTES)
    body = Release(
        version=PROTOCOL_VERSION,
        round_id=opened.body.round_id,
        announcement_hash=opened.hash,
        certificate=certificate,
        rows=told_rows,
        contribution=contribution,
        receipt_key=key,
        vector=vector,
    )
    return Contribution(contribution, (seal_answer(sign(body), opened, random),), (receipt_tag(key),))


def check_release(
    frame: Signed,
    body: Release,
    opened: OpenedAnnouncement,
    federation: Federation,
    randomiser: Randomiser,
    now_ms: int,
) -> bytes:
    """The client's id, if certificate and signature hold and it is a release of this round. Raises `PeerError`.

    Args:
        body: the decoded body of `frame`. randomiser: of the round.
    """
    client = federation.check_certificate(body.certificate, now_ms)
    verify_signed(frame, body.certificate.client_key, federation.hash)
    if body.announcement_hash != opened.hash or body.round_id != opened.body.round_id:
        found = f"a release of another round by {client.hex()}"
        raise PeerError("release", found=found, expected=opened.hash.hex())
    randomiser.check(body, opened.body)
    return client


def receipt_of(body: Release) -> Receipt:
    """The trainer's proof to the client that it keeps the release."""
    return Receipt(body.round_id, body.contribution, receipt_tag(body.receipt_key))
