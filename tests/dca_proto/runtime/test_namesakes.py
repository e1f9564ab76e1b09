"""Two federations of one name share a broker: neither receives a message of the other."""

from __future__ import annotations

import asyncio

import msgspec
from memory_broker import MemoryBroker
from memory_swarm import CLIENTS, COMPUTES, ROWS, WHOLE, Swarm, ask
from virtual_time import run

from dca_proto.protocol.federation import sign_federation
from dca_proto.testing import NoNoise, TestFederation


def demo(keys: str) -> TestFederation:
    """A federation called "demo" with keys of its own."""
    actors = TestFederation(CLIENTS, COMPUTES, rows=ROWS, mechanism=NoNoise(), name=keys)
    actors.federation = sign_federation(actors.authority, msgspec.structs.replace(actors.federation, name="demo"))
    return actors


def test_two_federations_of_one_name_do_not_meet_on_a_broker() -> None:
    broker = MemoryBroker()
    swarms = [Swarm(actors=demo(keys), broker=broker) for keys in ("one", "other")]

    async def total(swarm: Swarm) -> float:
        async with swarm.up(), swarm.trainer() as trainer:
            request = swarm.terms().open(ask(), bytes(16))
            return float((await trainer.run_round(request)).value[0])

    async def story() -> list[float]:
        return await asyncio.gather(*map(total, swarms))

    assert run(story()) == [WHOLE, WHOLE]
    assert [swarm.dropped for swarm in swarms] == [[], []]
    assert swarms[0].actors.federation.name == swarms[1].actors.federation.name
