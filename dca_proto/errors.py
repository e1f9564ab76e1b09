"""The four kinds of failure, each with a type of its own.

- `UsageError`: the caller's (a wrong argument or option): raised, shown in one line. Three kinds have exit codes of
  their own: `InputError` (a file or its content), `LoginError` (the broker refuses us), `StorageError` (what must be
  kept cannot be read or written).
- `PeerError`: a peer's (a malformed, unauthentic or unexpected message): counted and dropped, never fatal.
- `TransportError`: the network's: retried with back-off.
- `assert`: ours: stop.

`RoundAborted` is no failure of a part: it is how a round ends by its own rules. `dca_proto.cli` lists the exit codes.
"""

from __future__ import annotations

from dca_proto.aggregate import NoAggregate


class DcaError(Exception):
    """Base of all errors that this project raises on purpose.

    Attributes:
        exit_code: of a command that ends with it.
    """

    exit_code = 2


class UsageError(DcaError, ValueError):
    """A caller's request is invalid. The message names what was found, what was expected and what to do."""


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
        code: a short fixed text for counters and logs, such as ``signature`` or ``phase``.
        found: what came, as text that holds no secret.
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


class RoundAborted(NoAggregate, DcaError):  # noqa: N818 - not an error: how a round may end
    """A round ended without a result.

    Args:
        reason: why, as a sentence.
        contributors: how many contributions all Compute nodes held, where that is known.
        needed: how many were needed, N - T + c.
        remedy: what to do before the round is asked for again; "" where asking again may help by itself.
    """

    exit_code = 3

    def __init__(
        self, reason: str, *, contributors: int | None = None, needed: int | None = None, remedy: str = ""
    ) -> None:
        super().__init__(reason)
        self.remedy = remedy
        self.contributors = contributors
        self.needed = needed
