"""Differentially private sums on swarms of devices: the Distributed Compute Algorithm over MQTT.

A program that embeds an actor imports every name it needs from this module. Each loads on first use.
"""

# Layout, lowest layer first. Each package imports only those listed above it.
#
#   errors.py    the kinds of failure; wording.py: helpers for their texts
#   aggregate.py the result of a round and a learning job's requests; shared with `inference`
#   crypto/      encryption and signatures, masks, and the ring in which masks cancel
#   statistics/  the statistics that a client can compute from its rows, by name
#   privacy/     the cost of a release and the noise it needs; local/: mechanisms of LDP reports
#   protocol/    the protocol as pure state machines; start with protocol/play.py, then client/, compute/, trainer/
#   results/     the records of rounds and runs, from whose fields JSON schemas, tables and pages follow
#   engine/      runs pure work in processes of this machine, or on a Ray cluster
#   runtime/     shells around the state machines: files, transports, durable store, asyncio runner, broker launcher
#   jobs/        runs a learning job at a trainer: retries, records and resumes its rounds
#   report/      shows results: tables, charts and pages
#   cli/         the `dca` command
#
#   testing.py   helpers for tests of actors, including your own
#   statistic_check.py  checks of a statistic, including your own
#   DESIGN.md    the protocol, numbered; the code cites its sections
#   PRIVACY.md   the guarantees and their proofs

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dca_proto.aggregate import NoisyAggregate, RoundRequest
    from dca_proto.errors import DcaError, PeerError, RoundAborted, TransportError, UsageError
    from dca_proto.jobs.job import JobTerms
    from dca_proto.jobs.sync import TrainerRounds
    from dca_proto.privacy.budget import Budget
    from dca_proto.protocol.client.actor import Client
    from dca_proto.protocol.compute.actor import ComputeNode
    from dca_proto.protocol.federation import Federation
    from dca_proto.protocol.policy import Floors, Policy
    from dca_proto.protocol.trainer.actor import Trainer
    from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum
    from dca_proto.results.round import estimates
    from dca_proto.runtime import device
    from dca_proto.runtime.request import RoundSettings, open_round
    from dca_proto.runtime.table import Table
    from dca_proto.statistics import ModelGradient
    from dca_proto.statistics.base import Statistic, register
    from dca_proto.statistics.sensitivity import Sensitivity

__version__ = "0.1.0"

_MODULES = {
    "aggregate": "NoisyAggregate RoundRequest",
    "errors": "DcaError PeerError RoundAborted TransportError UsageError",
    "jobs.job": "JobTerms",
    "jobs.sync": "TrainerRounds",
    "privacy.budget": "Budget",
    "protocol.client.actor": "Client",
    "protocol.compute.actor": "ComputeNode",
    "protocol.federation": "Federation",
    "protocol.policy": "Floors Policy",
    "protocol.trainer.actor": "Trainer",
    "protocol.wire.kinds": "LdpReport NodeRelease SecureSum",
    "runtime": "device",
    "results.round": "estimates",
    "runtime.request": "RoundSettings open_round",
    "runtime.table": "Table",
    "statistics": "ModelGradient",
    "statistics.base": "Statistic register",
    "statistics.sensitivity": "Sensitivity",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Budget",
    "Client",
    "ComputeNode",
    "DcaError",
    "Federation",
    "Floors",
    "JobTerms",
    "LdpReport",
    "ModelGradient",
    "NodeRelease",
    "NoisyAggregate",
    "PeerError",
    "Policy",
    "RoundAborted",
    "RoundRequest",
    "RoundSettings",
    "SecureSum",
    "Sensitivity",
    "Statistic",
    "Table",
    "Trainer",
    "TrainerRounds",
    "TransportError",
    "UsageError",
    "__version__",
    "device",
    "estimates",
    "open_round",
    "register",
]


def version_line() -> str:
    """Return the versions of the package and of the protocol, as `--version` prints them."""
    from dca_proto.protocol.params import PROTOCOL_VERSION  # imported late, so that --help is fast

    return f"dca {__version__}, protocol {PROTOCOL_VERSION}"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES[name]}"
    return import_module(f"{home}.{name}") if name == "device" else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
