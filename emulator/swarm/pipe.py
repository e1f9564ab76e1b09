"""What a fleet's parent and its worker processes say to each other: frames over pipes, never over the broker.

Each frame is a length of four bytes and a MessagePack object. Keys travel here and nowhere else.

    parent -> worker    ClientOrders or ComputeOrders, then Prepare and Count; the end of the pipe means: stop
    worker -> parent    Connected and Sessions as they happen, Totals when asked, Failed at most once
"""

from __future__ import annotations

import asyncio
from typing import BinaryIO, TypeVar

import msgspec

SLOWEST_MAX = 5
"""How many slow clients a round names."""

T = TypeVar("T")
_LENGTH_BYTES = 4


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of a fleet are told.

    Attributes:
        federation: the file's text. url: the broker's. directory: for records.
        clients: N in all. computes: M. tolerated: T. colluders: c. epsilon, delta: the budget of all rounds.
        mechanism: name of every actor's. seed: of waiting times.
        connecting_max: how many connect at once in each process. resend_ms: until unanswered messages are repeated.
    """

    federation: str
    url: str
    directory: str
    clients: int
    computes: int
    tolerated: int
    colluders: int
    epsilon: float
    delta: float
    mechanism: str
    seed: int
    connecting_max: int
    resend_ms: int


class ClientOrders(msgspec.Struct, frozen=True, tag=True):
    """Run clients `first` to `first + count - 1`; client i holds one row, of category i modulo `dimension`."""

    setting: Setting
    authority: bytes
    first: int
    count: int
    dimension: int
    is_shared: bool

    def __repr__(self) -> str:
        return f"ClientOrders({self.first}, {self.count}, <keys>)"


class ComputeOrders(msgspec.Struct, frozen=True, tag=True):
    """Run Compute nodes with these identities."""

    setting: Setting
    identities: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"ComputeOrders({len(self.identities)}, <keys>)"


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """For a round, in which these clients, by number, vanish, and all others are back. Answer with `Totals`."""

    vanishing: tuple[int, ...]


class Count(msgspec.Struct, frozen=True, tag=True):
    """Answer with `Totals`."""


class Connected(msgspec.Struct, frozen=True, tag=True):
    """So many of this process's actors have a connection."""

    count: int


class Sessions(msgspec.Struct, frozen=True, tag=True):
    """So many clients have a session at every Compute node."""

    count: int


class Late(msgspec.Struct, frozen=True):
    """A client, by number, that was among the last of its process to have its receipt.

    Attributes:
        at_s: monotonic, which is the same in all processes of a machine.
    """

    client: int
    at_s: float


class Totals(msgspec.Struct, frozen=True, tag=True):
    """Of one process, since its start.

    Attributes:
        messages, bytes: that its actors sent and that reached the broker.
        core_s: of the processor. peak_rss_bytes: the most memory that it had.
        transactions: of its store. facts: how many of each kind its actors reported; dropped messages by their code.
        late: the last clients of the round, since it was prepared.
    """

    messages: int
    bytes: int
    core_s: float
    peak_rss_bytes: int
    transactions: int
    facts: dict[str, int]
    late: tuple[Late, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The process ends because of an actor, in one line."""

    error: str


Order = ClientOrders | ComputeOrders | Prepare | Count
Word = Connected | Sessions | Totals | Failed


def framed(body: msgspec.Struct) -> bytes:
    """A frame."""
    data = msgspec.msgpack.encode(body)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def send(file: BinaryIO, body: Word) -> None:
    """Write a frame to a pipe and see it off. Raises `OSError` where nobody reads any more."""
    file.write(framed(body))
    file.flush()


async def read(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The next frame; None at the end of the pipe, also within a frame."""
    try:
        size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return decoder.decode(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        return None
