"""Small trials of a claim's rounds under the checker of secrets, for attacks that judge a claim otherwise.

The measurements of `dca audit` show whether noise is large enough, not whether its key is a secret. These
trials add that: production actors, no faults, and a coalition of everybody but the owners of each secret.
"""

from __future__ import annotations

from hashlib import blake2b

from dca_proto.protocol.wire.kinds import NODE_RELEASE, SECURE_SUM
from emulator.claim import Claim
from emulator.trials.checkers import checkers_of
from emulator.trials.checkers.secrecy import Secrecy
from emulator.trials.scenario import Population, Rounds, Scenario
from emulator.trials.trial import run_trial

_CLIENTS_MAX, _COMPUTES = 6, (2, 6)  # more keys of the same kinds show nothing new
_ROUNDS = ((SECURE_SUM, 4), (SECURE_SUM, 200), (NODE_RELEASE, 4))  # masks of both kinds, and receipts of releases
_EPSILONS, _DELTAS = (1e-6, 20.0), (1e-12, 0.5)  # that a scenario takes


def leaked_secrets(claim: Claim, seed: str) -> list[str]:
    """Run small rounds with a claim's terms; return how others learn a secret of its members, a sentence each."""
    leaks = []
    for kind, dimension in _ROUNDS:
        scenario = Scenario(
            seed=int.from_bytes(blake2b(seed.encode()).digest()[:4], "big"),
            population=Population(
                clients=max(3, min(claim.clients, _CLIENTS_MAX)),
                computes=min(max(claim.computes, _COMPUTES[0]), _COMPUTES[1]),
                dimension=dimension,
            ),
            rounds=Rounds(
                kind=kind,
                rows_max=int(kind == NODE_RELEASE),
                tolerate=min(1, claim.tolerate),
                epsilon=min(max(claim.epsilon, _EPSILONS[0]), _EPSILONS[1]),
                delta=min(max(claim.delta, _DELTAS[0]), _DELTAS[1]),
            ),
        )
        broken = run_trial(scenario, checkers=checkers_of).broken.get(Secrecy.number)
        if broken is not None:
            leaks.append(f"a secret is not derived as specified, or others learn it ({broken})")
    return leaks
