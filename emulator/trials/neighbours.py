"""A second federation on the same broker: it has the same name, so all topics collide, and the same members' keys.

Only its enrolment key differs, and with it the federation's id, to which every signature is bound. It plays the newest
round under the same round id, and all its messages reach the actors of the trial. They must change nothing.
"""

from __future__ import annotations

import msgspec

from dca_proto.crypto.sealing import Identity
from dca_proto.protocol.federation import Federation, sign_federation
from dca_proto.testing import Envelope, Network
from emulator.sim.lane import Packet
from emulator.trials.fault import END, Injection, Steps
from emulator.trials.federation import TrialFederation

_SPREAD_MS, _ROUND_MS = 4_000, 5_000


class _Neighbour(TrialFederation):
    """The second federation: other random bytes, and another enrolment key."""

    def __init__(self, injection: Injection) -> None:
        super().__init__(msgspec.structs.replace(injection.world.scenario, adversaries=(), faults=()), {})
        self._name += "-neighbour"
        self.authority = Identity(injection.stream.randbytes(32))
        first = self.federation
        # a file of our number with another hash is refused before any signature
        number = injection.stream.choice([1, 2])
        unsigned = Federation(first.name, self.authority.public_key, first.computes, first.trainers, number)
        self.federation = sign_federation(self.authority, unsigned)


def _messages(injection: Injection) -> list[Envelope]:
    """Return all messages of the second federation, from its start to the end of the newest round."""
    other, asked = _Neighbour(injection), injection.world.rounds
    network = other.network(Network(now_ms=injection.simulator.now_ms))
    network.command(other.trainer_identity.id, asked[-1].request if asked else other.request())
    network.advance(injection.simulator.now_ms + _ROUND_MS)
    return network.sent


def neighbour(injection: Injection) -> Steps:
    """Deliver messages of the second federation, each kind and sender equally often."""
    messages = _messages(injection)

    def send(message: Envelope) -> None:
        injection.world.router.inject_message(Packet(message.sender, message.to, message.round_id, message.payload))
        injection.reached(injection.world.trainer)

    for message in injection.stream.sample(messages, min(len(messages), int(injection.amount) or len(messages))):
        injection.simulator.after(injection.stream.randrange(_SPREAD_MS), send, message)
    injection.stop_after(_SPREAD_MS)
    yield END
