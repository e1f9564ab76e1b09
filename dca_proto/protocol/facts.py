"""Facts that actors report to their owners, for logs, progress bars and results. None contains a secret."""

from __future__ import annotations

import msgspec

from dca_proto.aggregate import NoisyAggregate
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.quorum import NO_NODES, Quorum


class _Fact(msgspec.Struct, frozen=True, gc=False):
    """Base of all facts. Their `repr` shortens ids, and shows a tuple by its length and an aggregate by its type."""

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
    """A message was dropped and counted under `code`. `sender` is claimed by its topic; `detail` explains the error."""

    code: str
    sender: bytes
    detail: str


class FederationChanged(_Fact, frozen=True):
    """The actor has stored a newer federation file, and follows it now. It revokes the `revoked` for the first time."""

    number: int
    file_hash: bytes
    revoked: tuple[bytes, ...] = ()


class WaitingForKeys(_Fact, frozen=True):
    """The trainer cannot announce the round yet: these Compute nodes have not answered its question in time."""

    round_id: bytes
    computes: tuple[bytes, ...]


class NodesSilent(_Fact, frozen=True):
    """At the trainer: it has not heard some Compute nodes, or others wait for them.

    Attributes:
        round_id: of the round.
        computes: the silent nodes.
        waited_ms: for how long.
        others: the nodes with which the trainer goes on.
        spare: how many more nodes may be lost; negative if the others are too few to go on.
        until_ms: until when the trainer waits for the silent nodes, in Unix milliseconds; 0 if it goes on without them.
        is_charged: True if clients have paid for the round. Then only the silent nodes can return or use that.
        is_released: True if other nodes have sent their parts of the sum. Then there is no result without the rest.
    """

    round_id: bytes
    computes: tuple[bytes, ...]
    waited_ms: int
    others: tuple[bytes, ...]
    spare: int
    until_ms: int = 0
    is_charged: bool = True
    is_released: bool = False


class Announced(_Fact, frozen=True):
    """The trainer announced a round over these Compute nodes, of which at most `p` may be corrupt; 0 without nodes.

    It goes on `without` those of the request that did not answer.
    """

    round_id: bytes
    statistic: str
    dimension: int
    computes: tuple[bytes, ...] = ()
    p: int = 0
    without: tuple[bytes, ...] = ()


class Declined(_Fact, frozen=True):
    """A client declined a round, with the reason. The client and the trainer report it."""

    round_id: bytes
    client: bytes
    reason: str
    found: str
    expected: str


class Arrived(_Fact, frozen=True):
    """At the trainer: the holders keep `count` contributions of `expected` (0 if unknown)."""

    round_id: bytes
    count: int
    expected: int


class Closed(_Fact, frozen=True):
    """The trainer closed a round: it waits for no further contribution, and the holders keep `count`.

    `why` is ``all`` (all expected contributions arrived), ``full``, ``quiet`` or ``deadline``.
    """

    round_id: bytes
    count: int
    why: str


class Contributed(_Fact, frozen=True):
    """The client charged its budget with `mu` and sent its contribution, its release or its report.

    `pure` is the ε of a report with δ = 0, for which `mu` is the smallest μ that this ε implies; otherwise 0. `slack`
    is that of a verified sum.
    """

    round_id: bytes
    statistic: str
    mu: float
    pure: float = 0.0
    slack: float = 0.0

    @property
    def cost(self) -> PrivacyCost:
        """The privacy cost that was charged."""
        return PrivacyCost.of_pure(self.pure) if self.pure else PrivacyCost.of_mu(self.mu, self.slack)


class DataFailed(_Fact, frozen=True):
    """Reading the client's data failed, or its statistic failed on some rows; what failed counts as zero.

    `error` is the type of the first error.
    """

    round_id: bytes
    statistic: str
    error: str


class LedgerRestored(_Fact, frozen=True):
    """At a restored client: all Compute nodes have answered, and it has booked so many `forgotten` charges.

    `epsilon_left` is what its policy still allows.
    """

    forgotten: int
    epsilon_left: float


class LedgerReused(_Fact, frozen=True):
    """At the client: a Compute node refused its contribution because its `charge` number was used before.

    The ledger seems to be restored from an old copy, or two copies are running. The node reports that it has seen
    charges up to `highest`. The client declines every round until its process restarts.
    """

    round_id: bytes
    compute: bytes
    charge: int
    highest: int


class Acknowledged(_Fact, frozen=True):
    """The client received the receipt for its contribution, release or report."""

    round_id: bytes


class Missed(_Fact, frozen=True):
    """The client's contribution reached its holder too late to count. Its charge stays, unless p + 1 nodes abort."""

    round_id: bytes


class ChargeReturned(_Fact, frozen=True):
    """A client or the trainer's account got a round's charge back, against p + 1 signed aborts.

    In a round without Compute nodes, the trainer's account gets it back against signed declines of all invited clients
    or, in a round open to all clients, of as many as expected.
    """

    round_id: bytes


class SessionKept(_Fact, frozen=True):
    """A Compute node stored a client's session; `count` clients have one."""

    client: bytes
    count: int


class ContributionKept(_Fact, frozen=True):
    """A Compute node stored a client's contribution; it now keeps `count` as their holder."""

    round_id: bytes
    client: bytes
    count: int


class ListFrozen(_Fact, frozen=True):
    """A Compute node froze its list of `count` contributions."""

    round_id: bytes
    count: int


class Absent(_Fact, frozen=True):
    """These clients neither contributed nor declined.

    A Compute node reports those with a session that it holds, when it freezes its list. The trainer reports those that
    it invited, with the result.
    """

    round_id: bytes
    clients: tuple[bytes, ...]


class Released(_Fact, frozen=True):
    """A Compute node released its one partial sum, over `contributors`, without the `unproven` clients."""

    round_id: bytes
    contributors: int
    contributors_hash: bytes
    unproven: tuple[bytes, ...] = ()


class NodeAborted(_Fact, frozen=True):
    """A Compute node aborted a round for good. `unproven`: whose proofs failed, in a verified sum of too few."""

    round_id: bytes
    compute: bytes
    reason: str
    detail: str
    unproven: tuple[bytes, ...] = ()


class ReleaseKept(_Fact, frozen=True):
    """The trainer stored a data node's release over `rows` rows, or a client's report (1 row); it now keeps `count`."""

    round_id: bytes
    client: bytes
    rows: int
    count: int


class RoundCompleted(_Fact, frozen=True):
    """The trainer has the result."""

    round_id: bytes
    aggregate: NoisyAggregate


class RoundFailed(_Fact, frozen=True):
    """The round ended at the trainer without a result; unknown figures are None.

    `declined`: all invited or expected clients declined, or so many for lasting reasons that too few are left, of those
    expected or, once more have answered, of n_max; a repetition now would fail as well. `refused`: a Compute node
    refused the round's terms, and would refuse them again. `implausible`: no honest clients can have made the sum.
    `repeatable`: the round was cancelled because Compute nodes were silent, and its charge came back. It may be
    repeated without them. `lost` are the names of these nodes. `quorum`: all nodes of the round, and those that it
    lost. `unproven`: how many proofs failed in a verified sum of too few, as a node says. `hopeless`: the round was
    open to all, and the clients expected are too few without these, so a repetition now would fail as well.
    """

    round_id: bytes
    reason: str
    contributors: int | None
    needed: int | None
    declined: bool = False
    refused: bool = False
    implausible: bool = False
    repeatable: bool = False
    lost: tuple[str, ...] = ()
    quorum: Quorum = NO_NODES
    unproven: int = 0
    hopeless: bool = False
