"""Finds a data set's file in a folder that the user names, or else in a cache, to which it is downloaded once.

The folder is the caller's, or else the environment variable ``DCA_DATA``. Without either, pooch downloads the file from
the UCI archive to its cache (``pooch.os_cache("dca")``). In each case the file is used only if its SHA-256 is the
expected one. So a result that cites a data set comes from exactly these rows.
"""

from __future__ import annotations

import os
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dca_proto.wording import to_install
from inference.errors import DataError

FOLDER_VARIABLE = "DCA_DATA"
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, ArithmeticError)
"""Errors from reading a damaged or changed archive; the last is for a cell that is no decimal number."""
ARCHIVE = "https://archive.ics.uci.edu/static/public"


@dataclass(frozen=True)
class Source:
    """One file of a data set.

    Attributes:
        dataset: its name here. file: the file's name in a folder and in the cache. sha256: of its content.
        url: the zip archive that contains it. member: its path in the archive.
        unpack: converts the member's content to the file's; None if they are the same.
    """

    dataset: str
    file: str
    sha256: str
    url: str
    member: str
    unpack: Callable[[bytes], bytes] | None = None

    @property
    def origin(self) -> str:
        """The file's source, as text."""
        converted = f", which a download converts to {self.file}" if self.unpack else ""
        return f"{self.member} in {self.url}{converted}"

    @property
    def by_hand(self) -> str:
        """How the user provides the file, as text."""
        return f"put {self.file} into a folder and name it: {FOLDER_VARIABLE}=FOLDER"

    def refused(self, reason: str) -> DataError:
        """Return an error that names the data set."""
        return DataError(f"data set {self.dataset!r}: {reason}")


def find(source: Source, folder: Path | None = None) -> Path:
    """Return the checked file, from the folder, that of ``DCA_DATA``, or the cache, to which it is downloaded once.

    Raises:
        DataError: it is not in the folder, cannot be downloaded, or has another content than expected.
    """
    given = folder or os.environ.get(FOLDER_VARIABLE)
    if not given:
        return _checked(source, _cached(source), "delete it to have it downloaded again")
    return _checked(source, Path(given) / source.file, f"replace it by {source.origin}")


def _checked(source: Source, path: Path, advice: str) -> Path:
    try:
        if path.exists() and not path.is_file():  # a pipe would make the reader wait
            raise IsADirectoryError
        digest = sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise source.refused(
            f"no file {source.file} in {path.parent}; put it there (it is {source.origin}), or name no folder and "
            f"leave {FOLDER_VARIABLE} unset to have it downloaded"
        ) from None
    except OSError as error:
        reason = f"cannot read {path}: {error.strerror}; make it readable, or name another folder"
        raise source.refused(f"{reason}: {FOLDER_VARIABLE}=FOLDER") from None
    if digest != source.sha256:
        raise source.refused(f"{path} has SHA-256 {digest}, expected {source.sha256}; {advice}")
    return path


def _cached(source: Source) -> Path:
    """Return the file in the cache, unpacked from its archive there; a damaged archive is deleted."""
    try:
        import pooch  # only downloads need it
    except ModuleNotFoundError:
        reason = f"it is downloaded by pooch, which is not installed; {to_install('inference')}, or {source.by_hand}"
        raise source.refused(reason) from None
    path = Path(pooch.os_cache("dca")) / source.file
    if path.is_file():
        return path
    archive, wrong = _download(source, path.parent), ""
    try:
        with zipfile.ZipFile(archive) as opened:
            content = opened.read(source.member)
            content = source.unpack(content) if source.unpack else content
        if (digest := sha256(content).hexdigest()) != source.sha256:
            wrong = (
                f"{source.member} of {source.url} has SHA-256 {digest}, expected {source.sha256}; UCI has changed it: "
                f"put the original file into a folder and name it: {FOLDER_VARIABLE}=FOLDER"
            )
    except DAMAGED as error:
        wrong = f"{source.url} has no readable {source.member} ({error}); try again, or {source.by_hand}"
    if wrong:
        archive.unlink(missing_ok=True)
        raise source.refused(wrong)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # two processes may download it at once
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise source.refused(f"cannot write {path}: {error.strerror}; free space") from None
    return path


def _download(source: Source, cache: Path) -> Path:
    """Download the archive to the cache. Its own hash is not checked, since UCI repacks archives; its file's is."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=Progress(source.url), timeout=60)
    name = source.url.rsplit("/", 1)[1]
    try:
        return Path(pooch.retrieve(source.url, known_hash=None, fname=name, path=cache, downloader=downloader))
    except PermissionError as error:
        reason = f"cannot write into the cache {cache}; make it writable, or {source.by_hand}"
        raise source.refused(reason) from error
    except (OSError, ValueError) as error:  # requests' and pooch's own errors are of these types
        why = type(error).__name__ if len(str(error)) > 100 or not str(error) else str(error)
        reason = f"cannot download {source.file} from {source.url} ({why}); go online, or {source.by_hand}"
        raise source.refused(reason) from error


class Progress:
    """One line of progress on a terminal's stderr; silent elsewhere. pooch calls it as it would call tqdm."""

    def __init__(self, label: str) -> None:
        self.label, self.total, self.done, self.shown = label, 0, 0, ""

    def update(self, size: int) -> None:
        self.done += size
        whole = f" of {self.total / 1e6:.1f}" if self.total else ""
        line = f"\r{self.label}: {self.done / 1e6:.1f}{whole} MB"
        if sys.stderr.isatty() and line != self.shown:
            sys.stderr.write(line)
            sys.stderr.flush()
            self.shown = line

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
