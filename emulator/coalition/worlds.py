"""The claim under attack: a round, the two neighbouring inputs that are hardest to hide, and a coalition.

Client 0 is the victim. In world 0 it has the row x, in world 1 the row x'; all else is the same. Among the rows with
each coordinate at a bound or at zero, x and x' have the statistics that are farthest apart. After the victim come the
coalition's clients that reveal their noise, then those that omit it, then the honest ones, then those that the
coalition's Compute nodes leave out. The last clients send nothing.

Each client that reveals or omits its noise, is left out or sends nothing, reduces the noises unknown to the coalition
by one. The claim needs N - T - 1 unknown noises, and one Compute node that does not collude (PRIVACY.md). A round that
lacks more than T - c clients is aborted.

Encodings, noise variance, thresholds and the ring are those that every participant of the protocol computes from the
announcement (`dca_proto.protocol.validation`), so the attack tests the code that runs. `emulator.reference` computes
the noise that the claim needs, so that a plan with too little noise does not judge itself.

An audit of node releases (`of_release`) tests one data node. The victim is a row of that node. The attacker sees the
release and knows all other rows. The only noise is the node's own.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.protocol.terms import check_ranges
from dca_proto.protocol.wire.kinds import Kind, NodeRelease
from dca_proto.results.figure import about
from dca_proto.statistics.contribution import contribution
from dca_proto.wording import nearest
from emulator import reference
from emulator.claim import VICTIM, Claim, box_of
from emulator.wire import counts_of

STATISTICS = ("sum", "mean", "second-moments", "regression")
COLUMNS_MAX, BOX_COLUMNS_MAX = 6, 4096  # 3^6 candidate rows; of a box, the corners are known to be farthest apart
ROWS = 10  # rows of a data node
_BOXES = ("sum", "mean")
_COUNTS = ("clients", "omitting", "left-out", "computes")
_FLAGS = ("broker", "trainer")
_COALITION = "expected clients=A,omitting=B,left-out=D,computes=K,broker,trainer (any of them)"


class Coalition(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a coalition."""

    clients: Annotated[int, about("How many clients reveal their noise, including the curious one.")] = 0
    omitting: Annotated[int, about("How many clients add no noise.")] = 0
    left_out: Annotated[int, about("How many honest clients the coalition's Compute nodes ignore.")] = 0
    computes: Annotated[int, about("How many Compute nodes belong to it.")] = 0
    broker: Annotated[bool, about("Whether the broker belongs to it.")] = False
    trainer: Annotated[bool, about("Whether the trainer belongs to it.")] = False

    @classmethod
    def parse(cls, text: str) -> Coalition:
        """Parse ``clients=4,computes=2,broker``; members that are not named are absent. Raises `UsageError`."""
        members: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, separator, number = part.partition("=")
            field = name.replace("-", "_")
            if field in members:
                raise UsageError(f"--coalition {text}: {name} is named twice; {_COALITION}")
            members[field] = _member(text, name, number if separator else None)
        if not members:
            raise UsageError(f"--coalition {text!r} names nobody; {_COALITION}, or clients=0 for an onlooker")
        return cls(**members)

    def __str__(self) -> str:
        counts = {name: getattr(self, name.replace("-", "_")) for name in _COUNTS}
        parts = [f"{name}={count}" for name, count in counts.items() if count]
        return ",".join([*parts, *(name for name in _FLAGS if getattr(self, name))]) or "clients=0"


def _member(text: str, name: str, number: str | None) -> int | bool:
    if name not in (*_COUNTS, *_FLAGS):
        raise UsageError(f"--coalition {text}: {name!r} is unknown{nearest(name, (*_COUNTS, *_FLAGS))}; {_COALITION}")
    if name in _FLAGS:
        if number is not None:
            raise UsageError(f"--coalition {text}: there is one {name}, name it without a number; {_COALITION}")
        return True
    if number is None:
        raise UsageError(f"--coalition {text}: {name} needs a number, as in {name}=2; {_COALITION}")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"--coalition {text}: {number!r} is not a number; {_COALITION}")
    return int(number)


class Setting(Claim, frozen=True, kw_only=True):
    """The round that is attacked, and the coalition that attacks it."""

    dropped: Annotated[int, about("How many clients send nothing; whether they collude makes no difference.")] = 0
    statistic: Annotated[str, about("What is summed.")] = "sum"
    columns: Annotated[int, about("Number of columns.")] = 1
    bound: Annotated[float, about("Each column is clamped to ± this bound.")] = 1.0
    rounds: Annotated[int, about("Number of rounds, of equal cost, that the claim covers.")] = 1
    reach: Annotated[float, about("The victim's raw row divided by its bounds; the claim holds for any.")] = 1.0
    is_release: Annotated[bool, about("Whether the claim is about the rows of one data node.")] = False
    coalition: Annotated[Coalition, about("Who attacks.")] = Coalition(clients=4, computes=2, broker=True)

    @property
    def honest(self) -> int:
        """The number of noises that the claim needs: N - T - 1; for a node release, 1."""
        return 1 if self.is_release else counts_of(self.secure_sum).honest

    @property
    def n_min(self) -> int:
        """The fewest contributions that may be released, by DESIGN; the actors decide by code of their own."""
        return counts_of(self.secure_sum).n_min

    @property
    def contributors(self) -> int:
        """|A|: all clients except those that send nothing or are left out."""
        return self.clients - self.dropped - self.coalition.left_out

    @property
    def is_released(self) -> bool:
        """True if the Compute nodes may release: |A| >= n_min."""
        return self.contributors >= self.n_min

    @property
    def has_all_computes(self) -> bool:
        """True if no Compute node is honest."""
        return 0 < self.computes == self.coalition.computes

    @property
    def unknown_noises(self) -> int:
        """The number of noises that hide the victim: 1 if all Compute nodes collude, else one per honest client."""
        coalition = self.coalition
        return 1 if self.has_all_computes else self.contributors - coalition.clients - coalition.omitting

    @property
    def covered(self) -> bool:
        """True if the claim covers this coalition; also for an aborted round, unless all Compute nodes collude."""
        return not self.has_all_computes and (not self.is_released or self.unknown_noises >= self.honest)

    @property
    def parameters(self) -> PublicParameters:
        """The statistic's public parameters."""
        box = box_of(self.columns, self.bound)
        return {**box, "target_square": True} if self.statistic == "regression" else box

    @property
    def kind(self) -> Kind:
        return NodeRelease(clients=self.clients) if self.is_release else super().kind

    def check(self) -> None:
        """Refuse a setting that cannot be attacked. Raises `UsageError` that names the option to change."""
        if not self.is_release:
            self.check_counts(self.dropped)
            self._check_coalition()
        check_ranges(self)
        if self.statistic not in STATISTICS:
            hint, known = nearest(self.statistic, STATISTICS), ", ".join(STATISTICS)
            raise UsageError(f"--statistic {self.statistic!r} is unknown{hint}; known: {known}")
        least, most = 1 + (self.statistic == "regression"), self.columns_max
        if not least <= self.columns <= most:
            raise UsageError(f"--dimension {self.columns}: expected {least} to {most} for {self.statistic}")
        if not (math.isfinite(self.bound) and self.bound > 0):
            raise UsageError(f"--bound {self.bound:g}: expected a finite number above 0")

    @property
    def columns_max(self) -> int:
        return BOX_COLUMNS_MAX if self.statistic in _BOXES else COLUMNS_MAX

    def check_sum(self) -> None:
        """Refuse a setting in which a released sum is not what is attacked; real actors run it. Raises `UsageError`."""
        if self.has_all_computes:
            raise UsageError(
                f"--coalition {self.coalition}: all M = {self.computes} Compute nodes together can unmask a "
                f"contribution, and no claim covers that; take at most M - 1 = {self.computes - 1}, or show what they "
                "recover with --protocol"
            )
        if not self.is_released:
            raise UsageError(
                f"--drop {self.dropped}: a round that loses more than T - c = {self.tolerate - self.colluders} "
                "clients is aborted and releases nothing; lower --drop or raise --tolerate, or see it end with "
                "--protocol"
            )

    def _check_coalition(self) -> None:
        coalition, others = self.coalition, self.clients - 1 - self.dropped
        if coalition.left_out and not coalition.computes:
            raise UsageError(
                f"--coalition {coalition}: only colluding Compute nodes can leave clients out; name computes=K too"
            )
        if coalition.computes > self.computes:
            raise UsageError(
                f"--coalition {coalition}: there are M = {self.computes} Compute nodes; take at most that many, or "
                "raise --computes"
            )
        if coalition.clients + coalition.omitting + coalition.left_out > others:
            raise UsageError(
                f"--coalition {coalition}: without the victim and {self.dropped} clients that drop out, {others} "
                f"clients remain; take at most {others}"
            )


def default_coalition(clients: int, tolerate: int, computes: int, dropped: int) -> Coalition:
    """Return the largest coalition that the claim covers: N - T - 1 noises remain; M - 1 Compute nodes, the broker."""
    covered = max(0, min(tolerate + 1, clients - 1) - dropped)
    return Coalition(clients=covered, computes=max(0, computes - 1), broker=True)


def of_release(setting: Setting) -> Setting:
    """Return the same claim for one data node's release: no other clients, no Compute nodes, no broker."""
    no_one_else = {"tolerate": 0, "colluders": 0, "computes": 0, "dropped": 0, "coalition": Coalition()}
    return msgspec.structs.replace(setting, is_release=True, clients=1, verified=False, **no_one_else)


class Worlds:
    """A planned setting, with its two neighbouring inputs.

    Attributes:
        setting: the operating point. validated: a round, as all participants compute it. request: of the round, with
            the grid of its announcement; that of a verified sum is coarser than the one that was asked for.
        pair: x and x', shape ``(2, columns)``, in units of the data.
        present: the clients that contribute. revealing, omitting: those of the coalition.
        honest: the honest clients in the sum; the victim comes first. left_out, dropped: the others.

    Raises:
        UsageError: the setting cannot be attacked or planned.
    """

    def __init__(self, setting: Setting) -> None:
        setting.check()
        self.setting = setting
        cost = setting.budget.share(1 / setting.rounds)
        asked = setting.request_fields(statistic=setting.statistic, parameters=setting.parameters)
        shared = {"mu": cost.mu, "epsilon": cost.epsilon, "delta": cost.delta}
        request, self.validated = setting.plan(**{**asked, **shared}, rows_max=ROWS if setting.is_release else 0)
        self.request = msgspec.structs.replace(request, fraction_bits=round(-math.log2(self.validated.unit)))
        coalition, last = setting.coalition, setting.clients - setting.dropped
        self.present = range(setting.contributors)
        self.revealing = range(1, 1 + coalition.clients)
        self.omitting = range(self.revealing.stop, self.revealing.stop + coalition.omitting)
        self.left_out = range(last - coalition.left_out, last)
        self.honest = (VICTIM, *range(self.omitting.stop, self.left_out.start))
        self.dropped = range(last, setting.clients)
        self.pair = self._farthest()

    @property
    def size(self) -> int:
        """The number of coordinates that all rounds release."""
        return self.validated.dimension * self.setting.rounds

    @property
    def l2(self) -> float:
        """Δ₂ of the victim's statistic, in the statistic's units.

        The reference does not know that of a regression, so the plan's is taken, and at least the distance of the pair.
        """
        setting = self.setting
        if setting.statistic == "regression":
            zero, one = (self.encode(row[None]) for row in self.pair)
            return max(self.validated.sensitivity_l2, float(np.linalg.norm(zero - one)) * self.validated.unit)
        bound = reference.bound_on_grid(setting.statistic, setting.bound, self.request.fraction_bits)
        return reference.sensitivity(setting.statistic, [bound] * setting.columns)[1]

    @property
    def mean_noise(self) -> float:
        """The mean of one client's noise in grid units, 0 or ½: the whole units of a larger one are taken out."""
        statement = self.validated.statement
        return 0.0 if statement is None else statement.noises * ((1 << statement.noise_bits) - 1) % 2 / 2

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter of the whole claim."""
        return reference.mu_of(self.setting.epsilon, self.setting.delta)

    @property
    def floor(self) -> float:
        """The variance that the claim requires along any line: (Δ/μ)² of a round, in squared units."""
        return self.setting.rounds * (self.l2 / self.mu) ** 2

    @property
    def planned(self) -> float:
        """The variance along any line of the noises that the coalition does not know, by the plan."""
        return self.setting.unknown_noises * self.validated.noise_std**2

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

    def _farthest(self) -> NDArray[np.float64]:
        setting = self.setting
        if setting.statistic in _BOXES:
            return np.outer([1.0, -1.0], np.full(setting.columns, setting.bound))
        corners = itertools.product((1.0, 0.0, -1.0), repeat=setting.columns)
        rows = np.array(list(corners)) * setting.bound
        values = np.array([self.encode(row[None]) for row in rows]) * self.validated.unit
        squares = (values**2).sum(axis=1)
        distances = squares[:, None] + squares[None, :] - 2 * values @ values.T
        return rows[list(np.unravel_index(np.argmax(distances), distances.shape))]
