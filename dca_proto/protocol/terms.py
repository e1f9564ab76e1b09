"""The public terms of a round or a job: declared, explained and checked once, for every layer that states them.

`Windows` say how long a round may take. `Terms` also have the numbers on which its privacy claim rests. Subclasses are
what people and programs write: the trainer's command (`OpenRound`), the sections `[round]` and `[job]` of its file
(`RoundSettings`, `JobSettings`), a running job (`JobTerms`), a forecast (`JobPlan`), a swarm (`SwarmOptions`), an
attack (`Claim`) and a scenario (`Rounds`). Options of commands, their help and their errors follow from the fields
(`dca_proto.cli.options.with_options`). To add a term, add a field here, and use it where it has an effect.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

from dca_proto.errors import UsageError
from dca_proto.privacy.accounting import CLIENTS_MAX, DELTA
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.fields import COMPUTES_MAX, WindowSeconds
from dca_proto.protocol.wire.kinds import KINDS, LDP_REPORT, Kind, LdpReport, SecureSum, VerifiedSum
from dca_proto.wording import nearest

SLACK_OF_ALL = 2.0**-44
"""The slack that all rounds of a verified job have together: that of a million coordinates."""
WAIT_S_MIN = 15
"""A node is silent after eight seconds, and a request goes on without it after ten (DESIGN §4.1, §4.8)."""
C = TypeVar("C")
T = TypeVar("T", bound="Terms[Any]")
K = TypeVar("K", bound=Kind)

Clients = Annotated[int, Meta(ge=0, le=CLIENTS_MAX, description="N, the number of clients.")]
Tolerate = Annotated[int, Meta(ge=0, le=CLIENTS_MAX, description="T, how many clients may drop out or collude.")]
Colluders = Annotated[int, Meta(ge=0, le=CLIENTS_MAX, description="c, how many of the T are reserved for colluders.")]
Epsilon = Annotated[float, Meta(description="Privacy budget of each participant for all rounds together.")]
Delta = Annotated[float, Meta(description="The budget's delta, far below 1/N.")]
Seconds = Annotated[float, Meta(ge=0.001, le=Timing().deadline_ahead_ms_max / 1000)]
CollectSeconds = Annotated[Seconds, Meta(description="Seconds for clients to contribute.")]
CommitSeconds = Annotated[Seconds, Meta(description="Seconds for Compute nodes to agree.")]
WaitSeconds = Annotated[
    float,
    Meta(
        ge=0,
        le=Timing().deadline_ahead_ms_max / 1000,
        description="Seconds to wait for Compute nodes that do not answer and without which a round cannot go on, 15 "
        "or more; 0: 45, but to the round's end where every round needs all nodes.",
    ),
]
RowsMax = Annotated[int, Meta(description="R: each client sends the sum of at most R rows; 0: the mean of its rows.")]
FractionBits = Annotated[int, Meta(description="f of the grid 2^-f, even.")]
WindowTerm = Annotated[
    WindowSeconds, Meta(description="Only of clients whose rows are of the last so many seconds; 0: of any window.")
]
Verified = Annotated[
    bool,
    Meta(description="Clients prove that their contributions are within the bounds, and public coins make the noise."),
]
ComputeCount = Annotated[int, Meta(description="M, the number of Compute nodes.")]
ComputeNames = Annotated[tuple[str, ...], Meta(description="Names of Compute nodes, A,B,C; by default all.")]
ComputeIds = tuple[bytes, ...]
KindName = Annotated[
    str,
    Meta(description=f"Kind of round: {', '.join(KINDS)}. Only secure-sum needs Compute nodes.", examples=list(KINDS)),
]
MechanismName = Annotated[
    str,
    Meta(description=f"Mechanism of LDP reports: {', '.join(LOCAL_MECHANISMS)}.", examples=list(LOCAL_MECHANISMS)),
]


_OF_SUMS = {*SecureSum.__struct_fields__, "computes"} - {*LdpReport.__struct_fields__}
"""The terms that only secure sums have."""


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """How long a round may take: the terms that a trainer keeps besides the kind of its round.

    By default, a Compute node that is rebooted, and back after at most 90 seconds, still completes its rounds. A round
    ends as soon as it can, so long windows cost nothing while all is well.
    """

    collect_s: CollectSeconds = 120.0
    commit_s: CommitSeconds = 120.0
    wait_s: WaitSeconds = 0.0

    @property
    def collect_ms(self) -> int:
        """How long clients may contribute."""
        return round(1000 * self.collect_s)

    @property
    def commit_ms(self) -> int:
        """How long the Compute nodes may take to agree."""
        return round(1000 * self.commit_s)

    @property
    def wait_ms(self) -> int:
        """How long to wait for Compute nodes that do not answer; 0 if that is not stated."""
        return round(1000 * self.wait_s)

    def check_wait(self, where: str = "") -> None:
        """Raise `UsageError` for a wait that is over before nodes count as silent and are left out."""
        if 0 < self.wait_s < WAIT_S_MIN:
            raise UsageError(f"{where}wait_s is {self.wait_s:g}; give 0, or a number from {WAIT_S_MIN} on")

    def shared(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """Return those of these values for which another record has a field, too, by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name in kind.__struct_fields__}


class Terms(Windows, Generic[C], frozen=True, kw_only=True):
    """The terms of a round, or of all rounds of a job, on which its privacy claim rests, and its windows.

    `computes` are the Compute nodes: their number M, names or ids. Without Compute nodes, T = c = 0.
    """

    clients: Clients
    tolerate: Tolerate = 0
    colluders: Colluders = 0
    computes: C
    epsilon: Epsilon
    delta: Delta

    @property
    def budget(self) -> Budget:
        """(ε, δ) of all rounds together, for each participant."""
        return Budget(self.epsilon, self.delta)

    def fill(self, kind: K) -> K:
        """Return a kind of round with those of these terms that it has."""
        return msgspec.structs.replace(kind, **self.shared(type(kind)))

    @property
    def secure_sum(self) -> SecureSum:
        """A secure sum with these terms."""
        return self.fill(SecureSum())

    @property
    def n_min(self) -> int:
        """The fewest contributions that a released sum has."""
        return self.secure_sum.n_min

    @property
    def honest(self) -> int:
        """The noises that no coalition within the claim knows; together they suffice."""
        return self.secure_sum.honest

    def in_batch(self: T, batch: int) -> T:
        """Return the terms of a mini-batch: the same fraction may drop out, and all c colluders may be in it."""
        tolerate = self.colluders + math.ceil((self.tolerate - self.colluders) * batch / self.clients)
        return msgspec.structs.replace(self, clients=batch, tolerate=tolerate)

    def check_terms(self, where: str = "", *, is_summed: bool = True, needs_n: bool = True, batch: int = 0) -> None:
        """Check all terms. Raises `UsageError`, which begins with `where` and names the term to change.

        Args:
            is_summed: whether rounds are secure sums.
            needs_n: whether N must be stated; otherwise `clients` may be 0.
            batch: the size of the smallest round; 0 if all rounds ask all clients.
        """
        check_ranges(self, where)
        self.check_wait(where)
        if needs_n and not self.clients:
            raise UsageError(f"{where}clients is 0; give their number N, 1 to {CLIENTS_MAX}")
        if not is_summed:
            stated = [name for name in Terms.__struct_fields__ if name in _OF_SUMS]
            if any(getattr(self, name) for name in stated):
                raise UsageError(
                    f"{where}rounds of this kind have no Compute nodes, and each client adds all the noise: leave out "
                    f"{', '.join(stated[:-1])} and {stated[-1]}"
                )
            return
        known = self.computes if isinstance(self.computes, int) else None
        check_sum(self.secure_sum, known, where, needs_n=needs_n)
        if batch and (smallest := self.in_batch(batch)).honest < 1:
            raise UsageError(
                f"{where}a batch of {batch} clients, of which {smallest.tolerate} may drop out, leaves no honest "
                "noise; raise batch or lower tolerate"
            )


class VerifiableTerms(Terms[C], frozen=True, kw_only=True):
    """The terms of rounds that may be verified sums (DESIGN §12)."""

    verified: Verified = False

    @property
    def budget(self) -> Budget:
        """(ε, δ) of all rounds together, with room for the slack of verified sums of a million coordinates."""
        return Budget(self.epsilon, self.delta, SLACK_OF_ALL * self.verified)

    def fill(self, kind: K) -> K:
        filled = super().fill(kind)
        if not self.verified or not isinstance(filled, SecureSum):
            return filled
        given = {name: getattr(filled, name) for name in filled.__struct_fields__}
        return cast("K", VerifiedSum(**given))

    def check_terms(self, where: str = "", *, is_summed: bool = True, needs_n: bool = True, batch: int = 0) -> None:
        super().check_terms(where, is_summed=is_summed, needs_n=needs_n, batch=batch)
        if self.verified and not is_summed:
            raise UsageError(f"{where}rounds of this kind cannot be verified, only secure sums; leave out verified")


class CountedTerms(VerifiableTerms[ComputeCount], frozen=True, kw_only=True):
    """The terms of rounds that no federation runs, so that their Compute nodes have a number and no names."""

    computes: ComputeCount = 3
    epsilon: Epsilon = 1.0
    delta: Delta = DELTA


class LiveTerms(VerifiableTerms[C], frozen=True, kw_only=True):
    """The terms of rounds over live clients, whose sources may have windows; a client with another window declines."""

    window_s: WindowTerm = 0


def check_sum(kind: SecureSum, computes: int | None, where: str = "", *, needs_n: bool = True) -> None:
    """Check N, T and c of a secure sum, and M if `computes` states it. Raises `UsageError`.

    Without `needs_n`, N may be 0: it is not known yet.
    """
    n, t, c = kind.clients, kind.tolerate, kind.colluders
    if computes is not None and not 2 <= computes <= COMPUTES_MAX:
        raise UsageError(f"{where}M = {computes} Compute nodes; use 2 to {COMPUTES_MAX} computes")
    if c > t:
        raise UsageError(f"{where}c = {c} colluders exceed T = {t}; lower colluders to {t}, or raise tolerate to {c}")
    if kind.honest < 1 and (n or needs_n):
        lower = f"lower tolerate to at most {n - 2}, or find" if n > 1 else "find"
        raise UsageError(
            f"{where}N - T - 1 = {n} - {t} - 1 is below 1: no honest noise would be left; {lower} at least {t + 2} "
            "clients"
        )


def check_kind(name: str) -> type[Kind]:
    """Return the kind with this name. Raises `UsageError` for an unknown one."""
    if name not in KINDS:
        raise UsageError(f"kind {name!r} is unknown{nearest(name, KINDS)}; use one of {', '.join(KINDS)}")
    return KINDS[name]


def kind_of(name: str, mechanism: str = "") -> Kind:
    """Return the kind of this name with a mechanism, which only reports have. Raises `UsageError`."""
    kind = check_kind(name)(mechanism)
    is_report = isinstance(kind, LdpReport)
    if mechanism and not is_report:
        raise UsageError(f'mechanism {mechanism!r} needs kind = "{LDP_REPORT}"; give that, or leave it out')
    if is_report and mechanism not in LOCAL_MECHANISMS:
        hint = nearest(mechanism, LOCAL_MECHANISMS)
        raise UsageError(f"mechanism {mechanism!r} makes no reports{hint}; use one of {', '.join(LOCAL_MECHANISMS)}")
    return kind


@lru_cache  # without it, msgspec reads a class's annotations at each round
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def check_ranges(record: msgspec.Struct, where: str = "") -> None:
    """Raise `UsageError` for the first number that is outside the range which its field declares."""
    for field in _fields(type(record)):
        check_range(field.name, getattr(record, field.name), field.type, where)


def check_range(name: str, value: object, declared: Any, where: str = "") -> None:
    """Raise `UsageError` if a value is a number outside the range of its declared type."""
    least = [meta.ge for meta in _metas(declared) if meta.ge is not None]
    most = [meta.le for meta in _metas(declared) if meta.le is not None]
    if not isinstance(value, int | float) or not least:
        return
    low, high = least[0], most[0] if most else math.inf  # a record may state one of them anew
    if not low <= value <= high:
        whole = f"{value}" if abs(value) < 1 << 64 else "beyond 64 bits"
        found = f"{value:g}" if isinstance(value, float) else whole
        raise UsageError(f"{where}{name} is {found}; give a number from {low:.15g} to {high:.15g}")


def description_of(declared: Any) -> str:
    """Return the help text of a field of a record."""
    return next((meta.description for meta in _metas(declared) if meta.description), "")


def examples_of(declared: Any) -> list[str]:
    """Return the values that a field of a record can have, if its declaration lists them."""
    return next((meta.examples for meta in _metas(declared) if meta.examples), [])


def _metas(declared: Any) -> list[Meta]:
    return [meta for meta in getattr(declared, "__metadata__", ()) if isinstance(meta, Meta)][::-1]
