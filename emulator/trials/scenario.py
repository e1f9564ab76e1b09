"""A scenario, as plain data: population, round parameters, network, broker, faults, adversaries and a seed.

It is written by hand in TOML, drawn from a seed (`draw`), or the result of shrinking. It determines the trial byte for
byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dca_proto.aggregate import PublicParameters
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import PURE_MECHANISMS, RANDOMISED_RESPONSE, UNARY_ENCODING
from dca_proto.protocol.params import Timing
from dca_proto.protocol.terms import VerifiableTerms
from dca_proto.protocol.wire.kinds import SECURE_SUM
from dca_proto.wording import JsonObject
from emulator.sim.broker import BrokerLimits
from emulator.sim.link import LinkOptions
from emulator.sim.simulator import START_MS

Changes = dict[str, Any]
"""New values of some fields of a record, by name, as `msgspec.structs.replace` takes them."""
CATEGORICAL = (RANDOMISED_RESPONSE, UNARY_ENCODING)
"""The LDP mechanisms whose reports name categories: the bins of a histogram, two or more."""
CLIENTS_MAX, ROWS_MAX = 10_000, 10_000
PROVEN_MAX = 100
"""The most coordinates of a verified sum: a small one has hundreds of noise numbers for each."""
TIME_MS_MAX = 30 * 24 * 3600 * 1000
EPOCH_MS_MIN = 1_800_000  # the round after healing has long windows
SILENT_MS = 40_000
"""After this time a trainer calls a node silent, in a trial whose network may take longer than the usual time."""


def _columns(dimension: int) -> PublicParameters:
    """Parameters of columns bounded by [-1, 1]."""
    names, ones = [f"x{index}" for index in range(dimension)], [1.0] * dimension
    return {"columns": names, "centre": [0.0] * dimension, "scale": ones, "bound": ones}


def _bins(dimension: int) -> PublicParameters:
    """Parameters of that number of equal bins between -1 and 1."""
    return {"columns": ["x0"], "edges": [-1 + 2 * index / dimension for index in range(dimension + 1)]}


STATISTICS: dict[str, Callable[[int], PublicParameters]] = {
    "sum": _columns, "mean": _columns, "second-moments": _columns, "histogram": _bins,
}  # fmt: skip
"""The statistics that rounds may request, each with a function from dimension to public parameters."""


Clients = Annotated[int, Meta(ge=0, le=CLIENTS_MAX)]
Floor = Annotated[int, Meta(ge=1, le=CLIENTS_MAX)]
Time = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
Window = Annotated[float, Meta(ge=0.001, le=TIME_MS_MAX / 10_000)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the parts of a scenario."""


class Population(_Part, frozen=True, kw_only=True):
    """The federation and its data.

    Attributes:
        clients: N. computes: M. colluding: p, the most Compute nodes that may be corrupt; 0 for all but one.
        statistic: `sum`, `mean`, `second-moments` or `histogram`. dimension: d, its number of coordinates.
        radius: of the ball of rows of `sum` and `mean`; 0 without one.
        rows: number of rows of each client, drawn within the bounds.
    """

    clients: Annotated[int, Meta(ge=3, le=CLIENTS_MAX)] = 6
    computes: Annotated[int, Meta(ge=2, le=64)] = 3
    colluding: Annotated[int, Meta(ge=0, le=63)] = 0
    statistic: str = "sum"
    dimension: Annotated[int, Meta(ge=1, le=100_000)] = 1
    rows: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 1
    radius: Annotated[float, Meta(ge=0, le=100)] = 0.0

    @property
    def parameters(self) -> PublicParameters:
        """The statistic's public parameters."""
        found = STATISTICS[self.statistic](self.dimension)
        return found | {"radius": self.radius} if self.radius else found


class Rounds(VerifiableTerms[int], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rounds that are requested.

    Attributes:
        count: number of rounds. first_ms: time of the first request. every_ms: interval; 0 requests all at once.
        kind: `secure-sum`, `node-release` (needs `rows_max`) or `ldp-report`. The last two use no Compute nodes, and
            ignore T and c.
        clients: the number that the trainer takes for N; 0 is the true N. epsilon, delta: of each round.
        computes: how many Compute nodes, the first ones, each round uses; 0 uses all.
        batch: B, the number of clients that each round invites, drawn anew; 0 invites all. T refers to N and is scaled
            to B.
        counted: the trainer knows N; otherwise it asks the Compute nodes, or waits until `close_by`.
        fraction_bits, rows_max: as in a request. noise: if false, sums are exact and not private.
        mechanism: of an LDP report. A categorical one needs a histogram and `rows_max` = 1. An ε-private one announces
            δ = 0; `delta` then applies to the limits only.
        roll_call: the trainer asks nodes that it has not heard lately before it announces, as one in production does.
        verified: clients of secure sums prove that they are within the bounds (DESIGN §12). A histogram then needs
            `rows_max`.
    """

    count: Annotated[int, Meta(ge=1, le=100)] = 1
    first_ms: Time = 1_000
    every_ms: Time = 0
    kind: str = SECURE_SUM
    clients: Clients = 0
    tolerate: Clients = 1
    computes: Annotated[int, Meta(ge=0, le=64)] = 0
    batch: Clients = 0
    epsilon: Annotated[float, Meta(ge=1e-6, le=20)] = 1.0
    delta: Annotated[float, Meta(ge=1e-12, le=0.5)] = 1e-6
    counted: bool = True
    roll_call: bool = False
    fraction_bits: Annotated[int, Meta(ge=0, le=40)] = 24
    rows_max: Annotated[int, Meta(ge=0, le=ROWS_MAX)] = 0
    noise: bool = True
    mechanism: str = ""
    collect_s: Window = 20.0
    commit_s: Window = 20.0

    @property
    def is_summed(self) -> bool:
        """True if rounds are secure sums, with Compute nodes."""
        return self.kind == SECURE_SUM

    @property
    def announced_delta(self) -> float:
        """The δ that each round announces."""
        return 0.0 if self.mechanism in PURE_MECHANISMS else self.delta

    @property
    def cost(self) -> PrivacyCost:
        """The privacy cost of one round for each participant. Raises `UsageError` for an ε or δ out of range."""
        return PrivacyCost.of(self.epsilon, self.announced_delta)

    @property
    def longest_ms(self) -> int:
        """The longest time from the request of a round to its announced end."""
        return self.collect_ms + 2 * self.commit_ms

    def asked_ms(self, index: int) -> int:
        """Return the time of a request, in ms from the start."""
        return self.first_ms + index * self.every_ms

    @property
    def end_ms(self) -> int:
        """The announced end of the last round, in ms from the start, if it is announced when requested."""
        return self.asked_ms(self.count - 1) + self.longest_ms


def is_verifiable(population: Population, rounds: Rounds) -> bool:
    """Return True if clients can prove that their contributions are within the bounds, in messages of a usual size."""
    fits = {"sum": True, "mean": True, "histogram": rounds.rows_max > 0}.get(population.statistic, False)
    return rounds.is_summed and fits and population.dimension <= PROVEN_MAX


class ActorLimits(_Part, frozen=True, kw_only=True):
    """The policies of clients, the floors of Compute nodes, and the trainer's account.

    Attributes:
        epsilon_per_period_max: budget of each client, at the rounds' δ. account_epsilon: the trainer's account, at the
            same δ; 0 sets none.
        period_days: how long a charge counts, for clients and in the account.
        clients_min, honest_min, colluders_min: the clients' policies: smallest n_min, n_min - 1 - c, and c.
        trusted: how many Compute nodes, the first ones, the policies require in each round; 0 requires none.
        floor_clients_min, floor_honest_min: the Compute nodes' floors for the first two.
    """

    epsilon_per_period_max: Annotated[float, Meta(ge=1e-6, le=1000)] = 40.0
    account_epsilon: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    clients_min: Floor = 1
    honest_min: Floor = 1
    colluders_min: Clients = 0
    trusted: Annotated[int, Meta(ge=0, le=64)] = 0
    period_days: Annotated[float, Meta(ge=0.01, le=366)] = 365.0
    floor_clients_min: Floor = 1
    floor_honest_min: Floor = 1

    def allow(self, n_min: int, colluders: int) -> bool:
        """Return True if all policies and floors allow a secure sum with these n_min and c."""
        clients_min = max(self.clients_min, self.floor_clients_min)
        honest_min = max(self.honest_min, self.floor_honest_min)
        return n_min >= clients_min and n_min - 1 - colluders >= honest_min and colluders >= self.colluders_min


class Fault(_Part, frozen=True, kw_only=True):
    """A fault to inject.

    Attributes:
        kind: a name in `faults.FAULTS`. actor: `client 3`, `compute 0`, `trainer`, `broker`, `clients` or `computes`.
        at_ms: when it strikes, or starts to wait for its moment.
        for_ms: how long it lasts; 0 is until healing, or a default time for kinds that end by themselves.
        phase: if it strikes at a transition, the phase that is entered, such as `frozen`; empty for any.
        amount: its size, if it has one: milliseconds, a probability or a number of messages.
    """

    kind: str
    actor: str
    at_ms: Time = 0
    for_ms: Time = 0
    phase: str = ""
    amount: float = 0.0


class Adversary(_Part, frozen=True, kw_only=True):
    """An actor that breaks the protocol.

    Attributes:
        kind: a name in `hostile.HOSTILE`. actor: `client 3`, `compute 0`, `trainer`, or `stranger 0`, ...
        amount: number of messages or clients, or milliseconds, if the kind has a size.
    """

    kind: str
    actor: str
    amount: int = 0


class Scenario(_Part, frozen=True, kw_only=True):
    """The complete description of a trial.

    Attributes:
        seed: of keys, data, network and faults. name: free text.
        heal_ms: when everything is mended, in ms from the start; 0 waits for the last round's announced end.
        epoch_ms: how long keys last. The related times keep their proportions to the epoch of production, a day.
    """

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    name: str = ""
    heal_ms: Time = 0
    epoch_ms: Annotated[int, Meta(ge=EPOCH_MS_MIN, le=TIME_MS_MAX)] = Timing().epoch_ms
    population: Population = Population()
    rounds: Rounds = Rounds()
    limits: ActorLimits = ActorLimits()
    network: LinkOptions = LinkOptions()
    broker: BrokerLimits = BrokerLimits()
    faults: tuple[Fault, ...] = ()
    adversaries: tuple[Adversary, ...] = ()

    @property
    def has_trusted_nodes(self) -> bool:
        """True if its rounds use p + 1 Compute nodes, and all that the policies require."""
        used = self.rounds.computes or self.population.computes
        colluding = self.population.colluding or self.population.computes - 1
        return max(self.limits.trusted, colluding + 1) <= used or not self.rounds.is_summed

    @property
    def timing(self) -> Timing:
        """The timing of all actors."""
        usual = Timing()
        part = self.epoch_ms / usual.epoch_ms
        lasting = ("epoch_grace_ms", "hello_spread_ms", "abort_grace_ms", "late_ms", "retention_ms")
        scaled = {name: int(part * getattr(usual, name)) for name in lasting}
        scaled["clocks_ms"] = 0  # a node's store begins with the trial, seconds before a backup
        publish_ms = min(usual.epoch_publish_ms, self.epoch_ms // 12)
        if self._is_slow:  # a node that answers is not silent
            scaled["silent_ms"] = SILENT_MS
        return msgspec.structs.replace(usual, epoch_ms=self.epoch_ms, epoch_publish_ms=publish_ms, **scaled)

    @property
    def _is_slow(self) -> bool:
        """True if an answer may take longer than the usual time after which a node is called silent."""
        network = self.network
        narrow = self.broker.inflight_max == 1 or network.bandwidth_bytes_s > 0
        return narrow or network.delay_ms + network.jitter_ms >= 1_000 or network.reorder_ms >= 1_000

    @property
    def start_ms(self) -> int:
        """The start, in Unix ms: a third into an epoch, or such that the epoch ends at the time of an `epoch-turn`."""
        epoch_begins = START_MS // self.epoch_ms * self.epoch_ms
        turns = [fault.at_ms for fault in self.faults if fault.kind == "epoch-turn"]
        return epoch_begins + self.epoch_ms - turns[0] if turns else epoch_begins + self.epoch_ms // 3

    @property
    def healed_ms(self) -> int:
        """The time at which everything is mended, in ms from the start."""
        return self.heal_ms or self.rounds.end_ms


def to_plain(scenario: Scenario) -> JsonObject:
    """Return the scenario as dicts, lists and scalars; the inverse of `from_plain`."""
    plain: JsonObject = msgspec.json.decode(msgspec.json.encode(scenario))
    return plain
