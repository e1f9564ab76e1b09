"""The checkers of the protocol's invariants. Each observes a running trial.

base        the log of a run, decoded once for all checkers; the base class of checkers
recording   records the noise that clients draw, and what its key depends on
releases    1 one partial sum, one release or report of a client; 2 over one set of enough enrolled clients; 8 kills
sums        3 the exact ring sum         budget      4 charges
view        5 independent of the data; 9 the same seed, the same run
inputs      6 hostile input, and secrets in facts
endings     7 every round ends; 11 a round within the promise completes
noise       10 enough noise
secrecy     12 secrets stay secret
pace        13 repeats in time and in measure
memory      14 forgets in memory, too
dues        15 acts when it is due
files       16 revocation and federation files
policies    17 policies of clients
clocks      18 epochs, keys and clocks
nodes       19 rounds of the right nodes
"""

from __future__ import annotations

from emulator.trials.checkers.base import Checker, RunLog
from emulator.trials.checkers.budget import BudgetChecker
from emulator.trials.checkers.clocks import Clocks
from emulator.trials.checkers.dues import Dues
from emulator.trials.checkers.endings import Completion, Endings
from emulator.trials.checkers.files import Revocation
from emulator.trials.checkers.inputs import Inputs
from emulator.trials.checkers.memory import MemoryChecker
from emulator.trials.checkers.nodes import Nodes
from emulator.trials.checkers.noise import NoiseChecker
from emulator.trials.checkers.pace import Pace
from emulator.trials.checkers.policies import Policies
from emulator.trials.checkers.releases import EnoughContributors, Kills, OneRelease
from emulator.trials.checkers.secrecy import Secrecy
from emulator.trials.checkers.sums import ExactSum
from emulator.trials.checkers.view import Repetition, Transcript, ViewChecker
from emulator.trials.world import TrialWorld


def checkers_of(
    world: TrialWorld, *, neighbour: tuple[Transcript, bytes] | None = None, digest: str | None = None
) -> list[Checker]:
    """Return all checkers for a trial in which no round has been requested yet.

    Args:
        neighbour: transcript of the same scenario on neighbouring data, and the id of the client whose data differ.
        digest: of another run of the same scenario.
    """
    log = RunLog(world)
    world.simulator.observers.append(log)  # the log observes before the checkers, which read it
    inputs = Inputs(world, log)
    log.checkers = [
        OneRelease(world, log),
        EnoughContributors(world, log),
        ExactSum(world, log),
        BudgetChecker(world, log),
        ViewChecker(world, log, neighbour),
        inputs,
        Endings(world, log),
        Kills(world, log),
        Repetition(world, log, digest),
        NoiseChecker(world, log),
        Completion(world, log),
        Secrecy(world, log, inputs.revealed),
        Pace(world, log),
        MemoryChecker(world, log),
        Dues(world, log),
        Revocation(world, log),
        Policies(world, log),
        Clocks(world, log),
        Nodes(world, log),
    ]
    return log.checkers
