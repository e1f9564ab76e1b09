"""A scenario to start from, with a comment on each line, and all kinds of faults and adversaries that there are."""

from __future__ import annotations

from emulator.trials.faults import FAULTS
from emulator.trials.hostile import HOSTILE

_BEGINNING = """\
# A scenario of `dca emulate run`. Everything that is left out has its default; all times are milliseconds.
name = "a node is killed while a client vanishes"
seed = 1                      # of keys, data, network and faults; `--seed` overrides it
heal_ms = 0                   # when everything is mended; 0 waits for the last round's end

[population]
clients = 8                   # N
computes = 3                  # M
statistic = "sum"             # sum, mean, second-moments or histogram
dimension = 2                 # d
rows = 1                      # of each client

[rounds]
count = 2
every_ms = 15000              # from one to the next; 0 asks for all at once
kind = "secure-sum"           # or node-release (each client adds the whole noise for one row; needs rows_max), or
                              # ldp-report (a report of each client); the last two have no Compute nodes
tolerated = 2                 # T
colluders = 0                 # c
epsilon = 1.0                 # of each round
batch = 0                     # B clients are invited to each round; 0 asks everybody
mechanism = ""                # of an ldp-report: analytic-gaussian, grid-laplace, or, for a histogram and
                              # rows_max = 1, randomised-response, unary-encoding
rows_max = 0                  # 0 is the mean of a client's rows, R the sum of at most R
collect_window_ms = 20000
commit_window_ms = 20000

[limits]
epsilon_per_period_max = 40.0 # each client's budget

[network]                     # of every machine, each way to the broker
delay_ms = 20.0
jitter_ms = 10.0
loss = 0.01                   # probabilities
duplicate = 0.02
reorder = 0.05

[broker]
queue_messages_max = 1000     # what waits for a machine, beside inflight_max = 20 on the way to it

[[faults]]
kind = "kill-torn"
actor = "compute 1"           # or client 3, trainer, broker
phase = "frozen"              # strikes when this phase is stored
for_ms = 5000                 # then it starts again; 0 waits until all is mended

[[faults]]
kind = "vanish-sending"
actor = "client 3"

[[adversaries]]
kind = "out-of-range"
actor = "client 5"

"""


def example() -> str:
    """The scenario as TOML."""
    return _BEGINNING + _kinds()


def _kinds() -> str:
    faults = [f"#   {name:<22}{kind.does}{_amount(kind.amount)}" for name, kind in FAULTS.items()]
    adversaries = [f"#   {name:<22}{kind.role}: {kind.does}" for name, kind in HOSTILE.items()]
    return "\n".join(["# Faults (amount, where there is one):", *faults, "#", "# Adversaries:", *adversaries]) + "\n"


def _amount(what: str) -> str:
    return f" (amount: {what})" if what else ""
