"""The kinds of rounds: the fields that each adds to a round's terms.

| kind | noise | receiver of the clients' messages | protected data |
| --- | --- | --- | --- |
| `SecureSum` | each client adds a share | Compute nodes, masked | all data of one client |
| `VerifiedSum` | the same, and proves it | the same | the same |
| `NodeRelease` | each data node adds all of it | the trainer | one row |
| `LdpReport` | each client adds all of it | the trainer | all data of one client |

A kind is one record. A job's request names it, the trainer's command fills it in, the announcement carries it, and
every participant validates it. The tag is its name on the wire, in files and in options. These are fields only:
`protocol.validation` has each kind's cost, sensitivity and noise, `Policy.refusals_of_kind` its consent, and
`protocol.release` what its clients send and how the trainer merges it. mypy names every `match` that lacks a new kind.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

from msgspec import Meta

from dca_proto.protocol.wire.fields import NAME_CHARS_MAX, Count, Wire


class _Kind(Wire, frozen=True, array_like=True):
    """The fields of all kinds.

    Attributes:
        is_summed: True if Compute nodes add up the clients' messages.
        is_verified: True if clients prove that their contributions are within the statistic's range.
        participant, messages: the words for a client of the round, and for what the clients send.
        mechanism: name of the noise mechanism; in a request, "" for the trainer's own.
        clients: N, how many clients are expected; in a request, 0 if that is not known yet.
    """

    is_summed: ClassVar[bool] = False
    is_verified: ClassVar[bool] = False
    participant: ClassVar[str] = "client"
    messages: ClassVar[str]
    mechanism: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] = ""
    clients: Count = 0

    @property
    def n_min(self) -> int:
        """The fewest contributions that a secure sum may hold; otherwise 0."""
        return 0

    @property
    def colluders(self) -> int:
        """c of a secure sum, otherwise 0."""
        return 0

    @property
    def honest(self) -> int:
        """The number of noises that a coalition does not know, at least; together they must suffice."""
        return 1


class SecureSum(_Kind, frozen=True, array_like=True, tag="secure-sum"):
    """§4: a sum over Compute nodes.

    Attributes:
        tolerate: T, how many of the N expected clients may drop out or collude.
        colluders: c, how many of these may collude.
        most: n_max, the most contributions in a sum; 0 for twice N.
    """

    is_summed: ClassVar[bool] = True
    messages: ClassVar[str] = "secure sums over all clients"
    tolerate: Count = 0
    colluders: Count = 0
    most: Count = 0

    @property
    def n_min(self) -> int:
        """N - T + c."""
        return self.clients - self.tolerate + self.colluders

    @property
    def n_max(self) -> int:
        """The most contributions in a sum."""
        return self.most or 2 * self.clients

    @property
    def honest(self) -> int:
        """n_min - 1 - c = N - T - 1."""
        return self.clients - self.tolerate - 1


class VerifiedSum(SecureSum, frozen=True, array_like=True, tag="verified-sum"):
    """§12: a secure sum in which clients prove bounds, and public coins make the noise.

    Attributes:
        noises: m, noise numbers of each client for each coordinate.
        noise_bits: a, bits of each of them; 0 in a request, for the trainer to choose both.
    """

    is_verified: ClassVar[bool] = True
    noises: Count = 0
    noise_bits: Count = 0


class NodeRelease(_Kind, frozen=True, array_like=True, tag="node-release"):
    """§5.1: a release by each data node, which sums at most R >= 1 of its rows."""

    participant: ClassVar[str] = "data node"
    messages: ClassVar[str] = "releases of data nodes"


class LdpReport(_Kind, frozen=True, array_like=True, tag="ldp-report"):
    """§5.2: a report by each client, by the local mechanism that `mechanism` names."""

    messages: ClassVar[str] = "LDP reports of single clients"


Kind = SecureSum | VerifiedSum | NodeRelease | LdpReport


def name_of(kind: Kind | type[Kind]) -> str:
    """Return a kind's name, which is its tag."""
    return str(kind.__struct_config__.tag)


KINDS: dict[str, type[Kind]] = {name_of(kind): kind for kind in get_args(Kind) if not kind.is_verified}
"""The kinds by name that a request can name; a secure sum is verified by the term of that name."""
SECURE_SUM, NODE_RELEASE, LDP_REPORT = name_of(SecureSum), name_of(NodeRelease), name_of(LdpReport)
"""Their names."""
