"""Every command's JSON against the schema that `dca schema` prints: by jsonschema, which knows nothing of our types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from schemas import COMMANDS, validator

from dca_proto.cli import audit, main
from emulator.coalition.actors import ActorRounds

Call = Callable[..., Any]


def commands_with_json() -> Iterator[tuple[str, ...]]:
    """The arguments of each command that has the option --json."""
    for name, entry in COMMANDS.items():
        found = entry.load()
        app = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
        if app is not found:
            app.command(name)(found)
        command: Any = typer.main.get_command(app)
        for path, one in getattr(command, "commands", {}).items() or {"": command}.items():
            if any("--json" in option.opts for option in one.params):
                yield (name, path) if path else (name,)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Calls `dca` in a folder of its own; the JSON that is on stdout, if it is any."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> Any:
        assert main(arguments) == code, capsys.readouterr().err
        return json.loads(capsys.readouterr().out or "null")

    return run


@pytest.mark.parametrize("path", list(commands_with_json()), ids=" ".join)
def test_each_command_with_json_has_a_schema(call: Call, path: tuple[str, ...]) -> None:
    assert call("schema", *path) == json.loads(json.dumps(validator(*path).schema))


@pytest.mark.parametrize("arguments", [("schema", "-h"), ("schema", "account", "--help"), ("help", "schema")])
def test_its_help_is_printed(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("Usage: dca schema COMMAND\n")


def test_a_command_without_a_schema_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, line in (
        (("client",), "`dca client` has no option --json"),
        (("acount",), "(did you mean 'account'?)"),
        ((), "as in: dca schema account"),
    ):
        assert main(("schema", *arguments)) == 2
        assert line in capsys.readouterr().err


def test_a_wrong_field_is_found(call: Call) -> None:
    found = call("account", "--clients", "50", "--json", "-")
    validator("account").validate(found)
    lacking = {name: value for name, value in found.items() if name != "mu"}
    for wrong in (found | {"mu": "0.2"}, found | {"rounds": [{}]}, found | {"weakest_round": None}, lacking):
        with pytest.raises(jsonschema.ValidationError):
            validator("account").validate(wrong)


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        "account --clients 50 --statistic regression,histogram --dimension 2 --also laplace:0.1 --also gaussian:0.2",
        "account --clients 500 --epsilon 20 --statistic sum --dimension 200",
        "audit --clients 10 --tolerate 3 --rounds 2000",
        "emulate replay 17 --shrink-s 0",
        "emulate sweep --seeds 0..0 --shrink-s 0",
        "audit --protocol --clients 4 --tolerate 1 --rounds 100 --coalition computes=3",
    ],
)
def test_a_commands_output_fits_its_schema(call: Call, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of real actors run in this process: `tests/emulator/coalition/test_actors.py` has those in others."""
    monkeypatch.setattr(audit, "ActorRounds", lambda setting, random, *engine_and_plan: ActorRounds(setting, random))
    name, *rest = arguments.split()
    path = (name, rest[0]) if name == "emulate" else (name,)
    validator(*path).validate(call(name, *rest, "--json", "-"))
