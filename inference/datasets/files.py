"""Finds a data set's file: in a folder that the user names, else in a cache, to which it is downloaded once.

The folder is the caller's, else that of the environment variable ``DCA_DATA``. Without either, the file comes from the
UCI archive through pooch into its cache (``pooch.os_cache("dca")``). In each case the file is used only if its SHA-256
is the expected one. So a result that cites a data set is about exactly these rows.
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
"""What reading a damaged or changed archive raises; the last of a cell that is no decimal number."""
ARCHIVE = "https://archive.ics.uci.edu/static/public"


def unchanged(content: bytes) -> bytes:
    """The content of a file that is used as it comes out of its archive."""
    return content


@dataclass(frozen=True)
class Source:
    """One file of a data set.

    Attributes:
        dataset: its name here. file: the file's name in a folder and in the cache. sha256: of its content.
        url: the zip archive that holds it. member: its path in there.
        unpack: makes the file's content of the member's, where UCI distributes it in another form.
    """

    dataset: str
    file: str
    sha256: str
    url: str
    member: str
    unpack: Callable[[bytes], bytes] = unchanged

    @property
    def origin(self) -> str:
        """Where the file is from, in words."""
        made = "" if self.unpack is unchanged else f", of which a download makes {self.file}"
        return f"{self.member} in {self.url}{made}"


def find(source: Source, folder: Path | None = None) -> Path:
    """The checked file, from the folder, else from that of ``DCA_DATA``, else downloaded once into the cache.

    Raises:
        DataError: it is not in the folder, cannot be downloaded, or is another file than expected.
    """
    given = folder or os.environ.get(FOLDER_VARIABLE)
    if not given:
        return _checked(source, _cached(source), "delete it to have it downloaded again")
    return _checked(source, Path(given) / source.file, f"replace it by {source.origin}")


def _checked(source: Source, path: Path, advice: str) -> Path:
    try:
        found = sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(
            f"data set {source.dataset!r}: no file {source.file} in {path.parent}; put it there (it is "
            f"{source.origin}), or name no folder and leave {FOLDER_VARIABLE} unset to have it downloaded"
        ) from None
    except OSError as error:
        raise DataError(
            f"data set {source.dataset!r}: cannot read {path}: {error.strerror}; make it readable, or name another "
            f"folder: {FOLDER_VARIABLE}=FOLDER"
        ) from None
    if found != source.sha256:
        raise DataError(f"data set {source.dataset!r}: {path} has SHA-256 {found}, expected {source.sha256}; {advice}")
    return path


def _cached(source: Source) -> Path:
    try:
        import pooch  # needed for downloads alone
    except ModuleNotFoundError:
        raise DataError(
            f"data set {source.dataset!r} is downloaded by pooch, which is not installed; {to_install('inference')}, "
            f"or put {source.file} into a folder and name it: {FOLDER_VARIABLE}=FOLDER"
        ) from None
    path = Path(pooch.os_cache("dca")) / source.file
    if not path.is_file():
        _extract(source, _download(source, path.parent), path)
    return path


def _download(source: Source, cache: Path) -> Path:
    """The archive, in the cache. Its own hash is not fixed: UCI repacks archives; the file in it is checked instead."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=Progress(source.url), timeout=60)
    name = source.url.rsplit("/", 1)[1]
    try:
        return Path(pooch.retrieve(source.url, known_hash=None, fname=name, path=cache, downloader=downloader))
    except PermissionError as error:
        raise DataError(
            f"data set {source.dataset!r}: cannot write into the cache {cache}; make it writable, or put "
            f"{source.file} into a folder and name it: {FOLDER_VARIABLE}=FOLDER"
        ) from error
    except (OSError, ValueError) as error:  # requests' and pooch's own errors are of these types
        raise DataError(
            f"data set {source.dataset!r}: cannot download {source.file} from {source.url} ({_cause(error)}); "
            f"go online, or put the file into a folder and name it: {FOLDER_VARIABLE}=FOLDER"
        ) from error


def _cause(error: Exception) -> str:
    return type(error).__name__ if len(str(error)) > 100 or not str(error) else str(error)


def _extract(source: Source, archive: Path, path: Path) -> None:
    """Write the file beside its archive; a damaged archive is removed, to be fetched again."""
    try:
        with zipfile.ZipFile(archive) as opened:
            content = source.unpack(opened.read(source.member))
    except DAMAGED as error:
        archive.unlink(missing_ok=True)
        raise DataError(
            f"data set {source.dataset!r}: {source.url} holds no readable {source.member} ({error}); "
            f"try again, or put {source.file} into a folder and name it: {FOLDER_VARIABLE}=FOLDER"
        ) from error
    found = sha256(content).hexdigest()
    if found != source.sha256:
        archive.unlink(missing_ok=True)
        raise DataError(
            f"data set {source.dataset!r}: {source.member} of {source.url} has SHA-256 {found}, expected "
            f"{source.sha256}; UCI has changed it: put the file as it was into a folder and name it: "
            f"{FOLDER_VARIABLE}=FOLDER"
        )
    _write(source, path, content)


def _write(source: Source, path: Path, content: bytes) -> None:
    """All or nothing; each process by way of a file of its own, for two may fetch the same data set at once."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise DataError(f"data set {source.dataset!r}: cannot write {path}: {error.strerror}; make room") from None


class Progress:
    """One line on a terminal's stderr while a file comes in; silent elsewhere. pooch calls it as it would call tqdm."""

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
