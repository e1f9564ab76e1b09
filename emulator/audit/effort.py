"""How long an audit takes, roughly, so that one that would not end is refused before it starts.

Measured on one core: 10 to 20 million exact noise draws a second, one for each client, run and coordinate; and about
3 ms for each client of a round that real actors hold.
"""

from __future__ import annotations

from dca_proto.errors import UsageError
from emulator.audit.adversary import survey_runs

RUNS, RUNS_PROTOCOL = (1000, 20_000_000), (100, 100_000)
"""How many runs of each world may be asked for: the ideal functionality's, and the real actors'."""
_HOURS_MAX = 6
_DRAWS_PER_S = 1e7
_ACTOR_S = 3e-3
_CLIENT_S = 1.5e-4


def require_runs(runs: int, protocol: bool) -> None:
    """Refuse a number of runs by itself. Raises `UsageError`."""
    least, most = RUNS_PROTOCOL if protocol else RUNS
    if not least <= runs <= most:
        raise UsageError(f"--runs {runs}: expected {least} to {most}; fewer prove nothing, more do not fit in memory")


def pilot_runs(runs: int, protocol: bool) -> int:
    """How many further runs of each world choose the thresholds."""
    return max(runs // 10, (RUNS_PROTOCOL if protocol else RUNS)[0] // 2)


def require_time(clients: int, size: int, runs: int, protocol: bool) -> None:
    """Refuse an audit of `clients` clients and `size` coordinates that would take more than six hours.

    Raises:
        UsageError: how many runs, or clients, there may be.
    """
    pilot, run_s = pilot_runs(runs, protocol), _ACTOR_S if protocol else size / _DRAWS_PER_S
    held = runs + pilot + survey_runs(size, pilot)
    client_s, limit_s = _CLIENT_S + 2 * held * run_s, _HOURS_MAX * 3600
    hours = clients * client_s / 3600
    if hours <= _HOURS_MAX:
        return
    fewer = int((limit_s / clients - _CLIENT_S) / (2 * run_s) * runs / held)
    least = (RUNS_PROTOCOL if protocol else RUNS)[0]
    advice = f"--runs {_rounded(fewer)} or " if fewer >= least else ""
    raise UsageError(
        f"--runs {runs} of {clients} clients would take about {hours:,.0f} hours; take at most {advice}"
        f"--clients {_rounded(int(limit_s / client_s))} (six hours)"
    )


def _rounded(number: int) -> int:
    """Down to two digits."""
    scale = int(10.0 ** max(0, len(str(number)) - 2))
    return number // scale * scale
