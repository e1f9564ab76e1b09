"""The synthetic sum of `dca fleet`: the rounds that its options ask for are possible."""

from __future__ import annotations

import pytest

from emulator.swarm.options import SwarmOptions
from emulator.swarm.synthetic import check


@pytest.mark.parametrize("verified", [False, True])
def test_its_rounds_may_be_verified(verified: bool) -> None:
    check(SwarmOptions(clients=100, tolerate=10, dimension=3, verified=verified))
