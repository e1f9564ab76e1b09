"""The federation of a scenario: keys, data and limits, with hostile actors and planted mistakes in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
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
from emulator.trials.hostile import HOSTILE, configured
from emulator.trials.questions import STATISTICS
from emulator.trials.scenario import LDP_REPORT, NODE_RELEASE, Scenario

FOREVER_MS = 1 << 52
Role = Literal["client", "compute", "trainer"]
Stored = Iterable[tuple[str, bytes, bytes]]


class Plant(msgspec.Struct, frozen=True):
    """A mistake planted in all honest actors of a role: `make` turns the production class into a faulty subclass."""

    role: Role
    make: Callable[[Any], Any]


class TrialFederation(TestFederation):
    """All actors of a scenario.

    Args:
        scenario: who they are. plant: a mistake of the actors of one role, to show that a checker sees it.

    Attributes:
        is_redeemed: whether hostile Compute nodes and trainers that are built from now on keep to the protocol.
        ends_ms: client id -> when its certificate ends, Unix milliseconds, where that is soon.
        failing: ids of clients whose data cannot be read. refusing: ids of Compute nodes whose floors no round meets.
        strangers: identities that nobody enrolled.
    """

    def __init__(self, scenario: Scenario, plant: Plant | None = None) -> None:
        population, limits, rounds = scenario.population, scenario.limits, scenario.rounds
        self.scenario = scenario
        self.parameters = STATISTICS[population.statistic](population.dimension)
        self.statistic = resolve(population.statistic, self.parameters)
        self.is_redeemed = False
        self.ends_ms: dict[bytes, int] = {}
        self.failing: set[bytes] = set()
        self.refusing: set[bytes] = set()
        self._plant = plant
        columns = self.statistic.columns
        name = f"trial-{scenario.seed}"
        self.strangers = [
            Identity(seeded(f"{name}/stranger{index}")(KEY_BYTES))
            for index in range(sum(HOSTILE[one.kind].is_stranger for one in scenario.adversaries))
        ]
        self._adversaries = {one.actor: one for one in scenario.adversaries}
        self.account = (
            BudgetLimit(epsilon=limits.account_epsilon, delta=rounds.delta) if limits.account_epsilon else None
        )
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
        for fault in scenario.faults:
            if fault.kind == "certificate-ends":
                named = self.clients if fault.actor == "clients" else (self.clients[int(fault.actor.split(" ")[1])],)
                self.ends_ms.update(dict.fromkeys(named, scenario.start_ms + fault.at_ms))

    def client(self, index: int, records: Stored = ()) -> Client:
        """Client `index`, hostile where the scenario says so."""
        made: Client = self._class_of("client", f"client {index}", Client)(
            self.client_identities[index],
            self.certificate(index, self.ends_ms.get(self.clients[index], FOREVER_MS)),
            self.federation,
            columns=self.columns,
            rows=self._rows_of(index),
            policy=self.policy,
            **self._common(records, f"client{index}"),
        )
        return made

    def compute(self, index: int, records: Stored = ()) -> ComputeNode:
        """Compute node `index`, hostile where the scenario says so."""
        made: ComputeNode = self._class_of("compute", f"compute {index}", ComputeNode)(
            self.compute_identities[index],
            self.federation,
            floors=self.floors_of(self.computes[index]),
            **self._common(records, f"compute{index}"),
        )
        return made

    def floors_of(self, compute: bytes) -> Floors:
        """A Compute node's own limits, as it was started with or will be next."""
        most = len(self.clients) + 1
        return Floors(clients_min=most, honest_min=most) if compute in self.refusing else self.floors

    def trainer(self, records: Stored = ()) -> Trainer:
        """The trainer with its account, hostile where the scenario says so."""
        made: Trainer = self._class_of("trainer", "trainer", Trainer)(
            self.trainer_identity, self.federation, account=self.account, **self._common(records, "trainer")
        )
        return made

    def stranger(self, index: int, amount: int, records: Stored = ()) -> Client:
        """A client whose certificate it made itself."""
        identity = self.strangers[index]
        made: Client = configured(HOSTILE["stranger"], amount)(
            identity,
            Certificate(identity.public_key, FOREVER_MS, bytes(64)),
            self.federation,
            columns=self.columns,
            rows=self._rows_of(0),
            policy=self.policy,
            **self._common(records, f"stranger{index}"),
        )
        return made

    def request(self, **changes: Any) -> OpenRound:
        """A round of the scenario; any field can be changed."""
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
        """Round `number` of the scenario, from 0: of everybody, or of the clients whose turn it is."""
        population, rounds = self.scenario.population, self.scenario.rounds
        if not rounds.batch:
            return self.request()
        order = Streams(self.scenario.seed)(f"batch/{number}").sample(self.clients, rounds.batch)
        tolerated = tolerated_of(rounds.batch, population.clients, rounds.tolerated, rounds.colluders)
        tolerated = min(tolerated, rounds.batch - 2)
        ask = self.ask_of(max(tolerated, rounds.colluders), rounds.colluders)
        return self.request(invited=tuple(sorted(order)), clients_expected=0, ask=ask)

    def ask_of(self, tolerated: int, colluders: int) -> Ask:
        """The kind of the scenario's rounds."""
        rounds = self.scenario.rounds
        if rounds.kind == NODE_RELEASE:
            return AskNodeRelease()
        if rounds.kind == LDP_REPORT:
            return AskLdpReport(mechanism=rounds.mechanism)
        return AskSecureSum(computes=self.computes, tolerated=tolerated, colluders=colluders)

    def check(self) -> None:
        """Raises `UsageError` where the scenario's rounds cannot be held, whatever happens."""
        limits = Limits()
        everybody = self.request(clients_expected=len(self.clients))
        for request in (everybody, self.batch(0)) if self.scenario.rounds.batch else (everybody,):
            request.check(self.federation, self.mechanism, limits, self.timing)
            request.draft(self.mechanism, limits)

    def _rows_of(self, index: int) -> Callable[[tuple[str, ...]], NDArray[np.float64]]:
        def rows(columns: tuple[str, ...]) -> NDArray[np.float64]:
            if self.clients[index] in self.failing:
                raise OSError("no data")
            places = [self.columns.index(column) for column in columns]
            return self.rows[index][:, places]

        return rows

    def _class_of(self, role: Role, actor: str, honest: Any) -> Any:
        adversary = self._adversaries.get(actor)
        if adversary is None or (role != "client" and self.is_redeemed):
            return self._plant.make(honest) if self._plant is not None and self._plant.role == role else honest
        return configured(HOSTILE[adversary.kind], adversary.amount, clients=tuple(sorted(self.clients)))


def _rows(scenario: Scenario, columns: int) -> list[NDArray[np.float64]]:
    """Every client's data, uniform within [-1, 1], a few values missing."""
    stream = Streams(scenario.seed)("data")
    generator = np.random.default_rng(stream.getrandbits(64))
    tables = []
    for _ in range(scenario.population.clients):
        table = generator.uniform(-1, 1, size=(scenario.population.rows, columns))
        table[generator.random(table.shape) < 0.02] = np.nan
        tables.append(table)
    return tables
