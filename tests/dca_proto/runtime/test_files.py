"""Text files that people write: UTF-8 with or without a byte order mark, with any line ends; others in one clear line.

The first test keeps all readers behind one door, so the others need only the door and a list of files.
"""

from __future__ import annotations

import ast
import errno
import io
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sources import sources

import dca_proto
from dca_proto.cli import inspect as inspect_module
from dca_proto.cli import main
from dca_proto.cli.inspect import _describe_file
from dca_proto.errors import InputError, UsageError
from dca_proto.report.reading import read_page
from dca_proto.runtime.config import read_config
from dca_proto.runtime.files import decode_text, read_input, read_text, require_input
from dca_proto.runtime.keyfile import (
    certified_id,
    read_federation,
    read_identity,
    read_password,
    write_private,
)
from dca_proto.runtime.table import read_csv
from emulator.scaling.record import _object_in
from emulator.trials.scenario_file import example_toml, load_scenario
from inference.bounds import read_bounds
from inference.datasets import from_csv
from inference.errors import DataError

ROOT = Path(dca_proto.__file__).parent.parent
OWN_FILES = {
    "dca_proto/runtime/broker.py",  # a broker's log, /proc
    "dca_proto/cli/__init__.py",  # this program's own modules
    "dca_proto/cli/new.py",  # files of the package
    "dca_proto/cli/deployed.py",  # a deployment's own files
    "dca_proto/dashboard/page.py",  # files of the package
    "dca_proto/deploy/folder.py",  # files of the package, and those that it has written
    "dca_proto/runtime/registrar.py",  # a broker's process id
    "dca_proto/runtime/access.py",  # /proc
    "dca_proto/runtime/locks.py",  # /proc
    "emulator/swarm/usage.py",  # /proc
    "emulator/trials/scenario_file.py",  # a file of the package, beside the reader
    "emulator/scaling/record.py",  # /proc
    "inference/datasets/shipped.py",  # published files, compared with their hash
    "inference/datasets/uci.py",
}
"""Modules that also read texts that no person writes."""
BYTES = {
    "inference/datasets/files.py",  # published files, compared with their hash
    "dca_proto/cli/output.py",  # an earlier output, if it is a regular file
    "dca_proto/runtime/backup.py",  # whether it would replace something else
    "dca_proto/engine/cluster.py",  # Ray's own TLS files, named by its variables
}
"""Modules that read bytes without `open_input`."""
PARSERS = {"tomllib.load", "tomllib.loads", "json.load", "json.loads"}


def reads_text(call: ast.Call) -> bool:
    """True if it opens a text, but for writing."""
    opens = ast.unparse(call.func).endswith(".open") and any(word.arg == "encoding" for word in call.keywords)
    return opens and "'w'" not in map(ast.unparse, call.args)


def test_every_reader_of_text_files_comes_through_one_door() -> None:
    found, binary, parsing = set(), set(), set()
    for name, nodes in sources():
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                texts = {"read_text", "loadtxt", "genfromtxt", "read_csv"} & {node.func.attr}
                if texts or reads_text(node):
                    found.add(name)
                elif node.func.attr == "read_bytes" or any(ast.unparse(one) == "'rb'" for one in node.args):
                    binary.add(name)
                if node.func.attr in ("load", "loads") and ast.unparse(node.func) in PARSERS:
                    parsing.add(name)
    assert found == OWN_FILES
    assert binary == BYTES
    assert parsing == {
        "dca_proto/wording.py",
        "inference/mcmc/sums.py",
        "inference/rounds.py",  # its own text
    }


READERS: dict[str, Callable[[Path], object]] = {
    "client.toml": read_config,
    "policy.toml": lambda path: read_config(path.with_name("client.toml")),
    "client.key": lambda path: read_identity(path, "client").id,
    "client.cert": certified_id,
    "federation.toml": lambda path: read_federation(path).id,
    "client.password": read_password,
    "bounds.toml": read_bounds,
    "scenario.toml": load_scenario,
    "data.csv": lambda path: read_csv(path).rows(("x",)).tolist(),
    "test.csv": lambda path: from_csv(path, "x", {"x": (0, 9)}, [], alone=True).rows.tolist(),  # type: ignore[dict-item]
    "result.json": lambda path: _object_in(path, "--journal"),
    "page.json": lambda path: refusal(read_page, path, 'has no "kind"'),
    "message.hex": lambda path: refusal(_describe_file, path, "message.hex: "),
}
"""A reader for each kind of text file; it returns the file's content."""
SECRET = ("client.key", "client.password")


def refusal(read: Callable[[Path], object], path: Path, of_content: str) -> str:
    """The refusal of a text's content; any other is raised."""
    try:
        read(path)
    except UsageError as error:
        if of_content in str(error) and "UTF-8" not in str(error):
            return str(error)
        raise
    raise AssertionError("not refused")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind."""
    tmp_path = tmp_path_factory.mktemp("files")
    assert main(["federation", "init", str(tmp_path), "--computes", "2", "--clients", "1"]) == 0
    (tmp_path / "client-1.key").rename(tmp_path / "client.key")
    (tmp_path / "client-1.cert").rename(tmp_path / "client.cert")
    write_private(tmp_path / "client.password", "open sesame\n")
    texts = {
        "client.toml": '[client]\nidentity = "client.key"\nfederation = "federation.toml"\nstore = "s.db"\n'
        'policy = "policy.toml"\n[broker]\nurl = "mqtt://h"\n',
        "policy.toml": "clients_min = 3\n",
        "bounds.toml": "age = [0, 120]\n",
        "scenario.toml": example_toml(),
        "data.csv": "x,y\n1,2\n",
        "test.csv": "x,y\n1,2\n",
        "result.json": "{}\n",
        "page.json": "{}\n",
        "message.hex": "00ff\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def folder(files: Path, tmp_path: Path) -> Path:
    """The files, to change."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "changed",
    [
        lambda content: b"\xef\xbb\xbf" + content,
        lambda content: content.replace(b"\n", b"\r\n"),
        lambda content: content.replace(b"\n", b"\r"),
    ],
    ids=["byte order mark", "CRLF", "CR"],
)
def test_a_byte_order_mark_and_other_line_ends_change_nothing(
    name: str, changed: Callable[[bytes], bytes], folder: Path
) -> None:
    before = READERS[name](folder / name)
    path = folder / name
    path.write_bytes(changed(path.read_bytes()))
    assert READERS[name](path) == before


@pytest.mark.parametrize("name", [name for name in READERS if name != "message.hex"])  # which may be binary
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_another_encoding_is_one_clear_line_without_the_text(name: str, encoding: str, folder: Path) -> None:
    path = folder / name
    text = path.read_text().replace("x,y", "x,ý") if name.endswith("csv") else f"# ý\n{path.read_text()}"
    path.write_bytes(text.encode(encoding))
    with pytest.raises((InputError, DataError)) as caught:
        READERS[name](path)
    message = str(caught.value)
    assert "UTF-8" in message
    assert name in message
    assert message.isprintable()
    if name in SECRET:
        assert "sesame" not in message


def test_the_line_with_the_wrong_byte_is_named() -> None:
    with pytest.raises(InputError, match=r"^f is not UTF-8 text: see line 3; save it as UTF-8; expected a poem$"):
        decode_text(b"one\ntwo\nthr\xe9e\n", Path("f"), "expected a poem")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; check the path and its rights; expected a poem"):
        read_text(tmp_path / "f", "expected a poem")
    with pytest.raises(InputError, match=r"is a folder, not a regular file; name a file$"):
        read_text(tmp_path)


def test_only_regular_files_up_to_a_limit_are_read(tmp_path: Path) -> None:
    """Nothing waits for a writer, and nothing reads without end."""
    pipe, name = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"pipe is a pipe, not a regular file; name a file; expected a poem$"):
        read_text(pipe, "expected a poem")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(name))
        with pytest.raises(InputError, match="is a socket, not a regular file"):
            require_input(name)
    with pytest.raises(InputError, match=r"^/dev/zero is a device, not a regular file"):
        read_input(Path("/dev/zero"))
    (tmp_path / "large").write_bytes(bytes(100))
    with pytest.raises(InputError, match=r"large is larger than 99 bytes"):
        read_input(tmp_path / "large", bytes_max=99)
    with pytest.raises(InputError, match=r"cpuinfo is larger than 9 bytes"):  # its size is stated as 0
        read_input(Path("/proc/cpuinfo"), bytes_max=9)
    assert read_input(tmp_path / "large", bytes_max=100) == bytes(100)


def test_a_file_from_which_nothing_can_be_read_yet_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/kmsg: a regular file by its mode, and its `read` returns None where others would wait."""

    class Silent(io.BytesIO):
        def read(self, _: int | None = -1) -> Any:
            return None

    monkeypatch.setattr("dca_proto.runtime.files.open_input", lambda *_, **__: Silent())
    with pytest.raises(InputError, match=r"^cannot read silent: Resource temporarily unavailable; check the path"):
        read_input(Path("silent"))


def test_inspect_names_a_file_whose_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, _: int | None = -1) -> Any:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(inspect_module, "open_input", lambda *_, **__: Failing())
    with pytest.raises(InputError, match=r"^cannot read store.db: Input/output error"):
        inspect_module.inspect(Path("store.db"))
