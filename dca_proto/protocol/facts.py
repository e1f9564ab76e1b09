"""Facts that actors report to their owners: for logs, progress bars and results. None holds a secret."""

from __future__ import annotations

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.privacy.cost import PrivacyCost


class _Fact(msgspec.Struct, frozen=True, gc=False):
    """Base of all facts; they print with ids cut to their first digits, and long values as their type."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_brief(value)}" for name, value in msgspec.structs.asdict(self).items())
        return f"{type(self).__name__}({fields})"


def _brief(value: object) -> str:
    match value:
        case bytes():
            return value.hex()[:8]
        case tuple():
            return f"<{len(value)}>"
        case NoisyAggregate():
            return "<NoisyAggregate>"
        case _:
            return repr(value)


class Dropped(_Fact, frozen=True):
    """A message was counted and dropped (invariant 6): a fixed code, who the topic claims sent it, and why."""

    code: str
    sender: bytes
    detail: str


class FederationChanged(_Fact, frozen=True):
    """The actor has stored a newer federation file, and follows it from now on."""

    number: int
    file_hash: bytes


class WaitingForKeys(_Fact, frozen=True):
    """The trainer cannot announce yet: these Compute nodes have published no epoch key that lasts long enough."""

    round_id: bytes
    computes: tuple[bytes, ...]


class Announced(_Fact, frozen=True):
    """The trainer announced a round."""

    round_id: bytes
    statistic: str
    dimension: int


class Declined(_Fact, frozen=True):
    """At the client and at the trainer: a client does not take part, and why."""

    round_id: bytes
    client: bytes
    reason: str
    found: str
    expected: str


class Arrived(_Fact, frozen=True):
    """At the trainer: `count` contributions are kept by their holders, of `expected` (0: nobody knows how many)."""

    round_id: bytes
    count: int
    expected: int


class Closed(_Fact, frozen=True):
    """The trainer waits for no further contribution; `count` are kept.

    `why` is ``all`` that were expected have come, ``full``, ``quiet``, or ``deadline``.
    """

    round_id: bytes
    count: int
    why: str


class Contributed(_Fact, frozen=True):
    """The client charged its budget with `mu` and sent its contribution, its release or its report.

    `pure` is the ε that was charged for a report with δ = 0; its mu is what that ε is within.
    """

    round_id: bytes
    statistic: str
    mu: float
    pure: float = 0.0

    @property
    def price(self) -> PrivacyCost:
        """What it was charged."""
        return PrivacyCost.of_pure(self.pure) if self.pure else PrivacyCost.of_mu(self.mu)


class DataFailed(_Fact, frozen=True):
    """The client's data, or its statistic on some rows, failed with an error of that type (the first), and counted as
    zero."""

    round_id: bytes
    statistic: str
    error: str


class LedgerReused(_Fact, frozen=True):
    """At the client: a Compute node refused its contribution, for the number of its `charge` was used before.

    The ledger looks restored from an old copy, or runs twice: it has forgotten charges up to `highest`. The client
    declines every round until the process starts again.
    """

    round_id: bytes
    compute: bytes
    charge: int
    highest: int


class Acknowledged(_Fact, frozen=True):
    """The client has the receipt of what it sent."""

    round_id: bytes


class Missed(_Fact, frozen=True):
    """The client's contribution reached its holder too late: it is in no sum. Its charge stays, unless all abort."""

    round_id: bytes


class ChargeReturned(_Fact, frozen=True):
    """A client, or the trainer's account, got a charge back against M signed aborts.

    The account of a round without Compute nodes gets it back against the signed declines of all whom it invited.
    """

    round_id: bytes


class SessionKept(_Fact, frozen=True):
    """A Compute node keeps a session of a client; `count` clients have one."""

    client: bytes
    count: int


class ContributionKept(_Fact, frozen=True):
    """A Compute node, as their holder, keeps `count` contributions durably."""

    round_id: bytes
    client: bytes
    count: int


class ListFrozen(_Fact, frozen=True):
    """A Compute node froze its list of `count` contributions."""

    round_id: bytes
    count: int


class Released(_Fact, frozen=True):
    """A Compute node released its one partial sum, over `contributors`."""

    round_id: bytes
    contributors: int
    contributors_hash: bytes


class NodeAborted(_Fact, frozen=True):
    """A Compute node aborted a round for good."""

    round_id: bytes
    compute: bytes
    reason: str
    detail: str


class ReleaseKept(_Fact, frozen=True):
    """The trainer holds a data node's release of so many `rows`, or a client's report (1), durably; `count` so far."""

    round_id: bytes
    client: bytes
    rows: int
    count: int


class RoundCompleted(_Fact, frozen=True):
    """The trainer has the result."""

    round_id: bytes
    aggregate: NoisyAggregate


class RoundFailed(_Fact, frozen=True):
    """The round ended at the trainer without a result; figures are None where they are not known.

    `declined`: all whom it asked have declined, so that it would end alike if it were held again now.
    """

    round_id: bytes
    reason: str
    contributors: int | None
    needed: int | None
    declined: bool = False
