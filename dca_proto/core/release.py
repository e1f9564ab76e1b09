"""A data node's release in a local round: its sum with the whole noise, sealed to the trainer (DESIGN §4.8).

Pure functions that a data node and a trainer both build on, as `upload` has them for shares.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dca_proto.core.codec import verify_signed
from dca_proto.core.errors import PeerError
from dca_proto.core.federation import Federation
from dca_proto.core.fixedpoint import ring_from_bytes, ring_to_bytes
from dca_proto.core.mechanism import Mechanism
from dca_proto.core.messages import Body, Certificate, Receipt, Release, Signed
from dca_proto.core.params import PROTOCOL_VERSION
from dca_proto.core.plan import Plan
from dca_proto.core.round import OpenedAnnouncement, seal_answer
from dca_proto.core.sealing import ID_BYTES, KEY_BYTES, Random
from dca_proto.core.upload import Contribution, add_noise, receipt_tag


def make_release(
    value: NDArray[np.int64],
    rows: int,
    *,
    plan: Plan,
    mechanism: Mechanism,
    opened: OpenedAnnouncement,
    certificate: Certificate,
    sign: Callable[[Body], Signed],
    random: Random,
) -> Contribution:
    """Noise, sign and seal a data node's sum.

    Args:
        value: the clipped, encoded sum over its rows, shape ``(dimension,)``, in grid units. rows: how many they are.
        sign: with the data node's identity.
        random: the operating system's generator; the noise comes from 32 fresh bytes that are not kept.
    """
    noisy = add_noise(value, plan, mechanism, random(KEY_BYTES))
    contribution, key = random(ID_BYTES), random(KEY_BYTES)
    body = Release(
        version=PROTOCOL_VERSION,
        round_id=opened.body.round_id,
        announcement_hash=opened.hash,
        certificate=certificate,
        rows=rows,
        contribution=contribution,
        receipt_key=key,
        vector=ring_to_bytes(noisy),
    )
    return Contribution(contribution, (seal_answer(sign(body), opened, random),), (receipt_tag(key),))


def check_release(
    frame: Signed, body: Release, opened: OpenedAnnouncement, federation: Federation, dimension: int, now_ms: int
) -> bytes:
    """The client's id, if certificate and signature hold and it is a release of this round. Raises `PeerError`.

    Args:
        body: the decoded body of `frame`. dimension: d of the round.
    """
    client = federation.check_certificate(body.certificate, now_ms)
    verify_signed(frame, body.certificate.client_key, federation.hash)
    if body.announcement_hash != opened.hash or body.round_id != opened.body.round_id:
        found = f"a release of another round by {client.hex()}"
        raise PeerError("release", found=found, expected=opened.hash.hex())
    if body.rows > opened.body.rows_max:
        raise PeerError("release", found=f"{body.rows} rows", expected=f"<= {opened.body.rows_max}")
    ring_from_bytes(body.vector, dimension)
    return client


def receipt_of(body: Release) -> Receipt:
    """The trainer's proof to the data node that it keeps the release."""
    return Receipt(body.round_id, body.contribution, receipt_tag(body.receipt_key))
