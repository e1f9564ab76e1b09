"""The claim under audit: a round, the two neighbouring inputs that are hardest to hide, and a coalition.

Client 0 is the victim. In world 0 it has the row x, in world 1 the row x'; all else is the same. Among the rows with
each coordinate at a bound or at zero, x and x' have the statistics that are farthest apart. The clients after the
victim belong to the coalition, the last ones drop out, those between are honest.

Encodings, noise variance, thresholds and the ring are those that every participant of the protocol computes from the
announcement (`dca_proto.protocol.kinds`). So the audit tests the code that runs.

An audit of node releases (`of_release`) tests one data node. The victim is a row of that node. The attacker sees the
release and knows all other rows. The only noise is the node's own.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.trainer.request import Ask, AskNodeRelease
from dca_proto.statistics.contribution import contribution
from dca_proto.wording import nearest
from emulator.claim import VICTIM, Claim, box_of
from emulator.counts import check_clients

STATISTICS = ("sum", "mean", "second-moments", "regression")
COLUMNS_MAX = 6  # 3^6 candidate rows
ROWS = 10  # rows of a data node
_MEMBERS = ("clients", "computes", "broker")
_COALITION = "expected clients=K,computes=J,broker (any of them)"


class Coalition(msgspec.Struct, frozen=True):
    """A coalition: K clients, including the curious one, J Compute nodes, and perhaps the broker."""

    clients: int
    computes: int
    broker: bool = True

    @classmethod
    def parse(cls, text: str) -> Coalition:
        """Parse ``clients=4,computes=2,broker``; members that are not named are absent. Raises `UsageError`."""
        counts: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, separator, number = part.partition("=")
            if name in counts:
                raise UsageError(f"--coalition {text}: {name} is named twice; {_COALITION}")
            counts[name] = _member(text, name, number if separator else None)
        if not counts:
            raise UsageError(f"--coalition {text!r} names nobody; {_COALITION}, or clients=0 for an onlooker")
        return cls(counts.get("clients", 0), counts.get("computes", 0), "broker" in counts)

    def __str__(self) -> str:
        return f"clients={self.clients},computes={self.computes}" + (",broker" if self.broker else "")


def _member(text: str, name: str, number: str | None) -> int:
    if name not in _MEMBERS:
        raise UsageError(f"--coalition {text}: {name!r} is unknown{nearest(name, _MEMBERS)}; {_COALITION}")
    if name == "broker":
        if number is not None:
            raise UsageError(f"--coalition {text}: there is one broker, name it without a number; {_COALITION}")
        return 1
    if number is None:
        raise UsageError(f"--coalition {text}: {name} needs a number, as in {name}=2; {_COALITION}")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"--coalition {text}: {number!r} is not a number; {_COALITION}")
    return int(number)


class OperatingPoint(Claim, frozen=True, kw_only=True):
    """The round that an audit attacks.

    Attributes:
        dropped: how many honest clients drop out.
        statistic, columns, bound: the summed statistic, its number of columns, each clamped to ±bound.
        rounds: the number of rounds, of equal cost, that the claim covers.
        reach: the victim's raw row divided by its bounds (1: at the bound; the claim holds for any).
        is_release: whether the claim is about the rows of one data node; see `of_release`.
    """

    dropped: int = 0
    statistic: str = "sum"
    columns: int = 1
    bound: float = 1.0
    rounds: int = 1
    reach: float = 1.0
    is_release: bool = False


class Setting(OperatingPoint, frozen=True, kw_only=True):
    """The operating point of an audit, and the coalition that attacks there."""

    coalition: Coalition = Coalition(4, 2)

    @property
    def honest(self) -> int:
        """The number of noises that the claim needs: N - T - 1; for a node release, 1."""
        return 1 if self.is_release else super().honest

    @property
    def unknown_noises(self) -> int:
        """The number of noises that the coalition does not know: those of present clients outside of it."""
        return self.clients - self.dropped - self.coalition.clients

    @property
    def covered(self) -> bool:
        """True if the claim covers this coalition."""
        return self.unknown_noises >= self.honest

    @property
    def parameters(self) -> dict[str, Any]:
        """The statistic's public parameters."""
        box = box_of(self.columns, self.bound)
        return {**box, "target_square": True} if self.statistic == "regression" else box

    def ask(self, computes: tuple[bytes, ...]) -> Ask:
        return AskNodeRelease() if self.is_release else super().ask(computes)

    def check(self) -> None:
        """Refuse a setting that cannot be audited. Raises `UsageError` that names the option to change."""
        if not self.is_release:
            self.check_counts(self.dropped)
            self._check_coalition()
        check_clients(self.clients)
        if self.statistic not in STATISTICS:
            hint, known = nearest(self.statistic, STATISTICS), ", ".join(STATISTICS)
            raise UsageError(f"--statistic {self.statistic!r} is unknown{hint}; known: {known}")
        least = 2 if self.statistic == "regression" else 1
        if not least <= self.columns <= COLUMNS_MAX:
            raise UsageError(f"--dimension {self.columns}: expected {least} to {COLUMNS_MAX} for {self.statistic}")
        if not (math.isfinite(self.bound) and self.bound > 0):
            raise UsageError(f"--bound {self.bound:g}: expected a finite number above 0")
        if self.dropped > self.tolerated - self.colluders:
            raise UsageError(
                f"--drop {self.dropped}: a round that loses more than T - c = {self.tolerated - self.colluders} "
                "clients is aborted and releases nothing; lower --drop or raise --tolerate"
            )

    def _check_coalition(self) -> None:
        coalition, others = self.coalition, self.clients - 1 - self.dropped
        if coalition.computes >= self.computes:
            raise UsageError(
                f"--coalition {coalition}: all M = {self.computes} Compute nodes together can unmask a contribution, "
                f"and no claim covers that; take at most M - 1 = {self.computes - 1}"
            )
        if coalition.clients > others:
            raise UsageError(
                f"--coalition {coalition}: without the victim and {self.dropped} clients that drop out, {others} "
                f"clients remain; take at most {others}"
            )


def default_coalition(clients: int, tolerated: int, computes: int, dropped: int) -> Coalition:
    """Return the largest coalition that the claim covers: N - T - 1 noises remain; M - 1 Compute nodes, the broker."""
    return Coalition(max(0, tolerated + 1 - dropped), computes - 1)


def of_release(setting: Setting) -> Setting:
    """Return the same claim for one data node's release: no other clients, no Compute nodes, no broker."""
    no_one_else = {
        "tolerated": 0,
        "colluders": 0,
        "computes": 0,
        "dropped": 0,
        "coalition": Coalition(0, 0, broker=False),
    }
    return msgspec.structs.replace(setting, is_release=True, clients=1, **no_one_else)


class World:
    """A planned setting, with its two neighbouring inputs.

    Attributes:
        setting: the operating point. request: of a round. validated: the round, as all participants compute it.
        pair: x and x', shape ``(2, columns)``, in units of the data: among all rows with coordinates at -bound, 0 or
            bound, the two with the statistics that are farthest apart.

    Raises:
        UsageError: the setting cannot be audited or planned.
    """

    def __init__(self, setting: Setting) -> None:
        setting.check()
        self.setting = setting
        self._budget = Budget(setting.epsilon, setting.delta)
        cost = self._budget.share(1 / setting.rounds)
        asked = setting.request_fields(statistic=setting.statistic, parameters=setting.parameters)
        shared = {"mu": cost.mu, "epsilon": cost.epsilon, "delta": cost.delta}
        self.request, self.validated = setting.plan(**{**asked, **shared}, rows_max=ROWS if setting.is_release else 0)
        corners = itertools.product((1.0, 0.0, -1.0), repeat=setting.columns)
        rows = np.array(list(corners)) * setting.bound
        values = np.array([self.encode(row[None]) for row in rows]) * self.validated.unit
        squares = (values**2).sum(axis=1)
        distances = squares[:, None] + squares[None, :] - 2 * values @ values.T
        self.pair = rows[list(np.unravel_index(np.argmax(distances), distances.shape))]

    @property
    def size(self) -> int:
        """The number of coordinates that all rounds release."""
        return self.validated.dimension * self.setting.rounds

    @property
    def floor(self) -> float:
        """The variance that the claim requires along any line: (Δ/μ)², in squared units."""
        return (self.validated.sensitivity_l2 / self.validated.mu) ** 2

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter of the whole claim."""
        return self._budget.mu

    @property
    def present(self) -> range:
        """Indices of the clients that contribute."""
        return range(self.setting.clients - self.setting.dropped)

    @property
    def coalition(self) -> range:
        """Indices of the clients that work together."""
        return range(1, 1 + self.setting.coalition.clients)

    def row(self, client: int, side: int) -> NDArray[np.float64]:
        """Return a client's raw rows in world `side`, shape ``(1, columns)``, or ``(ROWS, columns)`` for a data node.

        Only the victim's differ between the worlds.
        """
        if client == VICTIM:
            own = self.pair[side : side + 1] * self.setting.reach
            if not self.setting.is_release:
                return own
            levels = np.linspace(-1, 1, ROWS - 1) * self.setting.bound
            return np.vstack([own, np.repeat(levels[:, None], self.setting.columns, axis=1)])
        return np.full((1, self.setting.columns), self.setting.bound * (client / self.setting.clients - 0.5))

    def encode(self, row: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the statistic of rows as the protocol's client computes it, in grid units, shape ``(dimension,)``."""
        return contribution(self.validated.statistic, row, self.request.rows_max, self.request.fraction_bits)
