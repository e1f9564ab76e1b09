"""`dca compute` runs a Compute node from its TOML file."""

from __future__ import annotations

from dca_proto.cli.actor import CONFIG, JsonLogs, Metrics, serve
from dca_proto.cli.options import Config
from dca_proto.runtime.device import load

EXAMPLES = (
    "Example:\n\n  dca compute compute.toml\n\nExample of a file:\n\n"
    + CONFIG.format(role="compute", extra="")
    + """
  [floors]                           # the node's own limits
  clients_min = 100
  honest_min = 50
  verified = true                    # abort sums whose contributions are not proven to be within the bounds
"""
)


def compute(config: Config, metrics: Metrics = None, json_logs: JsonLogs = False) -> None:
    """Run a Compute node, which collects contributions and releases a partial sum of them, until Ctrl-C."""
    serve(load(config, roles=("compute",), metrics=metrics), json_logs)
