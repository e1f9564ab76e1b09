"""What the commands that run one actor from its TOML file share."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from dca_proto.cli.output import Terminal
from dca_proto.cli.reporter import Reporter
from dca_proto.runtime.device import Device
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.process import complete

CONFIG = """  [{role}]
  identity = "{role}.key"            # made by `dca keygen`, mode 0600
  federation = "federation.toml"
{extra}  store = "{role}.db"

  [broker]
  url = "mqtts://broker.example"     # also: ca, certificate, key, username, password_file, keepalive_s, ...

  [metrics]                          # optional: figures for Prometheus
  listen = "127.0.0.1:9464"
"""
"""The sections that the files of all actors have."""

JsonLogs = Annotated[bool, typer.Option("--log-json", help="Log JSON lines to stderr in place of sentences.")]


Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics", metavar="HOST:PORT", help="Give figures to Prometheus here, on loopback; as [metrics] in the file."
    ),
]


def configure_command_logs(json_logs: bool) -> None:
    """Log an actor's events as JSON, or only its warnings, since a `Reporter` prints the events as sentences."""
    configure_logs(json=json_logs, level=logging.INFO if json_logs else logging.WARNING)


def serve(actor: Device, json_logs: bool) -> None:
    """Run an actor until Ctrl-C, and print what it does as sentences, or log it as JSON."""
    configure_command_logs(json_logs)
    with Reporter(Terminal(stderr=True), actor.name_of, json_logs=json_logs) as reporter:
        reporter.say(f"{actor.role} {actor.name} ({actor.id.hex()}) of federation {actor.config.federation.name}")
        if actor.data is not None and actor.data.format:
            reporter.say(f"data: {actor.data.format}")
        reporter.waiting("waiting for rounds; Ctrl-C stops")
        complete(actor.run(reporter))
        reporter.say("stopped")
