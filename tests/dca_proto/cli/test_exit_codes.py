"""Each kind of failure has an exit code of its own, and a shell can complete what is typed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from dca_proto import cli
from dca_proto.cli import explain, main
from dca_proto.errors import InputError, LoginError, RoundAborted, StorageError, TransportError, UsageError
from inference.errors import DataError

DCA = (sys.executable, "-m", "dca_proto.cli")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a"), 2),
        (RoundAborted("a"), 3),
        (InputError("a"), 5),
        (DataError("a"), 5),
        (TransportError("a"), 6),
        (LoginError("a"), 7),
        (StorageError("a"), 8),
        (OSError(28, "No space left on device"), 8),
    ],
)
def test_each_kind_of_failure_has_a_code_of_its_own(error: Exception, code: int) -> None:
    explained = explain(error)
    assert explained is not None
    assert explained[1] == code


def test_what_a_user_does_wrong_ends_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.csv"
    text.write_text("1,2\n3,4\n")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"mqtt://127.0.0.1:{nobody.getsockname()[1]}"
        csv = ("swarm", "--csv", str(text), "--target", "2", "--output", str(tmp_path / "run"))
        assert main(["fleet", "--clients", "10", "--broker", url]) == 6
    assert main(["swarm", "--kind", "x"]) == 2
    assert main(csv) == 5
    assert main(["ledger", str(tmp_path / "none.db")]) == 5
    assert main(["inspect", str(text)]) == 5
    assert main(["account", "--clients", "50", "--json", str(tmp_path / "no" / "folder.json")]) == 8
    assert capsys.readouterr().err.count("\n") == 6  # a line each


@pytest.mark.parametrize(
    "options",
    [
        ("--target", "state", "--categories", "state=well,ill"),  # texts, for a job of sizes
        ("--target", "pain", "--bounds", "pain=0:10", "--set", "prior=1"),
        ("--target", "nothing", "--bounds", "pain=0:10"),
        ("--target", "pain", "--bounds", "pain=10:0"),
    ],
)
def test_what_a_job_refuses_before_it_runs_is_bad_input(options: tuple[str, ...], tmp_path: Path) -> None:
    text = tmp_path / "table.csv"
    text.write_text("state,pain\n" + "well,1\nill,2\n" * 20)
    assert main(["swarm", "--csv", str(text), "--job", "gaussian", "--output", str(tmp_path / "run"), *options]) == 5


@pytest.mark.long
def test_a_shell_is_offered_commands_their_groups_and_their_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def completed(line: str) -> list[str]:
        """What bash is offered for a line whose cursor is at its end."""
        monkeypatch.setenv("_DCA_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit) as end:
            main([])
        assert end.value.code == 0
        return capsys.readouterr().out.split()

    assert completed("dca s") == ["scaling", "schedule", "status", "store", "swarm", "schema"]
    assert completed("dca store ") == ["backup", "restore", "compact"]
    assert completed("dca broker ") == ["clear"]
    assert completed("dca broker --po") == ["--port"]
    assert completed("dca broker clear --pass") == ["--password-file"]
    assert completed("dca federation set") == ["set-p"]
    assert completed("dca status --ch") == ["--check"]
    assert completed("dca federation add") == ["add-node", "add-trainer", "add-registrar"]
    assert "--epsilon" in completed("dca trainer --e")
    assert completed("dca emulate sweep --see") == ["--seeds"]
    assert completed("dca swarm --job survival-") == ["survival-regression"]
    assert completed("dca keygen --role t") == ["trainer"]
    monkeypatch.delenv("_DCA_COMPLETE")
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # else a shell has to be an ancestor
    command = [*DCA, "--show-completion", "bash"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, env=named)
    assert "_DCA_COMPLETE=complete_bash" in shown.stdout


def table_of(text: str) -> dict[str, set[str]]:
    """By exit code, the commands that a table of exit codes names in its row."""
    rows = re.findall(r"^\| (\d+) \|(.*)$", text, re.MULTILINE)
    return {code: set(re.findall(r"`(dca [a-z]+)", row)) for code, row in rows}


def test_the_tables_of_exit_codes_agree() -> None:
    operate = (Path(__file__).parents[3] / "docs" / "operate.md").read_text(encoding="utf-8")
    assert table_of(operate.partition("## Exit codes")[2]) == table_of(cli.__doc__ or "")
    assert set(table_of(cli.__doc__ or "")) >= {"0", "1", "2", "3", "143"}
