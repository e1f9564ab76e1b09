"""Differentially private sums on swarms of devices: the Distributed Compute Algorithm over MQTT."""

# General layout
#
#   core/        the protocol as pure state machines; start with core/play.py, then client, compute, trainer
#   privacy/     what a round costs, how much noise it needs, and what each actor allows: ledger, policy, account
#   crypto/      keys, seals, masks, and the ring that masks add up in
#   statistics/  what a client can compute from its rows, by name
#   local/       mechanisms that make each report private by itself, for collecting without Compute nodes
#   learning/    a learning job at a running trainer: retried, recorded, resumed
#   net/         thin shells around the machines: transports, durable store, asyncio runner, broker launcher
#   aggregate.py what a round gives, what a learning job asks; shared with the inference
#   federation.py who belongs to a federation; privacy_loss.py: what releases of several kinds cost together
#   device.py    one actor from a TOML file: `python -m dca_proto CONFIG`; config, keyfile, table and request read
#                files, logs and outcome say what happened, wording what errors have in common
#   cli/         the `dca` command
#   testing.py   helpers for tests of actors, also of yours
#   DESIGN.md    the protocol, numbered; the code cites its sections

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.core.errors import DcaError, PeerError, RoundAborted, TransportError, UsageError

__version__ = "0.1.0"

__all__ = [
    "DcaError",
    "NoisyAggregate",
    "PeerError",
    "RoundAborted",
    "RoundRequest",
    "TransportError",
    "UsageError",
    "__version__",
]
