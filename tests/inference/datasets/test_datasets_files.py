"""Where a data set's file comes from: a folder, the environment variable, the cache; and how a wrong one is refused."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pooch
import pytest

from inference.bounds import Interval
from inference.datasets.csv_file import from_csv
from inference.datasets.files import FOLDER_VARIABLE, Progress, Source, find
from inference.errors import DataError

CONTENT = b"a,b\n1,2\n"
URL = "https://archive.example/7/small.zip"


def source(content: bytes = CONTENT, **changes: Any) -> Source:
    given = {"member": "inner/small.csv", **changes}
    return Source("small", "small.csv", sha256(content).hexdigest(), URL, **given)


def zipped(content: bytes, member: str = "inner/small.csv") -> bytes:
    memory = BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr(member, content)
    return memory.getvalue()


def corrupt() -> bytes:
    """An archive whose list of files is whole, and whose compressed content is not."""
    memory = BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner/small.csv", CONTENT * 100)
    content = bytearray(memory.getvalue())
    start = 30 + len("inner/small.csv")
    content[start : start + 8] = b"\xff" * 8
    return bytes(content)


class Web:
    """Stands in for pooch's downloader: serves bytes, or fails as a machine without a network does."""

    def __init__(self, served: bytes | None) -> None:
        self.served, self.calls = served, 0

    def __call__(self, **_: Any) -> Web:
        return self

    def download(self, url: str, output_file: str, _: object) -> None:
        self.calls += 1
        assert url == URL
        if self.served is None:
            raise OSError("name or service not known")
        Path(output_file).write_bytes(self.served)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no folder in the environment."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    return tmp_path / "cache"


def serve(monkeypatch: pytest.MonkeyPatch, served: bytes | None) -> Web:
    web = Web(served)

    def downloader(**_: Any) -> Any:
        return lambda url, output_file, pooch_: web.download(url, str(output_file), pooch_)

    monkeypatch.setattr(pooch, "HTTPDownloader", downloader)
    return web


def test_a_folder_precedes_the_variable_and_both_precede_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = serve(monkeypatch, None)
    for name in ("given", "named"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "small.csv").write_bytes(CONTENT)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "named"))
    assert find(source()).parent.name == "named"
    assert find(source(), tmp_path / "given").parent.name == "given"
    assert web.calls == 0


def test_a_file_is_downloaded_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = serve(monkeypatch, zipped(CONTENT))
    assert find(source()) == find(source()) == cache / "small.csv"
    assert (cache / "small.csv").read_bytes() == CONTENT
    assert web.calls == 1


def test_two_files_of_one_archive_need_one_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = serve(monkeypatch, zipped(CONTENT))
    find(source())
    other = Source("small", "other.csv", sha256(CONTENT[::-1]).hexdigest(), URL, "inner/small.csv", lambda b: b[::-1])
    assert find(other).read_bytes() == CONTENT[::-1]  # and what UCI distributes in another form is made into ours
    assert web.calls == 1


def test_a_missing_file_names_file_folder_and_url(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match=rf"'small': no file small\.csv in .*nowhere.*{URL}.*{FOLDER_VARIABLE} unset"):
        find(source(), tmp_path / "nowhere")


def test_another_file_is_refused_wherever_it_is(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small.csv").write_bytes(b"a,b\n1,3\n")
    with pytest.raises(DataError, match=rf"has SHA-256 [0-9a-f]{{64}}, expected {source().sha256}; replace it by"):
        find(source(), tmp_path)
    cache.mkdir()
    (cache / "small.csv").write_bytes(b"a,b\n1,3\n")
    with pytest.raises(DataError, match=r"expected .*delete it to have it downloaded again"):
        find(source())
    (tmp_path / "small.csv").unlink()
    (tmp_path / "small.csv").mkdir()
    with pytest.raises(DataError, match=r"no file small\.csv in"):
        find(source(), tmp_path)


def test_a_missing_derived_file_names_its_source(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match=r"it is inner/small\.csv in .*, which a download converts to small\.csv"):
        find(source(unpack=bytes.upper), tmp_path)


def test_a_download_without_pooch_names_the_extra(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"pip install -e '\.\[inference\]'"):
        find(source())


def test_a_full_disk_is_a_one_line_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, zipped(CONTENT))
    (cache / f"small.csv.{os.getpid()}.partial").mkdir(parents=True)  # nothing can be written there
    with pytest.raises(DataError, match=r"cannot write .*free space"):
        find(source())


def test_files_without_permission_are_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refused)
        with pytest.raises(DataError, match=r"cannot read .*small\.csv: Permission denied; make it readable, or name"):
            find(source(), tmp_path)
    monkeypatch.setattr(pooch, "retrieve", refused)
    with pytest.raises(DataError, match=r"cannot write into the cache .*; make it writable, or put small\.csv"):
        find(source())


def test_offline_use_is_an_error_that_names_the_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, None)
    with pytest.raises(DataError, match=rf"'small': cannot download small\.csv from {URL} .*name it: DCA_DATA=FOLDER"):
        find(source())
    assert not (cache / "small.csv").exists()


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (b"<html>gone</html>", "has no readable inner/small.csv"),
        (zipped(CONTENT, "elsewhere.csv"), "has no readable inner/small.csv"),
        (corrupt(), "has no readable inner/small.csv"),
        (zipped(b"changed"), "UCI has changed it"),
    ],
)
def test_a_bad_archive_is_refused_and_fetched_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, served: bytes, message: str
) -> None:
    web = serve(monkeypatch, served)
    with pytest.raises(DataError, match=message):
        find(source())
    web.served = zipped(CONTENT)
    assert find(source()).read_bytes() == CONTENT
    assert web.calls == 2


def test_progress_is_one_line_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress("adult.zip")
    progress.total = 4_000_000
    progress.update(1_000_000)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress.update(1_000_000)
    progress.close()
    assert capsys.readouterr().err == "\radult.zip: 2.0 of 4.0 MB\n"
    progress.reset()
    assert progress.done == 0


@pytest.mark.parametrize(
    ("cells", "categories", "message"),
    [
        (("Female", "Male"), ("female", "male"), "no row of column 'sex' has one of its categories female, male; the "
         "first has 'Female'; write the categories as the file does"),
        (("01.05.2023", "02.05.2023"), None, "no row of column 'sex' has a number; the first has '01.05.2023'; list"),
        (("", ""), None, "no row of column 'sex' has a number; all are empty; leave it out"),
        (("", "male"), None, "no row of column 'sex' has a number; the first has 'male'; list its"),
    ],
)  # fmt: skip
def test_a_column_of_which_no_cell_is_understood_is_refused(
    tmp_path: Path, cells: tuple[str, str], categories: tuple[str, ...] | None, message: str
) -> None:
    """Rows that lack a value may count as zero, but here a whole run would spend its budget on nothing."""
    path = tmp_path / "rows.csv"
    path.write_text(f"sex,y\n{cells[0]},1\n{cells[1]},2\n", encoding="utf-8")
    bounds = {"sex": Interval.of_labels("sex", categories) if categories else Interval(0, 1), "y": Interval(0, 3)}
    with pytest.raises(DataError, match=re.escape(message)):
        from_csv(path, "y", bounds, missing="zero")
    path.write_text(f"sex,y\n{cells[0]},1\n{categories[0] if categories else 1},2\n", encoding="utf-8")
    found = from_csv(path, "y", bounds, missing="zero")
    assert len(found.y) == 2
