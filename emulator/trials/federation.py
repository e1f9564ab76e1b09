"""Builds the federation of a scenario: keys, data, limits and actors, including hostile and faulty ones."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Required, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.federation import Federation, sign_federation
from dca_proto.protocol.params import Limits, Room
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.protocol.records import Records
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.kinds import KINDS, NODE_RELEASE, Kind, SecureSum, VerifiedSum
from dca_proto.protocol.wire.messages import Certificate
from dca_proto.statistics import resolve
from dca_proto.testing import ActorOptions, NoNoise, TestFederation, seeded
from emulator.sim.streams import Streams
from emulator.trials.hostile import HOSTILE
from emulator.trials.scenario import Scenario

FOREVER_MS = 1 << 52
LITTLE_ROOM = Limits(
    node_open=Room("open rounds", 12),
    node_rounds=Room("rounds", 400),
    client_open=Room("rounds without a receipt", 16),
    client_kept=Room("rounds with a receipt", 8),
)
"""Limits that a few rounds of one trainer reach: it has a quarter of each."""


class RequestTerms(TypedDict, total=False):
    """The kind of a request and, of a secure sum, its Compute nodes, T and c."""

    kind: Required[Kind]
    computes: tuple[bytes, ...]
    tolerate: int
    colluders: int


class ObservedFederation(TestFederation):
    """A federation that notes the random bytes of its actors.

    Attributes:
        drawn: by random stream, such as "client0": all random bytes that its actor has drawn, over all starts.
    """

    def __init__(self, *positional: Any, **more: Any) -> None:
        self.drawn: defaultdict[str, list[bytes]] = defaultdict(list)
        super().__init__(*positional, **more)

    def _common(self, records: Records, actor: str) -> ActorOptions:
        """Common arguments of actors; what their random streams give is noted in `drawn`."""
        common = super()._common(records, actor)
        random, drawn = common["random"], self.drawn[actor]

        def noted(size: int) -> bytes:
            data: bytes = random(size)
            drawn.append(data)
            return data

        return {**common, "random": noted}


class TrialFederation(ObservedFederation):
    """All actors of a scenario.

    Args:
        scenario: describes them.
        faulty: role -> function from its production class to a faulty one, to show that a checker notices the fault.

    Attributes:
        is_healed: if True, hostile Compute nodes and trainers built from now on keep to the protocol.
        ends_ms: client id -> end of its certificate in Unix milliseconds, if it ends during the trial.
        failing: ids of clients whose data cannot be read.
        policies, floors_by: limits of single clients and Compute nodes for their next start.
        files: every federation file that the owner has signed, by its encoded frame, in their order.
        given: id -> the file that the owner gives to an actor at its next start, in place of the first one.
        strangers: identities that were never enrolled.
    """

    def __init__(self, scenario: Scenario, faulty: dict[str, Callable[[type], type]]) -> None:
        population, limits, rounds = scenario.population, scenario.limits, scenario.rounds
        self.scenario, self._faulty = scenario, faulty
        self.parameters = population.parameters
        self.statistic = resolve(population.statistic, self.parameters)
        self.is_healed = False
        self.failing: set[bytes] = set()
        self.policies: dict[bytes, Policy] = {}
        self.floors_by: dict[bytes, Floors] = {}
        self.given: dict[bytes, Federation] = {}
        name, columns = f"trial-{scenario.seed}", self.statistic.columns
        strangers = sum(HOSTILE[adversary.kind].is_stranger for adversary in scenario.adversaries)
        self.strangers = [Identity(seeded(f"{name}/stranger{index}")(KEY_BYTES)) for index in range(strangers)]
        self._adversaries = {adversary.actor: adversary for adversary in scenario.adversaries}
        epsilon = limits.account_epsilon
        account = BudgetLimit(epsilon=epsilon or 1.0, delta=rounds.delta, period_days=limits.period_days)
        self.account = account if epsilon else None
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
                sums_only=rounds.is_summed,
                period_days=limits.period_days,
                trusted_computes=tuple(f"compute-{number}" for number in range(limits.trusted)),
            ),
            floors=Floors(clients_min=limits.floor_clients_min, honest_min=limits.floor_honest_min),
            mechanism=None if rounds.noise else NoNoise(),
            timing=scenario.timing,
            colluding=population.colluding,
        )
        self.files = {encode(self.federation.frame): self.federation}
        self.ends_ms = {
            client: scenario.start_ms + fault.at_ms
            for fault in scenario.faults
            for number, client in enumerate(self.clients)
            if fault.kind == "certificate-ends" and fault.actor in ("clients", f"client {number}")
        }
        self.ends_ms |= {
            self.clients[int(adversary.actor.split()[1])]: scenario.start_ms + rounds.first_ms + rounds.collect_ms // 8
            for adversary in scenario.adversaries
            if adversary.kind == "overstay"
        }

    def renew_certificates(self) -> set[bytes]:
        """Let no certificate end any more, from the next starts on; return the ids of clients whose would have."""
        ending = set(self.ends_ms)
        self.ends_ms.clear()
        return ending

    def _common(self, records: Records, name: str) -> ActorOptions:
        """Return what all actors get; little room for rounds if the trainer opens many."""
        opens_many = any(adversary.kind == "many-rounds" for adversary in self._adversaries.values())
        common = super()._common(records, name)
        return {**common, "limits": LITTLE_ROOM} if opens_many else common

    def client(self, index: int, records: Records = ()) -> Client:
        """Return client `index`, hostile if the scenario says so."""
        certificate = self.certificate(index, self.ends_ms.get(self.clients[index], FOREVER_MS))
        common = self._common(records, f"client{index}")
        actor_class = self._class_of("client", f"client {index}", Client)
        return self._client(actor_class, self.client_identities[index], certificate, index, common)

    def stranger(self, index: int, amount: int, records: Records = ()) -> Client:
        """Return a client that was never enrolled; its certificate has a made-up signature."""
        identity, common = self.strangers[index], self._common(records, f"stranger{index}")
        certificate = Certificate(identity.public_key, FOREVER_MS, bytes(64), b"")
        return self._client(HOSTILE["stranger"].configured(amount), identity, certificate, 0, common)

    def _client(
        self, make: type[Client], identity: Identity, certificate: Certificate, index: int, common: ActorOptions
    ) -> Client:
        """Return a client of class `make` with the rows of client `index`."""
        rows, policy, file = (
            functools.partial(self._read_rows, index),
            self.policy_of(identity.id),
            self._file(identity.id),
        )
        return make(identity, certificate, file, columns=self.columns, rows=rows, policy=policy, **common)

    def policy_of(self, client: bytes) -> Policy:
        """Return the policy of a client: since its last start, as long as no fault changes it without a restart."""
        return self.policies.get(client, self.policy)

    def _file(self, actor: bytes) -> Federation:
        return self.given.get(actor, self.federation)

    @property
    def newest(self) -> Federation:
        """The owner's newest federation file."""
        return max(self.files.values(), key=lambda file: file.number)

    @property
    def revoked(self) -> frozenset[bytes]:
        """The ids that any file of the owner revokes."""
        return frozenset(one for file in self.files.values() for one in file.revoked)

    def sign_file(self, revoked: Iterable[bytes], number: int, colluding: int | None = None) -> Federation:
        """Sign the federation file with this number that revokes these ids, and names all other members.

        It states the p of the newest file, unless `colluding` is given.
        """
        gone, first = frozenset(revoked), self.federation
        computes, trainers = (
            tuple(member for member in members if member.id not in gone) for members in (first.computes, first.trainers)
        )
        stated = self.newest.colluding if colluding is None else colluding
        members = (computes, trainers, number, tuple(sorted(gone)))
        unsigned = Federation(first.name, first.enrolment_key, *members, colluding=stated)
        file = sign_federation(self.authority, unsigned)
        return self.files.setdefault(encode(file.frame), file)

    def revoke(self, *revoked: bytes) -> Federation:
        """Sign a newer file that also revokes these ids."""
        return self.sign_file(self.revoked.union(revoked), self.newest.number + 1)

    def compute(self, index: int, records: Records = ()) -> ComputeNode:
        """Return Compute node `index`, hostile if the scenario says so."""
        floors, common = self.floors_of(self.computes[index]), self._common(records, f"compute{index}")
        actor_class = self._class_of("compute", f"compute {index}", ComputeNode)
        identity = self.compute_identities[index]
        return actor_class(identity, self._file(identity.id), floors=floors, **common)  # type: ignore[no-any-return]

    def floors_of(self, compute: bytes) -> Floors:
        """Return the floors of a Compute node for its next start."""
        return self.floors_by.get(compute, self.floors)

    def trainer(self, records: Records = ()) -> Trainer:
        """Return the trainer with its account, hostile if the scenario says so."""
        common, actor_class = self._common(records, "trainer"), self._class_of("trainer", "trainer", Trainer)
        identity, roll_call = self.trainer_identity, self.scenario.rounds.roll_call
        own = {"account": self.account, "roll_call": roll_call}
        return actor_class(identity, self._file(identity.id), **own, **common)  # type: ignore[no-any-return]

    def request(self, **changes: Any) -> OpenRound:
        """Return the request for a round of the scenario, with any fields changed."""
        population, rounds = self.scenario.population, self.scenario.rounds
        asked: dict[str, Any] = {
            "statistic": population.statistic,
            "parameters": self.parameters,
            "clients": (rounds.clients or population.clients) if rounds.counted else 0,
            "delta": rounds.announced_delta,
            "computes": (),
            **self.terms_of(rounds.tolerate, rounds.colluders),
        }
        return super().request(**{**rounds.shared(OpenRound), **asked, **changes})

    def batch(self, number: int) -> OpenRound:
        """Return the request for round `number`, from 0. It invites all clients, or a batch drawn from the seed."""
        population, rounds = self.scenario.population, self.scenario.rounds
        if not rounds.batch:
            return self.request()
        order = Streams(self.scenario.seed)(f"batch/{number}").sample(self.clients, rounds.batch)
        everybody = msgspec.structs.replace(rounds, clients=population.clients)
        tolerate = everybody.in_batch(rounds.batch).tolerate
        terms = self.terms_of(max(min(tolerate, rounds.batch - 2), rounds.colluders), rounds.colluders)
        return self.request(invited=tuple(sorted(order)), clients=0, **terms)

    def terms_of(self, tolerate: int, colluders: int, computes: Sequence[bytes] = ()) -> RequestTerms:
        """Return the kind of a request, and the Compute nodes if it has any; by default those of the scenario."""
        rounds = self.scenario.rounds
        kind = KINDS[rounds.kind]
        if kind is not SecureSum:
            return {"kind": kind(rounds.mechanism)}
        used = tuple(computes) or self.computes[: rounds.computes or len(self.computes)]
        summed = VerifiedSum() if rounds.verified else kind()
        return {"kind": summed, "computes": used, "tolerate": tolerate, "colluders": colluders}

    def check(self) -> None:
        """Raise `UsageError` if no trainer could announce the scenario's rounds."""
        limits = Limits()
        everybody = self.request(clients=len(self.clients))
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
