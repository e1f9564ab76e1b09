"""The eleven invariants of the protocol, each as an observer of a running trial.

base        what all checkers are        witness     what all need, decoded once; pairs     keys, worked out again
releases    1 one partial sum, one release or report of a client; 2 over one set of enough enrolled clients
sums        3 the exact ring sum         budget      4 charges
view        5 independent of the data    inputs      6 hostile input, and secrets in facts
endings     7 every round ends           kills       8 kills lose and double nothing
repetition  9 the same seed, the same run
noise       10 enough noise                completion  11 a round within the promise completes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.budget import Budget
from emulator.trials.checkers.completion import Completion
from emulator.trials.checkers.endings import Endings
from emulator.trials.checkers.inputs import Inputs
from emulator.trials.checkers.kills import Kills
from emulator.trials.checkers.noise import Noise
from emulator.trials.checkers.releases import EnoughContributors, OneRelease
from emulator.trials.checkers.sums import ExactSum
from emulator.trials.checkers.view import Repetition, Transcript, View
from emulator.trials.checkers.witness import Witness

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


def checkers_of(
    world: TrialWorld, *, neighbour: tuple[Transcript, bytes] | None = None, digest: str | None = None
) -> list[Checker]:
    """All eleven for one trial; to be made before anything is asked for. The first looks at draws before they are used.

    Args:
        neighbour: of the run of the same seed on neighbouring data, and the id of whose data they are.
        digest: of another run of the same scenario.
    """
    witness = Witness(world)
    world.simulator.observers.append(witness)  # before those that ask it
    exact_sum = ExactSum(world, witness)
    witness.checkers = [
        Noise(world, witness, exact_sum.recording),
        OneRelease(world, witness),
        EnoughContributors(world, witness),
        exact_sum,
        Budget(world, witness),
        View(world, witness, neighbour),
        Inputs(world, witness),
        Endings(world, witness),
        Kills(world, witness),
        Repetition(world, witness, digest),
        Completion(world, witness),
    ]
    return witness.checkers
