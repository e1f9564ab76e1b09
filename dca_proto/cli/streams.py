"""The door through which commands write to stdout and stderr: no stream can end a command, or make it wait for ever.

| stream | what happens |
| --- | --- |
| closed before the start | as /dev/null |
| a pipe whose reader has gone | the rest is discarded, the command goes on; stdout: exit code 141 |
| a full disk, or another error | the rest is discarded, the command goes on; stdout: exit code 8 |
| an encoding without a character | "epsilon" for ε, "-" for a dash, and so on; else an escape such as ``\\u4e2d`` |

So a round that has been paid for is finished, and its files are written, although nobody reads the tables.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TextIO, cast

_ERRORS = "dca-in-ascii"
_READER_GONE = {errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN}
_IN_ASCII = {
    "µ": "u", "−": "-", "–": "-", "—": "-", "…": "...", "·": "*", "×": "x", "±": "+/-", "→": "->", "≤": "<=",
    "≥": ">=", "≈": "~", "∞": "inf", "√": "sqrt", "²": "^2", "³": "^3", "°": " deg", "§": "section ", "“": '"',
    "”": '"', "„": '"', "‘": "'", "’": "'", "✓": "yes", "✗": "no", "•": "*", "†": "*", "●": "*", "○": "o",
    "\ufffd": "?", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "⌊": "floor(", "⌋": ")",
}  # fmt: skip
_SUPERSCRIPTS = {ord(letter): plain for letter, plain in zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True)}


def in_ascii(letter: str) -> str:
    """Return what stands for a character in an encoding without it."""
    if letter in _IN_ASCII:
        return _IN_ASCII[letter]
    code = ord(letter)
    if code in _SUPERSCRIPTS:
        return _SUPERSCRIPTS[code]
    if 0x2500 <= code <= 0x257F:  # lines of tables and bars
        return "|" if letter in "│┃║╎╏┆┇┊┋" else "-" if letter in "─━═╌╍┄┅┈┉╴╶╸╺╼╾" else "+"
    if 0x2580 <= code <= 0x259F or 0x2800 <= code <= 0x28FF:  # blocks and braille, in pictures and spinners
        return "*"
    if (name := unicodedata.name(letter, "")).startswith("GREEK"):
        return name.split()[-1].lower()
    base = unicodedata.normalize("NFKD", letter)
    plain = "".join(part for part in base if not unicodedata.combining(part))
    return plain if plain.isascii() and plain.isprintable() and plain else ascii(letter)[1:-1]


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "it is for output only"
    return "".join(map(in_ascii, error.object[error.start : error.end])), error.end


codecs.register_error(_ERRORS, _replace)


class _Sink(io.RawIOBase):
    """Writes bytes to a stream, and discards them after the first error.

    Attributes:
        failure: the error, if there was one.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._target = getattr(stream.buffer, "raw", stream.buffer)
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def write(self, data: Any) -> int:
        if self.failure is None:
            try:
                written = self._target.write(data)
                if written is None:  # full, and made non-blocking by another process that shares it
                    select.select([], [self._target], [])
                return int(written or 0)
            except OSError as error:
                self.failure = error
        return len(data)

    def quieten(self) -> None:
        """After an error, let everything else that writes to the same file, such as child processes, write nowhere."""
        if self.failure is not None:
            with suppress(OSError):  # a stream without a file
                number = self.fileno()
                _put(os.open(os.devnull, os.O_WRONLY), number)


class Output(NamedTuple):
    """The sinks of a command's streams; None for a stream that is no file, such as a notebook's."""

    stdout: _Sink | None
    stderr: _Sink | None

    @property
    def failure(self) -> OSError | None:
        """Why not everything reached stdout, or None."""
        return None if self.stdout is None else self.stdout.failure

    @property
    def has_lost_its_reader(self) -> bool:
        """Whether stdout is a pipe whose reader has gone."""
        return self.failure is not None and self.failure.errno in _READER_GONE


@contextmanager
def guarded() -> Iterator[Output]:
    """Within the block, writing to stdout and stderr raises no error: see the table above."""
    _open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, out = _guard(before[0])
    sys.stderr, err = _guard(before[1])
    try:
        yield Output(out, err)
    finally:
        for guard, sink in ((sys.stdout, out), (sys.stderr, err)):
            guard.flush()
            if sink is not None:
                sink.quieten()
        sys.stdout, sys.stderr = before


def _put(file: int, number: int) -> None:
    """Give an open file this number; child processes inherit it."""
    if file == number:  # the lowest free number, which a closed stream's may be
        os.set_inheritable(number, True)
    else:
        os.dup2(file, number)
        os.close(file)


def _open_closed() -> None:
    """Open /dev/null in place of standard streams that are closed; else the next file opened would become one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _put(os.open(os.devnull, os.O_RDWR), number)


class _Text(io.TextIOWrapper):
    """A text stream that hides its bytes: click would write UTF-8 into those of an ASCII stream."""

    @property
    def buffer(self) -> Any:
        return None


class _Nowhere(io.TextIOBase):
    """Stands for a stream that was closed before the start."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def _guard(stream: TextIO | None) -> tuple[TextIO, _Sink | None]:
    """Return a stream that writes to the given one through a sink; the given one if it takes no bytes."""
    if stream is None:
        return cast(TextIO, _Nowhere()), None
    if getattr(stream, "buffer", None) is None:
        return stream, None
    sink = _Sink(stream)
    with suppress(OSError):
        stream.flush()
    # rich, typer and print write whole lines, so a line at a time costs little
    return _Text(io.BufferedWriter(sink), stream.encoding, _ERRORS, line_buffering=True), sink
