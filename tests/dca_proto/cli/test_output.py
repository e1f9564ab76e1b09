"""Files that commands write: whole or not at all, in place where replacing would harm, one line where they cannot."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from patience import PATIENCE_S

from dca_proto.cli import explain
from dca_proto.cli.output import Terminal, table
from dca_proto.errors import UsageError
from dca_proto.runtime.files import whole_file, write_json


def test_a_file_is_replaced_whole_and_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    path.chmod(0o640)
    with whole_file(path) as place:
        place.write_text("new")
        assert (place.parent, place.suffix, path.read_text()) == (tmp_path, ".json", "old")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", ["old", None])
def test_a_failed_write_leaves_all_files_unchanged(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "result.json"
    if before is not None:
        path.write_text(before)

    def fail(error: Exception) -> None:
        with whole_file(path) as place:
            place.write_text("half")
            raise error

    with pytest.raises(UsageError, match=r"cannot write .*result.json: No space left on device; free space or name"):
        fail(OSError(28, os.strerror(28)))
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
    with pytest.raises(BrokenPipeError):
        fail(BrokenPipeError())
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_link_is_followed_to_its_target(tmp_path: Path) -> None:
    """As /dev/stdout is one: a file that took its place would not reach whoever reads the output."""
    (tmp_path / "there").mkdir()
    target = tmp_path / "there/target.json"
    target.write_text("a longer text than the new one")
    inode = target.stat().st_ino
    link = tmp_path / "link.json"
    link.symlink_to(target)
    write_json([1], str(link))
    assert (link.is_symlink(), target.stat().st_ino, json.loads(target.read_text())) == (True, inode, [1])
    assert list((tmp_path / "there").iterdir()) == [target]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, contents = tmp_path / "pipe.json", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: contents.append(pipe.read_text()))
    reader.start()
    write_json({"a": 1}, str(pipe))
    reader.join(timeout=PATIENCE_S)
    assert json.loads(contents[0]) == {"a": 1}
    assert pipe.is_fifo()


def test_a_full_device_is_one_line(tmp_path: Path) -> None:
    link = tmp_path / "full.json"
    link.symlink_to("/dev/full")
    with pytest.raises(UsageError, match=r"cannot write .*full.json: No space left on device"):
        write_json([1], str(link))
    assert link.is_symlink()
    assert explain(OSError(28, os.strerror(28))) == (
        "cannot write the output: No space left on device; free space or name another place",
        8,
    )
    assert explain(OSError(9, os.strerror(9))) is None, "a bug of ours"


# --- tables -----------------------------------------------------------------------------------------------------------


def printed(width: int, columns: tuple[str, ...], rows: list[tuple[str, ...]], **how: str) -> str:
    """What a console of this width prints of a table."""
    console = Terminal()
    console.width = width
    with console.capture() as capture:
        console.print(table(columns, rows, **how))
    return capture.get()


COMPARED = (
    ("n", "–", "5,036 [5,027, 5,045]", "666 [658, 675]"),
    ("share of rare_mutation", "-0.0168 [-0.034, -0.005]", "0.00707 [0.0049, 0.0092]", "0.0241 [0.012, 0.036]"),
)
GROUPS = ("", "readmitted=yes 0 less readmitted=yes 1", "readmitted=yes 0", "readmitted=yes 1")


@pytest.mark.parametrize("width", [48, 60, 80, 100, 120, 200])
def test_a_table_breaks_no_number_and_loses_no_name_at_any_width(width: int) -> None:
    text = printed(width, GROUPS, list(COMPARED))
    assert all(word in text.split() for row in COMPARED for cell in row[1:] if cell != "–" for word in cell.split())
    assert all(name in text for name in (*GROUPS, *(row[0] for row in COMPARED)))
    assert all(len(line) <= width for line in text.splitlines())


def test_a_column_that_wraps_does_not_break_words() -> None:
    row = ("gain_$_loss_$", "0.0123 [0.0011, 0.0235]", "0.0119 [0.0009, 0.0229]", "sbp per unit of gain_$_loss_$")
    columns = ("", "private", "without privacy", "unit")
    assert "gain_$_loss_$\n" in printed(72, columns, [row], align="w>>w")
    assert printed(90, columns, [row], align="w>>w").count("gain_$_loss_$") == 2
    assert printed(90, columns, [row], align="w>>w").splitlines()[1].startswith("──")
