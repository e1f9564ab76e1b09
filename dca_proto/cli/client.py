"""`dca client` runs a client from its TOML file."""

from __future__ import annotations

from typing import Annotated

import typer

from dca_proto.cli.actor import CONFIG, JsonLogs, Metrics, serve
from dca_proto.cli.options import Config
from dca_proto.protocol.wire.fields import COLLUDING_MAX
from dca_proto.runtime.device import load

EXAMPLES = (
    "Examples:\n\n  dca client client.toml\n"
    "  dca client client.toml --accept-p 1   after the owner lowered p of the federation\n\n"
    "Example of a file:\n\n"
    + CONFIG.format(role="client", extra='  data = "readings.csv"\n')
    + """
  [policy]                           # the client's own limits: examples; each has a safe default
  epsilon_per_round_max = 0.5        # this and the next at delta_max
  epsilon_per_period_max = 4         # of all rounds together, in any period_days
  epsilon_for_reports = 1            # the part kept for reports of delta 0; set it before the first round
  period_days = 365
  rounds_per_period_max = 16384      # rounds in a period, whatever they cost
  delta_max = 1e-6
  clients_min = 100                  # n_min: the fewest contributions of a sum that is released
  honest_min = 50                    # n_min - 1 - c: the honest clients, whose noise must suffice
  colluders_min = 5                  # c, and as a fraction of n_min:
  colluders_part_min = 0.05
  computes_min = 3                   # Compute nodes of a round
  accept_p = 1                       # a file may state this p, though an earlier one stated a larger
  dimension_max = 1000               # numbers in a statistic
  statistics = ["mean", "regression"]
  bounds = { age = [0, 120] }        # the widest bounds accepted for a column
  trainers = ["lab"]
  trusted_computes = ["hospital-a"]  # decline rounds without it
  verified = true                    # decline sums whose contributions are not proven to be within the bounds
  rows_of_many = true                # each row is another person's: also take part in node releases, which protect rows

A client that a program or a timer runs for moments only: sleep_max_s = 3600 in [client], for dca status --check.
Many clients can share a policy: policy = "policy.toml" in [client] names a file of these keys without [policy].
To see what is spent and left: dca ledger client.toml

A device without the command line runs the same file with: python -m dca_proto client.toml
"""
)


_ACCEPT_P = "Accept a federation file that states this p, though an earlier one stated a larger p."


def client(
    config: Config,
    accept_p: Annotated[int, typer.Option(min=0, max=COLLUDING_MAX, help=_ACCEPT_P)] = 0,
    metrics: Metrics = None,
    json_logs: JsonLogs = False,
) -> None:
    """Run a client, which contributes its data to rounds within its own policy, until Ctrl-C."""
    serve(load(config, roles=("client",), accept_p=accept_p, metrics=metrics), json_logs)
