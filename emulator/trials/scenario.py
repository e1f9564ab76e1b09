"""A scenario: population, round parameters, network, broker, faults, adversaries and a seed. Plain data.

It can be written in TOML by hand, drawn from a seed (`draw`), or be what shrinking left over; all read the same.
Nothing in it is random: with its seed it fixes a trial byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import PURE_MECHANISMS, RANDOMISED_RESPONSE, UNARY_ENCODING
from dca_proto.protocol.params import Timing
from emulator.sim.broker import BrokerOptions
from emulator.sim.link import LinkOptions
from emulator.sim.simulator import START_MS

SECURE_SUM, NODE_RELEASE, LDP_REPORT = KINDS = ("secure-sum", "node-release", "ldp-report")
CATEGORICAL = (RANDOMISED_RESPONSE, UNARY_ENCODING)
"""The mechanisms whose reports name categories: a histogram's bins, two or more."""
CLIENTS_MAX, ROWS_MAX = 10_000, 10_000
TIME_MS_MAX = 30 * 24 * 3600 * 1000
EPOCH_MS_MIN = 1_800_000  # the round after healing has long windows


def _columns(dimension: int) -> dict[str, Any]:
    """Each column within [-1, 1]."""
    names, ones = [f"x{index}" for index in range(dimension)], [1.0] * dimension
    return {"columns": names, "centre": [0.0] * dimension, "scale": ones, "bound": ones}


def _bins(dimension: int) -> dict[str, Any]:
    """As many bins between -1 and 1."""
    return {"columns": ["x0"], "edges": [-1 + 2 * index / dimension for index in range(dimension + 1)]}


STATISTICS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sum": _columns, "mean": _columns, "second-moments": _columns, "histogram": _bins,
}  # fmt: skip
"""The statistics that rounds may ask for: public parameters, for a number of coordinates."""


class Between(msgspec.Struct, frozen=True):
    """What a number may be at least and at most (`checks`)."""

    low: float
    high: float


Clients = Annotated[int, Between(0, CLIENTS_MAX)]
Floor = Annotated[int, Between(1, CLIENTS_MAX)]
Time = Annotated[int, Between(0, TIME_MS_MAX)]
Window = Annotated[int, Between(1, TIME_MS_MAX // 10)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a scenario's parts."""


class Population(_Part, frozen=True, kw_only=True):
    """Who there is.

    Attributes:
        clients: N of the federation. computes: M.
        statistic: `sum`, `mean`, `second-moments` or `histogram`. dimension: d, its coordinates.
        rows: each client's, drawn within the bounds.
    """

    clients: Annotated[int, Between(3, CLIENTS_MAX)] = 6
    computes: Annotated[int, Between(2, 64)] = 3
    statistic: str = "sum"
    dimension: Annotated[int, Between(1, 100_000)] = 1
    rows: Annotated[int, Between(1, ROWS_MAX)] = 1


class Rounds(_Part, frozen=True, kw_only=True):
    """What is asked, how often.

    Attributes:
        count: how many rounds. first_ms: when the first is asked for. every_ms: from one to the next; 0 asks for all
            at once.
        kind: `secure-sum`; or `node-release`, which needs `rows_max`; or `ldp-report`. The last two need no Compute
            node, and T and c mean nothing for them.
        tolerated: T. colluders: c. epsilon, delta: of each round.
        batch: B clients are invited, others in each round; 0 asks everybody. T is of N, and B's part of it is used.
        counted: whether the trainer knows N; otherwise it asks the Compute nodes, or waits for the end.
        expected: what it takes for N, where that is another number; 0 is N.
        fraction_bits, rows_max: as in a request. noise: false is the oracle of exactness, which is not private.
        mechanism: of an LDP report. One of categories needs a histogram and `rows_max` = 1. Where it is ε-private, δ is
            0 of the rounds, and `delta` of the limits alone.
        collect_window_ms, commit_window_ms: of each round.
    """

    count: Annotated[int, Between(1, 100)] = 1
    first_ms: Time = 1_000
    every_ms: Time = 0
    kind: str = SECURE_SUM
    tolerated: Clients = 1
    colluders: Clients = 0
    batch: Clients = 0
    epsilon: Annotated[float, Between(1e-6, 20)] = 1.0
    delta: Annotated[float, Between(1e-12, 0.5)] = 1e-6
    counted: bool = True
    expected: Clients = 0
    fraction_bits: Annotated[int, Between(0, 40)] = 24
    rows_max: Annotated[int, Between(0, ROWS_MAX)] = 0
    noise: bool = True
    mechanism: str = ""
    collect_window_ms: Window = 20_000
    commit_window_ms: Window = 20_000

    @property
    def is_summed(self) -> bool:
        """Whether Compute nodes hold what clients send."""
        return self.kind == SECURE_SUM

    @property
    def announced_delta(self) -> float:
        """δ of each announcement."""
        return 0.0 if self.mechanism in PURE_MECHANISMS else self.delta

    @property
    def price(self) -> PrivacyCost:
        """What each round costs whoever takes part. Raises `UsageError` for an ε or δ out of range."""
        return PrivacyCost.of(self.epsilon, self.announced_delta)

    @property
    def longest_ms(self) -> int:
        """From asking for a round to its announced end."""
        return self.collect_window_ms + 2 * self.commit_window_ms

    def asked_ms(self, index: int) -> int:
        """When a round is asked for."""
        return self.first_ms + index * self.every_ms

    @property
    def end_ms(self) -> int:
        """When the last round's announced end is past, if it was announced when it was asked for."""
        return self.asked_ms(self.count - 1) + self.longest_ms


class Limits(_Part, frozen=True, kw_only=True):
    """What clients, Compute nodes and the trainer let through: their policies, floors and account.

    Attributes:
        epsilon_per_period_max: a client's budget, at `delta_max` = the rounds' δ. account_epsilon: the trainer's
            account, at the same δ; 0 sets none.
        clients_min, honest_min, colluders_min: of clients' policies, about n_min, n_min - 1 - c, and c.
            floor_clients_min, floor_honest_min: of Compute nodes.
    """

    epsilon_per_period_max: Annotated[float, Between(1e-6, 1000)] = 40.0
    account_epsilon: Annotated[float, Between(0, 1000)] = 0.0
    clients_min: Floor = 1
    honest_min: Floor = 1
    colluders_min: Clients = 0
    floor_clients_min: Floor = 1
    floor_honest_min: Floor = 1

    def allow(self, fewest: int, colluders: int) -> bool:
        """Whether all policies and floors let a secure sum with that n_min and c through."""
        clients_min = max(self.clients_min, self.floor_clients_min)
        honest_min = max(self.honest_min, self.floor_honest_min)
        return fewest >= clients_min and fewest - 1 - colluders >= honest_min and colluders >= self.colluders_min


class Fault(_Part, frozen=True, kw_only=True):
    """Something that goes wrong.

    Attributes:
        kind: a name of `faults.FAULTS`. actor: `client 3`, `compute 0`, `trainer`, `broker`; or `clients`, `computes`.
        at_ms: when, or from when on it waits for its moment. for_ms: how long; 0 lasts until all is healed.
        phase: of faults that strike at a transition, the phase that is entered, such as `frozen`; empty for any.
        amount: of faults that have a size: milliseconds, a probability, a number of messages.
    """

    kind: str
    actor: str
    at_ms: int = 0
    for_ms: int = 0
    phase: str = ""
    amount: float = 0.0


class Adversary(_Part, frozen=True, kw_only=True):
    """Somebody who does not keep to the protocol.

    Attributes:
        kind: a name of `hostile.HOSTILE`. actor: `client 3` or `compute 0`; strangers are `client` and a number beyond
            the population.
        amount: how many messages, clients or coordinates, where the kind has a size.
    """

    kind: str
    actor: str
    amount: int = 0


class Scenario(_Part, frozen=True, kw_only=True):
    """Everything that a trial is made of.

    Attributes:
        seed: of keys, data, network and faults. name: for people.
        heal_ms: when everything is mended, in ms from the start; 0 waits for the last round's end.
        epoch_ms: how long keys last; all times that go with it are in the proportions of the production's day.
    """

    seed: Annotated[int, Between(0, (1 << 63) - 1)] = 0
    name: str = ""
    heal_ms: Time = 0
    epoch_ms: Annotated[int, Between(EPOCH_MS_MIN, TIME_MS_MAX)] = Timing().epoch_ms
    population: Population = Population()
    rounds: Rounds = Rounds()
    limits: Limits = Limits()
    network: LinkOptions = LinkOptions()
    broker: BrokerOptions = BrokerOptions()
    faults: tuple[Fault, ...] = ()
    adversaries: tuple[Adversary, ...] = ()

    @property
    def timing(self) -> Timing:
        """How long actors wait."""
        usual = Timing()
        part = self.epoch_ms / usual.epoch_ms
        lasting = ("epoch_grace_ms", "hello_spread_ms", "abort_grace_ms", "retention_ms")
        scaled = {name: int(part * getattr(usual, name)) for name in lasting}
        publish_ms = min(usual.epoch_publish_ms, self.epoch_ms // 12)
        return msgspec.structs.replace(usual, epoch_ms=self.epoch_ms, epoch_publish_ms=publish_ms, **scaled)

    @property
    def start_ms(self) -> int:
        """Unix milliseconds at which it begins: an epoch turns where a fault says so, else it is in mid-epoch."""
        epoch_begins = START_MS // self.epoch_ms * self.epoch_ms
        turns = [fault.at_ms for fault in self.faults if fault.kind == "epoch-turn"]
        return epoch_begins + self.epoch_ms - turns[0] if turns else epoch_begins + self.epoch_ms // 3

    @property
    def healed_ms(self) -> int:
        """When everything is mended, in ms from the start."""
        return self.heal_ms or self.rounds.end_ms


def to_plain(scenario: Scenario) -> dict[str, Any]:
    """All of it in tables, lists and scalars; `from_plain` gives the scenario back."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(scenario))
    return plain
