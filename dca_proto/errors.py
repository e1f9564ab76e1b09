"""The four kinds of failure, by who caused it.

- `UsageError`: the caller (a wrong argument or option). It is raised, and shown in one line. Three subclasses have exit
  codes of their own: `InputError`, `LoginError` and `StorageError`.
- `PeerError`: a peer (a malformed, unauthentic or unexpected message). It is counted, and the message is dropped; it
  never stops the program.
- `TransportError`: the network. The operation is retried with back-off.
- `assert`: a bug in this program, which stops.

`RoundAborted` is not a failure of any part: a round may end so by its own rules. `dca_proto.cli` lists the exit codes.
"""

from __future__ import annotations

from typing import Protocol

from dca_proto.quorum import NO_NODES, Quorum


class DcaError(Exception):
    """Base of all errors that this project raises on purpose.

    Attributes:
        exit_code: exit code of a command that ends with this error.
    """

    exit_code = 2


class UsageError(DcaError, ValueError):
    """The caller's request is invalid. The message states what was found, what was expected and what to do."""


class InputError(UsageError):
    """A file that the caller named, or its content, cannot be used."""

    exit_code = 5


class LoginError(UsageError):
    """The broker refuses the name, the password, the certificate, or the topics."""

    exit_code = 7


class StorageError(UsageError):
    """A store, a journal or an output cannot be read or written: damaged, in use, full, or not permitted."""

    exit_code = 8


class PeerError(DcaError):
    """A peer sent something unacceptable.

    Args:
        code: a short fixed code for counters and logs, such as ``signature`` or ``phase``.
        found: what was received; contains no secret.
        expected: what would have been accepted.
    """

    def __init__(self, code: str, *, found: object = "", expected: object = "") -> None:
        super().__init__(code, found, expected)
        self.code = code
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.code}: found {self.found}, expected {self.expected}"


class TransportError(DcaError):
    """The connection failed or was lost; trying again may help."""

    exit_code = 6


class NoAggregate(Exception):  # noqa: N818 - not an error, but one way in which a round ends
    """A requested round gives no sum: it was aborted, or the budget is spent.

    It is raised at the job's `yield`. A job that can finish with earlier aggregates may catch it.

    Args:
        reason: why, as a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EndedWithoutResult(Protocol):
    """A record of a round that ended without a result: what `RoundAborted` states of it."""

    @property
    def reason(self) -> str: ...
    @property
    def contributors(self) -> int | None: ...
    @property
    def needed(self) -> int | None: ...
    @property
    def quorum(self) -> Quorum: ...
    @property
    def unproven(self) -> int: ...


class RoundAborted(NoAggregate, DcaError):  # noqa: N818 - not an error, but one way in which a round ends
    """A round ended without a result.

    Args:
        reason: why, as a sentence.
        contributors: number of contributions that all Compute nodes held; None if unknown.
        needed: number that was needed, N - T + c; None if unknown.
        remedy: what to do before requesting the round again; "" if a new attempt alone may help.
        repeatable: whether a round without the Compute nodes that were silent may repeat it.
        quorum: its Compute nodes, and those that it lost.
        unproven: in a verified sum of too few, how many proofs failed.
    """

    exit_code = 3

    def __init__(
        self,
        reason: str,
        *,
        contributors: int | None = None,
        needed: int | None = None,
        remedy: str = "",
        repeatable: bool = False,
        quorum: Quorum = NO_NODES,
        unproven: int = 0,
    ) -> None:
        super().__init__(reason)
        self.unproven = unproven
        self.quorum = quorum
        self.repeatable = repeatable
        self.remedy = remedy
        self.contributors = contributors
        self.needed = needed

    @staticmethod
    def of(ended: EndedWithoutResult, *, reason: str = "", remedy: str = "", repeatable: bool = False) -> RoundAborted:
        """Return the abort of a round with such a record, for its own reason unless another one is given."""
        return RoundAborted(
            reason or ended.reason,
            contributors=ended.contributors,
            needed=ended.needed,
            remedy=remedy,
            repeatable=repeatable,
            quorum=ended.quorum,
            unproven=ended.unproven,
        )


REMEDY_OF_LIE = "find the client that lied and revoke it, before you ask for the round again, at its cost"


class ImplausibleSum(RoundAborted):
    """A round's sum that no honest clients can have made (`dca_proto.plausibility`). Its privacy cost stays spent."""

    def __init__(self, reason: str, *, quorum: Quorum = NO_NODES) -> None:
        super().__init__(reason, remedy=REMEDY_OF_LIE, quorum=quorum)
