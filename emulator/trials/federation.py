"""Builds the federation of a scenario: keys, data, limits and actors, including hostile and faulty ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import Ask, AskLdpReport, AskNodeRelease, AskSecureSum, OpenRound, tolerated_of
from dca_proto.protocol.wire.messages import Certificate
from dca_proto.statistics import resolve
from dca_proto.testing import NoNoise, TestFederation, seeded
from emulator.sim.streams import Streams
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import LDP_REPORT, NODE_RELEASE, STATISTICS, Scenario

FOREVER_MS = 1 << 52
Stored = Iterable[tuple[str, bytes, bytes]]


class TrialFederation(TestFederation):
    """All actors of a scenario.

    Args:
        scenario: describes them.
        faulty: role -> function from its production class to a faulty one, to show that a checker notices the fault.

    Attributes:
        is_healed: if True, hostile Compute nodes and trainers built from now on keep to the protocol.
        ends_ms: client id -> end of its certificate in Unix milliseconds, if it ends during the trial.
        failing: ids of clients whose data cannot be read. refusing: ids of Compute nodes whose floors no round meets.
        strangers: identities that were never enrolled.
    """

    def __init__(self, scenario: Scenario, faulty: dict[str, Callable[[type], type]]) -> None:
        population, limits, rounds = scenario.population, scenario.limits, scenario.rounds
        self.scenario, self._faulty = scenario, faulty
        self.parameters = STATISTICS[population.statistic](population.dimension)
        self.statistic = resolve(population.statistic, self.parameters)
        self.is_healed = False
        self.failing: set[bytes] = set()
        self.refusing: set[bytes] = set()
        name, columns = f"trial-{scenario.seed}", self.statistic.columns
        strangers = sum(HOSTILE[adversary.kind].is_stranger for adversary in scenario.adversaries)
        self.strangers = [Identity(seeded(f"{name}/stranger{index}")(KEY_BYTES)) for index in range(strangers)]
        self._adversaries = {adversary.actor: adversary for adversary in scenario.adversaries}
        epsilon = limits.account_epsilon
        self.account = BudgetLimit(epsilon=epsilon, delta=rounds.delta) if epsilon else None
        super().__init__(
            population.clients,
            population.computes,
            columns=columns,
            rows=_rows(scenario, len(columns)),
            name=name,
            policy=Policy(
                clients_min=limits.clients_min,
                honest_min=limits.honest_min,
                colluders_min=limits.colluders_min,
                epsilon_per_round_max=max(20.0, rounds.epsilon),
                epsilon_per_period_max=limits.epsilon_per_period_max,
                delta_max=rounds.delta,
                rows_of_many=rounds.kind == NODE_RELEASE,
            ),
            floors=Floors(clients_min=limits.floor_clients_min, honest_min=limits.floor_honest_min),
            mechanism=None if rounds.noise else NoNoise(),
            timing=scenario.timing,
        )
        self.ends_ms = {
            client: scenario.start_ms + fault.at_ms
            for fault in scenario.faults
            for number, client in enumerate(self.clients)
            if fault.kind == "certificate-ends" and fault.actor in ("clients", f"client {number}")
        }

    def client(self, index: int, records: Stored = ()) -> Client:
        """Return client `index`, hostile if the scenario says so."""
        certificate = self.certificate(index, self.ends_ms.get(self.clients[index], FOREVER_MS))
        common = self._common(records, f"client{index}")
        actor_class = self._class_of("client", f"client {index}", Client)
        return self._client(actor_class, self.client_identities[index], certificate, index, common)

    def stranger(self, index: int, amount: int, records: Stored = ()) -> Client:
        """Return a client that was never enrolled; its certificate has a made-up signature."""
        identity, common = self.strangers[index], self._common(records, f"stranger{index}")
        certificate = Certificate(identity.public_key, FOREVER_MS, bytes(64))
        return self._client(HOSTILE["stranger"].configured(amount), identity, certificate, 0, common)

    def _client(
        self, make: type[Client], identity: Identity, certificate: Certificate, index: int, common: Any
    ) -> Client:
        """Return a client of class `make` with the rows of client `index`."""
        rows, policy = functools.partial(self._read_rows, index), self.policy
        return make(identity, certificate, self.federation, columns=self.columns, rows=rows, policy=policy, **common)

    def compute(self, index: int, records: Stored = ()) -> ComputeNode:
        """Return Compute node `index`, hostile if the scenario says so."""
        floors, common = self.floors_of(self.computes[index]), self._common(records, f"compute{index}")
        actor_class = self._class_of("compute", f"compute {index}", ComputeNode)
        return actor_class(self.compute_identities[index], self.federation, floors=floors, **common)  # type: ignore[no-any-return]

    def floors_of(self, compute: bytes) -> Floors:
        """Return the floors of a Compute node for its next start; while it is in `refusing`, no round meets them."""
        unreachable = len(self.clients) + 1
        return Floors(clients_min=unreachable, honest_min=unreachable) if compute in self.refusing else self.floors

    def trainer(self, records: Stored = ()) -> Trainer:
        """Return the trainer with its account, hostile if the scenario says so."""
        common, actor_class = self._common(records, "trainer"), self._class_of("trainer", "trainer", Trainer)
        return actor_class(self.trainer_identity, self.federation, account=self.account, **common)  # type: ignore[no-any-return]

    def request(self, **changes: Any) -> OpenRound:
        """Return the request for a round of the scenario, with any fields changed."""
        population, rounds = self.scenario.population, self.scenario.rounds
        asked: dict[str, Any] = {
            "statistic": population.statistic,
            "parameters": self.parameters,
            "clients_expected": (rounds.expected or population.clients) if rounds.counted else 0,
            "delta": rounds.announced_delta,
            "ask": self.ask_of(rounds.tolerated, rounds.colluders),
        }
        for name in ("epsilon", "fraction_bits", "rows_max", "collect_window_ms", "commit_window_ms"):
            asked[name] = getattr(rounds, name)
        return super().request(**{**asked, **changes})

    def batch(self, number: int) -> OpenRound:
        """Return the request for round `number`, from 0. It invites all clients, or a batch drawn from the seed."""
        population, rounds = self.scenario.population, self.scenario.rounds
        if not rounds.batch:
            return self.request()
        order = Streams(self.scenario.seed)(f"batch/{number}").sample(self.clients, rounds.batch)
        tolerated = tolerated_of(rounds.batch, population.clients, rounds.tolerated, rounds.colluders)
        ask = self.ask_of(max(min(tolerated, rounds.batch - 2), rounds.colluders), rounds.colluders)
        return self.request(invited=tuple(sorted(order)), clients_expected=0, ask=ask)

    def ask_of(self, tolerated: int, colluders: int) -> Ask:
        """Return the terms of a request, of the scenario's kind of rounds."""
        rounds = self.scenario.rounds
        if rounds.kind == NODE_RELEASE:
            return AskNodeRelease()
        if rounds.kind == LDP_REPORT:
            return AskLdpReport(mechanism=rounds.mechanism)
        return AskSecureSum(computes=self.computes, tolerated=tolerated, colluders=colluders)

    def check(self) -> None:
        """Raise `UsageError` if no trainer could announce the scenario's rounds."""
        limits = Limits()
        everybody = self.request(clients_expected=len(self.clients))
        for request in (everybody, self.batch(0)) if self.scenario.rounds.batch else (everybody,):
            request.check(self.federation, self.mechanism, limits, self.timing)
            request.draft(self.mechanism, limits)

    def _read_rows(self, index: int, columns: tuple[str, ...]) -> NDArray[np.float64]:
        if self.clients[index] in self.failing:
            raise OSError("no data")
        return self.rows[index][:, [self.columns.index(column) for column in columns]]

    def _class_of(self, role: str, actor: str, honest: Any) -> Any:
        adversary = self._adversaries.get(actor)
        if adversary is None or (role != "client" and self.is_healed):
            return self._faulty[role](honest) if role in self._faulty else honest
        return HOSTILE[adversary.kind].configured(adversary.amount, clients=tuple(sorted(self.clients)))


def _rows(scenario: Scenario, columns: int) -> list[NDArray[np.float64]]:
    """Draw the data of every client: uniform within [-1, 1], 2 % of the values missing."""
    stream = Streams(scenario.seed)("data")
    generator, tables = np.random.default_rng(stream.getrandbits(64)), []
    for _ in range(scenario.population.clients):
        table = generator.uniform(-1, 1, size=(scenario.population.rows, columns))
        table[generator.random(table.shape) < 0.02] = np.nan
        tables.append(table)
    return tables
