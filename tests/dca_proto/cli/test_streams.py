"""Every command writes to streams of every kind: of any encoding, closed, full, or a pipe whose reader has gone."""

from __future__ import annotations

import ast
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import commands, federation_folder
from patience import PATIENCE_S
from sources import sources

from dca_proto.cli import main, streams

ENCODINGS = ("utf-8", "cp1252", "ascii")
STATES = ("open", "closed", "gone", "full")
CHEAP = {
    (): "--version",
    ("account",): "account --clients 100",
    ("audit",): "audit --rounds 1000 --seed 1",
    ("broker",): "broker --host 0.0.0.0",
    ("broker", "clear"): "broker clear no.toml",
    ("client",): "client no.toml",
    ("compute",): "compute no.toml",
    ("dashboard",): "dashboard no.toml",
    ("emulate",): "emulate",
    ("emulate", "example"): "emulate example",
    ("emulate", "replay"): "emulate replay 1",
    ("emulate", "run"): "emulate run no.toml",
    ("emulate", "sweep"): "emulate sweep --seeds 5..1",
    ("federation",): "federation",
    ("federation", "add-node"): "federation add-node c=c.key",
    ("federation", "add-registrar"): "federation add-registrar r=no.key",
    ("federation", "add-trainer"): "federation add-trainer u=u.key",
    ("federation", "deploy"): "federation deploy new --hosts a",
    ("federation", "enrol"): "federation enrol c.key",
    ("federation", "init"): "federation init new --computes 2 --clients 1 --broker mqtt://127.0.0.1",
    ("federation", "invite"): "federation invite ward-7",
    ("federation", "members"): "federation members",
    ("federation", "replace-node"): "federation replace-node compute-1 c=c.key",
    ("federation", "revoke"): "federation revoke client-1",
    ("federation", "run"): "federation run no",
    ("federation", "set-p"): "federation set-p 1",
    ("federation", "show"): "federation show",
    ("fleet",): "fleet --clients 1 --tolerate 0 --broker nobody",
    ("inspect",): "inspect client-1.cert",
    ("join",): "join no.invitation",
    ("keygen",): "keygen ε.key",
    ("ledger",): "ledger trainer.toml",
    ("learn",): "learn trainer.toml",
    ("new",): "new class",
    ("registrar",): "registrar no.toml",
    ("report",): "report no.json",
    ("results",): "results --schedule no.toml",
    ("scaling",): "scaling --predict clients=10",
    ("schedule",): "schedule no.toml",
    ("status",): "status client-1.toml",
    ("store",): "store",
    ("store", "compact"): "store compact client-1.toml",
    ("store", "backup"): "store backup client-1.toml --to client-1.backup",
    ("store", "restore"): "store restore client-1.toml --from no.backup",
    ("swarm",): "swarm --broker nobody",
    ("trainer",): "trainer trainer.toml",
}
"""A quick call of each command; those that would run for long, or measure, are refused."""
SLOW = {("audit",), ("emulate", "replay")}
KINDS = [
    *(("utf-8", state, False) for state in STATES[1:]),
    *(("cp1252", state, True) for state in STATES),
    *(("ascii", state, bool(place % 2)) for place, state in enumerate(STATES[:3])),
]
"""Each encoding on open streams; each other state of stdout alone, and of both streams."""
Make = Callable[[str, str], Any]


class Raw(io.RawIOBase):
    """The bytes below a stream, which go wrong as its state demands."""

    def __init__(self, state: str) -> None:
        self.state, self.written = state, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.state == "gone":
            raise BrokenPipeError(32, "Broken pipe")
        if self.state == "full":
            raise OSError(28, "No space left on device")
        self.written += bytes(data)
        return len(data)


class Told(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a federation and two more keys."""
    return federation_folder(tmp_path_factory, "mqtt://127.0.0.1")


@pytest.fixture
def told(members: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Told]:
    """Calls `dca` in a copy of the folder, with streams of an encoding and a state; the code and what arrived."""
    numbers = itertools.count()

    def call(line: str, encoding: str, state: str, *, also_stderr: bool = False) -> Told:
        folder = tmp_path / str(next(numbers))
        shutil.copytree(members, folder)
        monkeypatch.chdir(folder)
        raws = Raw(state), Raw(state if also_stderr else "open")
        for name, raw in zip(("stdout", "stderr"), raws, strict=True):
            stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding)
            monkeypatch.setattr(sys, name, None if raw.state == "closed" else stream)
        code = main(line.split())
        return Told(code, *(raw.written.decode(encoding) for raw in raws))

    return call


def expected(usual: Told, state: str) -> int:
    failed = usual.code == 0 and usual.out
    return {"gone": 141, "full": 8}.get(state, 0) if failed else usual.code


def test_each_command_has_a_quick_call() -> None:
    assert sorted(CHEAP) == commands()


@pytest.mark.long
@pytest.mark.parametrize("path", CHEAP, ids=" ".join)
def test_no_stream_ends_a_command(path: tuple[str, ...], told: Any) -> None:
    usual = told(CHEAP[path], "utf-8", "open")
    assert usual.code in (0, 2, 3, 5, 6, 8), usual
    for encoding, state, also_stderr in KINDS[::3] if path in SLOW else KINDS:
        found = told(CHEAP[path], encoding, state, also_stderr=also_stderr)
        assert found.code == expected(usual, state), (encoding, state)
        if not also_stderr and usual.out and state == "full":
            assert "dca: cannot write the output: No space left on device; free space or name" in found.err
        if state == "open":
            assert "\N{REPLACEMENT CHARACTER}" not in found.out
            assert bool(found.out) == bool(usual.out)


@pytest.mark.parametrize("path", CHEAP, ids=" ".join)
def test_help_is_readable_in_ascii(path: tuple[str, ...], told: Any) -> None:
    usual, found = (told(" ".join((*path, "--help")), encoding, "open") for encoding in ("utf-8", "ascii"))
    assert (usual.code, found.code, found.err) == (0, 0, "")
    assert "\\u" not in found.out
    assert len(found.out.split()) >= 0.9 * len(usual.out.split())


def texts(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The texts in a file's code, without its docstrings."""
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


@pytest.mark.long
def test_signs_have_a_replacement_in_ascii() -> None:
    """Those in texts that commands print, those of a table's lines, and those of a bar."""
    written = {
        letter
        for _, nodes in sources()
        for text in texts(nodes)
        for letter in text
        if not letter.isascii() and letter.isprintable()
    }
    assert len(written) > 20
    for letter in sorted(written | set("─│┼━╸⠋█é")):
        plain = streams.in_ascii(letter)
        assert plain.isascii()
        assert "\\" not in plain, f"{letter} ({letter!a}) needs a replacement"
    assert "ε ≤ 2 · 中".encode("ascii", streams._ERRORS) == b"epsilon <= 2 * \\u4e2d"
    assert "\udc80".encode("utf-8", streams._ERRORS) == b"\\udc80", "a file name in another encoding"


def test_a_pipe_that_another_process_made_non_blocking_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As node and some terminals do: a write to a full pipe is then refused, not delayed."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    texts: list[str] = []
    with os.fdopen(read, encoding="utf-8") as source:
        reader = threading.Thread(target=lambda: texts.append(source.read()))
        reader.start()
        with os.fdopen(write, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            with streams.guarded() as output:
                print("x" * 300_000)
            assert output.failure is None
        reader.join(timeout=PATIENCE_S)
    assert [len(text) for text in texts] == [300_001]


# --- real processes ---------------------------------------------------------------------------------------------------

DCA = (sys.executable, "-m", "dca_proto.cli")


@pytest.mark.long
@pytest.mark.parametrize(("encoding", "state"), [("cp1252", "gone"), ("ascii", "closed")])
def test_a_swarm_finishes_and_writes_its_files(encoding: str, state: str, tmp_path: Path) -> None:
    """With worker processes, which inherit the streams, and both streams in this state."""
    close = "exec >&- 2>&- <&-;" if state == "closed" else ""
    command = f"{close} exec {sys.executable} -m dca_proto.cli fleet --dimension 2 --clients 4 --json done.json"
    reader = None
    if state == "gone":
        read, reader = os.pipe()
        os.close(read)
    done = subprocess.run(
        ["sh", "-c", command], stdout=reader, stderr=reader, timeout=PATIENCE_S, cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding}, check=False,
    )  # fmt: skip
    assert done.returncode == {"closed": 0, "gone": 141}[state]
    assert (tmp_path / "done.json").stat().st_size > 100


def test_a_broker_serves_on_after_its_output_was_closed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DCA, "broker", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        assert broker.stdout.readline().startswith(b"broker ")
        broker.stdout.close()
        broker.send_signal(signal.SIGINT)
        assert b"Traceback" not in broker.stderr.read()
    assert broker.returncode in (0, 130, 141)
