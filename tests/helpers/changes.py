"""Helpers for tests of revocation and of federation changes: the next file, and its distribution to members."""

from __future__ import annotations

from typing import Any

import msgspec
from round_helpers import results

from dca_proto.crypto.sealing import Identity
from dca_proto.protocol import facts
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.events import Received
from dca_proto.protocol.federation import Federation, sign_federation
from dca_proto.protocol.wire.codec import encode
from dca_proto.testing import Network, TestFederation

NEW_NODE, NEW_TRAINER, THIEF = (Identity(bytes([index]) * 32) for index in (71, 72, 73))


class Withholding(Network):
    """A network whose broker keeps federation files from some members."""

    kept_from: tuple[bytes, ...] = ()

    def _receivers(self, to: Address) -> list[bytes]:
        found = super()._receivers(to)
        return [one for one in found if one not in self.kept_from] if to.channel is Channel.FEDERATION else found


class PlaysOn(Client):
    """A client that takes part although it is revoked."""

    def _consider(self, opened: Any, now_ms: int) -> Any:
        return self._consent._to_terms(opened, self._federation)


def following(actors: TestFederation, file: Federation | None = None, **changes: Any) -> Federation:
    """Return the file after this one, by default after the federation's."""
    file = file or actors.federation
    return sign_federation(actors.authority, msgspec.structs.replace(file, **{"number": file.number + 1, **changes}))


def without(actors: TestFederation, *clients: int) -> Federation:
    """Return the next file, in which some clients are revoked."""
    return following(actors, revoked=tuple(sorted(actors.clients[index] for index in clients)))


def payload_of(file: Federation) -> bytes:
    return encode(file.frame)


def hand(network: Network, member: bytes, file: Federation) -> None:
    """Give a member a file, which it publishes."""
    network.handle(member, Received(bytes(16), payload_of(file)))


def numbers(network: Network) -> set[int]:
    return {actor.federation.number for actor in network.actors.values()}


def codes(network: Network, member: bytes) -> set[str]:
    return {fact.code for fact in network.reported(facts.Dropped, member)}


def last_sum(network: Network) -> float:
    (value,) = results(network)[-1].value
    return float(value)


def hostile(actors: TestFederation) -> Withholding:
    """Return a network whose client 3 takes part even when it is revoked."""
    network = Withholding()
    actors.network(network)
    network.actors[actors.clients[3]].__class__ = PlaysOn
    network.deliver()
    return network
