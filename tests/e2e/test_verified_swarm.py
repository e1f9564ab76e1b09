"""A verified mean of live clients on mosquitto, some of which lie: all liars are named, and the result is right.

`scripts/check_verified.py` is the same with 1,000 clients, 30 of them liars.
"""

from __future__ import annotations

import asyncio

import pytest

from check_verified import FAR, run


@pytest.mark.long
def test_exactly_the_liars_are_named_and_the_mean_is_that_of_the_honest() -> None:
    """100 clients, 3 liars with different cheats; false alarms: 1.2e-6, that of two numbers beyond five deviations."""
    found = asyncio.run(run(clients=100, liars=3, broker="mosquitto", seed=7))
    assert found.broker.startswith("mosquitto ")
    assert (found.contributors, found.named, found.missed, found.accused) == (97, 3, 0, 0)
    assert abs(found.mean - found.honest_mean) < FAR * found.noise_sd
    assert abs(found.rows_from_truth_sds) < FAR
    assert found.is_right
