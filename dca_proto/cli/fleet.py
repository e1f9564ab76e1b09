"""`dca fleet`: rounds of a synthetic sum, with as many real clients as the machines can run."""

from __future__ import annotations

import logging
from typing import Annotated

from dca_proto.cli import options
from dca_proto.cli.output import keep_earlier, result_console, say
from dca_proto.cli.show import show
from dca_proto.cli.swarm_progress import SwarmProgress, broker_words, who_words
from dca_proto.jobs.forecast import EXACT
from dca_proto.privacy.rounding import claim_words
from dca_proto.protocol.terms import Clients, check_range
from dca_proto.report.run import aborted_lines, missing_lines, synthetic_lines, tables
from dca_proto.results.run import Run
from dca_proto.runtime.files import write_json
from dca_proto.runtime.logs import configure_logs
from dca_proto.runtime.process import TERMINATED, complete
from dca_proto.wording import counted
from emulator.inexact import RoundedGaussian
from emulator.swarm import synthetic
from emulator.swarm.options import SwarmOptions
from emulator.swarm.summary import exit_code, not_private_because

_PROCESSES, _DIMENSION = 2, 10

OUTPUT = Run
EXAMPLES = """Examples:

  dca fleet                                       1000 clients, a sum of ten numbers

  dca fleet --clients 10000 --broker mosquitto --connections shared

  dca fleet --clients 100 --dimension 1000 --rounds 5 --drop 10

  dca fleet --clients 100000 --engine ray://head:10001 --processes 40 --broker mqtt://head:1883
"""


@options.with_options(
    SwarmOptions,
    without=("dropped", "batch", "mechanism", "kind", "reports"),
    shown={
        "clients": str(synthetic.CLIENTS),
        "dimension": str(_DIMENSION),
        "tolerate": "N / 10",
        "processes": str(_PROCESSES),
        "collect_s": "ten times the norm",
        "commit_s": "ten times the norm",
    },
)
def fleet(
    chosen: options.Chosen,
    drop: Annotated[int, options.DROP] = 0,
    fast_noise: options.FastNoise = False,
    json_to: options.Json = None,
) -> int:
    """Run rounds of a synthetic sum, with as many clients as the machines can run, and measure them.

    Exit code 3 if a round was aborted; its measurements are printed before.
    """
    configure_logs(level=logging.WARNING)
    clients = chosen.pop("clients", synthetic.CLIENTS)
    check_range("clients", clients, Clients)
    own = {"dimension": _DIMENSION, "tolerate": clients // 10, "processes": min(_PROCESSES, clients), **chosen}
    swarm = SwarmOptions(clients=clients, dropped=drop, mechanism=RoundedGaussian() if fast_noise else EXACT, **own)
    console = result_console(json_to)
    synthetic.check(swarm)
    say(console, "federation", who_words(swarm))
    reasons = not_private_because((), swarm.mechanism)
    terms = f"not private: {'; '.join(reasons)}" if reasons else f"{claim_words(swarm.epsilon, swarm.delta)} in all"
    numbers = counted(swarm.dimension, "number")
    say(console, "plan", f"{counted(swarm.rounds, 'round')} of a synthetic sum of {numbers}; {terms}")
    with SwarmProgress(console, swarm.clients) as progress:
        run = complete(
            synthetic.hold_rounds(swarm, progress, lambda started: say(console, "broker", broker_words(started)))
        )
    if run is None:
        return TERMINATED
    keep_earlier(console, json_to)
    write_json(run, json_to)
    show(console, tables(run), [*aborted_lines(run), *missing_lines(run), *synthetic_lines(run)])
    return exit_code(run)
