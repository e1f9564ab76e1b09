"""How many bytes a client sends for one contribution."""

from __future__ import annotations

import os

import numpy as np
import pytest

from dca_proto.core.messages import Signed
from dca_proto.core.params import Limits
from dca_proto.core.plan import ask, plan_round
from dca_proto.core.shares import SEED, VECTOR
from dca_proto.core.upload import make_contribution
from dca_proto.testing import Cast, NoNoise

EDGES = [float(edge) for edge in range(10_001)]  # d = 10,000


def upload_bytes(encoding: str, computes: int) -> int:
    cast = Cast(3, computes, mechanism=NoNoise())
    request = cast.request(statistic="histogram", parameters={"columns": ["x"], "edges": EDGES}, encoding=encoding)
    epochs = tuple(Signed(b"", bytes(64)) for _ in range(computes))
    announcement = request.announcement(bytes(16), cast.mechanism.name, epochs, bytes(32), 0)
    plan = plan_round(announcement, ask(announcement, cast.mechanism, Limits()), 3, cast.mechanism)
    made = make_contribution(
        np.zeros(plan.dimension, dtype=np.int64),
        plan=plan,
        mechanism=cast.mechanism,
        encoding=encoding,
        round_id=bytes(16),
        session_hash=bytes(32),
        client=cast.clients[0],
        position=0,
        charge=1,
        computes=cast.computes,
        pair_keys=[bytes([index]) * 32 for index in range(computes)],
        random=os.urandom,
    )
    return sum(map(len, made.messages))


@pytest.mark.parametrize("computes", [3, 10])
def test_seeds_upload_little_more_than_one_plain_vector(computes: int) -> None:
    assert upload_bytes(SEED, computes) <= 1.05 * 8 * 10_000


def test_vectors_upload_one_for_each_node() -> None:
    assert 3 <= upload_bytes(VECTOR, 3) / (8 * 10_000) <= 3.01
