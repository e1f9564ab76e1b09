"""Every option of every command: one name is one thing, has one type and, unless listed here, one help."""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import typer
from msgspec.structs import fields

from dca_proto.cli import GROUP, main
from dca_proto.cli import options as cli_options
from dca_proto.cli.job_settings import JobSettings
from dca_proto.jobs.plan import JobPlan
from dca_proto.privacy.accounting import DELTA
from dca_proto.protocol.terms import Terms, description_of
from dca_proto.runtime.request import RoundSettings
from emulator.claim import Claim
from emulator.swarm.options import SwarmOptions

SPECIFIC = {
    "--broker": {"broker", "federation deploy", "federation init"},  # which software; a machine; a URL; or either
    "--authority": {"federation init"},  # by default a new one
    "--clients": {
        "federation add-registrar",  # limits, as one command states them after the other
        "federation deploy",
        "federation init",  # created
        "scaling",  # a list
        "trainer",  # 0 for all
    },
    "--computes": {"federation init", "learn", "scaling", "trainer"},  # created; names; a list; names
    "--delta": {"audit", "ledger"},  # of a claim; of a total
    "--dimension": {"account", "audit", "fleet", "scaling"},  # columns or numbers; a list
    "--engine": {"audit"},  # with --protocol
    "--epsilon": {"audit"},  # of a claim
    "--federation": {"broker", "federation enrol"},  # read; the other commands replace it
    "--kind": {"learn"},  # by default it follows from the job
    "--name": {"federation deploy"},  # by default the folder's
    "--no-reference": {"report"},  # swarm also holds out no rows
    "--output": {"broker", "emulate run", "emulate replay", "emulate sweep", "federation enrol", "swarm"},  # a folder
    "--port": {"federation deploy"},  # also of its registrar
    "--processes": {"emulate sweep", "scaling"},  # of trials, actors, clients
    "--rounds": {"audit", "scaling"},  # of each world; of each cell
    "--seed": {"audit", "emulate run", "learn"},  # of keys; of a scenario; of draws
    "--statistic": {"account", "audit", "trainer"},  # several; those of an audit; one
    "--tolerate": {"scaling"},  # a list
    "--trainer": {"federation deploy"},  # a machine
}
"""By option, the commands whose help adds to, or replaces, the help that the option has elsewhere."""
LISTS = (
    {("account", "--statistic")}
    | {("scaling", name) for name in ("--clients", "--computes", "--dimension", "--tolerate")}
    | {(command, "--computes") for command in ("learn", "trainer")}
    | {("federation init", "--trainer")}
    | {(command, "--days") for command in ("federation enrol", "federation init")}
)
"""Options that take a list here and one value elsewhere, or parts of a day; a federation's Compute nodes have names."""


def options() -> Iterator[tuple[str, str, Any]]:
    """Every command's name, and the name and definition of each of its options."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        found = entry.load()
        app = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
        if app is not found:
            app.command(entry.name)(found)
        command: Any = typer.main.get_command(app)
        for name, one in {"": command, **getattr(command, "commands", {})}.items():  # a group may have options, too
            for option in one.params:
                if option.opts[0].startswith("-"):
                    yield f"{entry.name} {name}".strip(), option.opts[0], option


OPTIONS = [(command, name, option) for command, name, option in options() if name != "--help"]
BY_NAME: dict[str, dict[str, Any]] = defaultdict(dict)
for _command, _name, _option in OPTIONS:
    BY_NAME[_name][_command] = _option


def value_type(option: Any) -> str:
    """The type of an option's value, without "or none" and without limits."""
    return "flag" if option.is_flag else str(getattr(option.type_descriptor.annotation, "__name__", "list"))


def test_all_options_are_found() -> None:
    assert len(BY_NAME) > 80
    assert {"audit", "federation init", "swarm", "trainer"} <= {command for command, *_ in OPTIONS}


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_an_option_has_one_type_in_all_commands(name: str) -> None:
    kinds = {command: value_type(option) for command, option in BY_NAME[name].items() if (command, name) not in LISTS}
    assert len(set(kinds.values())) <= 1, kinds


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_an_option_has_one_help_in_all_commands(name: str) -> None:
    helps = {command: option.help for command, option in BY_NAME[name].items() if command not in SPECIFIC.get(name, ())}
    assert len(set(helps.values())) <= 1, helps
    assert all(option.help for option in BY_NAME[name].values())


def test_the_exceptions_are_needed() -> None:
    for name, commands in SPECIFIC.items():
        assert commands <= set(BY_NAME[name]), name
        others = {option.help for command, option in BY_NAME[name].items() if command not in commands}
        specific = {BY_NAME[name][command].help for command in commands}
        assert not specific & others, name
    for command, name in LISTS:
        assert command in BY_NAME[name]


def test_both_commands_that_limit_a_registrar_have_the_same_options() -> None:
    for name in ("--clients", "--per-day", "--days", "--for-days"):
        one, other = (BY_NAME[name][f"federation {command}"] for command in ("add-registrar", "deploy"))
        assert one.help == other.help
        least_and_most = [
            (each.type_descriptor.parameter_info.min, each.type_descriptor.parameter_info.max) for each in (one, other)
        ]
        assert least_and_most[0] == least_and_most[1]


def test_all_commands_have_the_same_default_delta() -> None:
    assert {option.default for option in BY_NAME["--delta"].values()} <= {DELTA, None}
    records = (JobPlan, SwarmOptions, Claim)
    assert {field.default for kind in records for field in fields(kind) if field.name == "delta"} == {DELTA}


@pytest.mark.parametrize(("command", "kind"), [("trainer", RoundSettings), ("learn", JobSettings)])
def test_each_term_of_a_round_is_an_option_with_its_help(command: str, kind: type[msgspec.Struct]) -> None:
    for field in fields(kind):
        if field.name in Terms.__struct_fields__:
            assert BY_NAME[f"--{field.name.replace('_', '-')}"][command].help == description_of(field.type)


@pytest.mark.parametrize("name", ["--json", "--plot", "--output"])
def test_outputs_are_files_and_folders(name: str) -> None:
    assert {value_type(option) for option in BY_NAME[name].values()} == {"str" if name == "--json" else "Path"}
    assert all(("Folder" in option.help) == (name == "--output") for option in BY_NAME[name].values())


def test_names_that_differ_by_a_letter_are_few() -> None:
    """A plural beside its singular is a member, and how many to create; or one bound, and bounds by column.

    A broker listens on a host; a deployment has hosts.
    """
    plurals = {name for name in BY_NAME if f"{name}s" in BY_NAME}
    assert plurals == {"--bound", "--compute", "--host", "--seed", "--trainer"}


def test_a_seed_of_keys_is_not_negative(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--seed", "-1"]) == 2
    assert "'--seed': Input should be greater than or equal to 0" in capsys.readouterr().err


GIVEN: dict[str, tuple[str, Any]] = {
    "bounds": ("age=0:120", {"age": [0.0, 120.0]}),
    "columns": ("age,bmi", ["age", "bmi"]),
    "computes": ("a,b", ["a", "b"]),
    "features": ("age,bmi", ["age", "bmi"]),
    "parameters": ("edges=[0,40]", {"edges": [0, 40]}),
    "target": ("age", "age"),
}
"""By field, a text of a parsed option, and what the command gets."""


@pytest.mark.parametrize("record", [RoundSettings, JobSettings])
def test_parsed_options_reach_the_command(record: type[msgspec.Struct]) -> None:
    found: list[dict[str, Any]] = []

    @cli_options.with_options(record)
    def command(chosen: cli_options.Chosen) -> None:
        found.append(chosen)

    app = typer.Typer(add_completion=False)
    app.command()(command)
    given = {name: value for name, value in GIVEN.items() if name in record.__struct_fields__}
    texts = [
        part for name, (text, _) in given.items() for part in (f"--{name.replace('parameters', 'parameter')}", text)
    ]
    typer.main.get_command(app).main(texts, standalone_mode=False)
    assert found == [{name: value for name, (_, value) in given.items()}]
