"""A whole round through TLS, passwords and access lists, on mosquitto."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
from harness import Connected, Left, LiveFederation
from patience import PATIENCE_S
from scripted_broker import client_settings

from dca_proto.protocol import facts
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.params import Timing
from dca_proto.runtime.access import Access, BrokerUser
from dca_proto.runtime.broker import BrokerOptions, TlsFiles, launch_broker
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.testing import NoNoise, TestFederation

CLIENTS, COMPUTES = 8, 3


def access_of(actors: TestFederation) -> Access:
    """Everybody with a password of its own."""
    roles = {
        Channel.CLIENT: actors.clients,
        Channel.COMPUTE: actors.computes,
        Channel.TRAINER: (actors.trainer_identity.id,),
    }
    members = [BrokerUser(role, one, f"password of {one.hex()}") for role, ids in roles.items() for one in ids]
    return Access(actors.federation.id, tuple(members))


def settings_of(member: BrokerUser, url: str, ca: Path, directory: Path) -> BrokerSettings:
    file = directory / f"{member.id.hex()}.password"
    file.touch(0o600)
    file.write_text(member.password)
    return client_settings(url=url, ca=ca, username=member.id.hex(), password_file=file)


def test_a_round_where_a_client_with_anothers_identity_gets_nothing_through(
    each_version: str, mosquitto_installed: None, authority: Path, tmp_path: Path
) -> None:
    """Member 0 of the broker plays the last client, whose enrolled identity it has, but not the password: its Hello and
    its contribution go to the broker and no further. Client 1 is away until then; hence, when its contribution counts,
    the other's would have.
    """
    rows = [np.array([[2.0 ** -(index + 1)]]) for index in range(CLIENTS)]
    actors = TestFederation(
        CLIENTS, COMPUTES, rows=rows, name="secured", mechanism=NoNoise(), timing=Timing(resend_first_ms=200)
    )
    access = access_of(actors)
    tls = TlsFiles(authority / "ca.pem", authority / "broker.pem", authority / "broker.key")

    async def scenario() -> None:
        async with launch_broker(tmp_path / "b", BrokerOptions(kind="mosquitto", tls=tls, access=access)) as broker:
            assert broker.url.startswith("mqtts://")
            given = {one.id: settings_of(one, broker.url, authority / "ca.pem", tmp_path) for one in access.members}
            impostors = msgspec.structs.replace(given[actors.clients[0]], version="3.1.1")  # 5 names refusals to it
            given[actors.clients[-1]] = impostors
            live = LiveFederation(actors, tmp_path, given.__getitem__)
            own, late, *_, impostor = live.clients
            live.members.remove(own)
            async with live:
                await late.kill()
                live.trainer.runner.command(actors.request(clients=CLIENTS - 2, tolerate=0))
                await live.until(lambda: live.has(Left(Channel.COMPUTE), impostor))
                await live.start(late)
                await live.until(lambda: live.has(facts.RoundCompleted, live.trainer))
                assert live.has(Connected(), impostor)
                assert live.has(facts.Contributed, impostor)
        kept = [noted.fact for noted in live.facts if isinstance(noted.fact, facts.SessionKept)]
        assert {fact.client for fact in kept} == set(actors.clients[1:-1])
        (completed,) = (noted.fact for noted in live.facts if isinstance(noted.fact, facts.RoundCompleted))
        assert completed.aggregate.value.tolist() == [0.5 - 2.0 ** -(CLIENTS - 1)]
        assert not live.has(facts.Acknowledged, impostor)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
