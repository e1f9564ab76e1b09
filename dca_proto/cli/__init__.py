"""The `dca` command. Sub-commands register themselves in the entry-point group ``dca.commands``.

Only the command that is called is imported. The list of `dca --help` is made without importing any: each line is the
first one of the function's docstring (or the module's, for a group of commands), read from the source. A command is a
function with typer's annotations, or a `typer.Typer`; its module may have `EXAMPLES`, a text (or one for each name)
that its --help (or -h) ends with. It returns nothing or an exit code, and raises this project's errors:

| exit code | when |
| --- | --- |
| 0 | done |
| 2 | a wrong call: `UsageError`, typer's own |
| 3 | a round was aborted by its own rules: `RoundAborted` |
| 4 | `dca audit` has refuted a claim, or `dca emulate` found an invariant broken |
| 5 | bad input, a file or its contents: `InputError`, `DataError` |
| 6 | the broker cannot be reached: `TransportError` |
| 7 | the broker refuses us: `LoginError` |
| 8 | a store or an output cannot be read or written: `StorageError` |
| 9 | a worker process has died, of `dca swarm`, `dca scaling` or `dca audit`: `WorkerDiedError` |
| 130 | Ctrl-C |
| 141 | nobody reads the output any more, as when it is piped into `head` |
| 143 | `dca trainer` or `dca learn` was ended by SIGTERM |
"""

from __future__ import annotations

import ast
import errno
import importlib.metadata
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import dca_proto
from dca_proto import __version__
from dca_proto.wording import nearest, to_install

GROUP = "dca.commands"
USAGE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_COMPLETION = ("--install-completion", "--show-completion")
_COMPLETE = "_DCA_COMPLETE"  # the shell asks how a line may go on
_OWN_LINE = 'PROJECT = "dca-proto"'  # of the packages below, whose names others use, too
_NEEDED = ("typer", "rich")  # by every command; --help and --version do without
_OPTIONAL = {"amqtt", "matplotlib", "scipy", "sklearn"}  # by some

_NEXT = """Examples:

  dca swarm                              learn from 442 patients' devices on this machine, privately
  dca federation init demo --computes 3 --clients 25 --broker mqtt://127.0.0.1
  dca client client.toml                 what a device runs
  dca learn trainer.toml                 learn from a federation's clients; goes on where it was after a kill
  dca emulate sweep --seeds 0..99        try the protocol in virtual time, under faults and adversaries
  dca COMMAND --help                     more about a command
  dca schema COMMAND                     the JSON schema of what its --json writes
  dca --install-completion               let your shell complete commands and options

Errors are one line; `dca --debug COMMAND ...` shows where they come from.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `dca`; the exit code.

    Args:
        arguments: by default those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        if (foreign := foreign_package()) is not None:
            return _fail(foreign)
        code = _dispatch(given)
        sys.stdout.flush()  # here, so that a reader that has gone is not taken for an error
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # what rich and click make of one
            return _unread()
        raise
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
        if debug:
            traceback.print_exc()
        return _fail(*failure)


def _unread() -> int:
    """Nobody reads the output any more; what is left of it goes nowhere, quietly."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _fail(line: str, code: int = USAGE) -> int:
    sys.stderr.write(f"dca: {line}\n")
    return code


def _dispatch(arguments: list[str]) -> int:
    commands = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    name, *rest = arguments or ["--help"]
    if name in _COMPLETION or _COMPLETE in os.environ:
        return _complete(commands, arguments)
    if name == "help" and rest:  # `dca help swarm` is `dca swarm --help`
        return _dispatch([*rest, "--help"])
    if name in ("--help", "-h", "help"):
        return _print_help(commands)
    if name == "schema":
        return _print_schema(commands, rest)
    if name == "--version":
        print(f"dca {__version__}")
        return 0
    if name not in commands:
        return _fail(f"{name!r} is not a command{nearest(name, commands)}; commands: {', '.join(sorted(commands))}")
    return _call(commands[name], rest)


def _print_help(commands: dict[str, EntryPoint]) -> int:
    width = max(map(len, commands), default=0)
    print("Usage: dca [--debug] COMMAND [ARGUMENTS]...\n")
    print("Differentially private sums and Bayesian learning on swarms of devices, over MQTT.\n\nCommands:\n")
    for name in sorted(commands):
        print(f"  {name:{width}}  {summary(commands[name])}")
    print(f"\n{_NEXT}", end="")
    return 0


def _print_schema(commands: dict[str, EntryPoint], path: list[str]) -> int:
    """The JSON schema of what ``dca PATH --json`` writes."""
    if not path or path[0] not in commands:
        hint = nearest(path[0], commands) if path else ""
        return _fail(f"schema needs the name of a command{hint}, as in: dca schema account; dca schema emulate sweep")
    output = output_of(commands[path[0]], path[-1])
    if output is None:
        return _fail(f"`dca {' '.join(path)}` has no option --json; see `dca {' '.join(path)} --help`")
    from dca_proto.cli.output import schema_of

    print(json.dumps(schema_of(output), indent=2))
    return 0


def output_of(entry: EntryPoint, name: str) -> Any:
    """What a command's --json writes: the type (or types, as of `schema_of`) in its module's `OUTPUT`; perhaps None.

    Args:
        name: of the command itself, or of one within its group.
    """
    entry.load()
    output = getattr(sys.modules[entry.module], "OUTPUT", None)
    found = output.get(name) if isinstance(output, dict) else output
    return (
        EntryPoint(name, found, GROUP).load() if isinstance(found, str) else found
    )  # a type in a module not yet needed


def summary(entry: EntryPoint) -> str:
    """The first line of a command's docstring, read without importing its module; empty where there is none."""
    spec = importlib.util.find_spec(entry.module)
    if spec is None or spec.origin is None:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == entry.attr]
    text = ast.get_docstring(functions[0] if functions else tree) or ""
    return text.partition("\n")[0]


def _call(entry: EntryPoint, arguments: list[str]) -> int:
    missing = " and ".join(name for name in _NEEDED if importlib.util.find_spec(name) is None)
    if missing:
        return _fail(f"commands need {missing}, not installed: {to_install('cli')}")
    import typer

    app = found = entry.load()
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(entry.name, epilog=verbatim(examples_of(entry)))(found)
    elif not arguments:
        arguments = ["--help"]
    return run_command(typer.main.get_command(app), f"dca {entry.name}", arguments)


def run_command(command: Any, name: str, arguments: list[str]) -> int:
    """Run a click command, or a group of them, under a name; the exit code. `-h` is `--help` in all of them."""
    both = ["-h", "--help"]
    result = command.main(args=arguments, prog_name=name, standalone_mode=False, help_option_names=both)
    return result if isinstance(result, int) else 0


def _complete(commands: dict[str, EntryPoint], arguments: list[str]) -> int:
    """Install or show the shell's completion, or say how a line may go on. Loads the command that the line names."""
    import typer

    words = " ".join(os.environ.get(one, "") for one in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")).split()
    whole = typer.Typer(name="dca")
    for name, entry in commands.items():
        found = entry.load() if name in words else lambda: None
        if isinstance(found, typer.Typer):
            whole.add_typer(found, name=name)
        else:
            whole.command(name, help=summary(entry))(found)
    result = typer.main.get_command(whole).main(args=arguments, prog_name="dca", standalone_mode=False)
    return result if isinstance(result, int) else 0


def examples_of(entry: EntryPoint) -> str:
    """The text that a command's help ends with; its module is imported already."""
    examples = getattr(sys.modules[entry.module], "EXAMPLES", "")
    return str(examples[entry.name] if isinstance(examples, dict) else examples)


def verbatim(text: str) -> str:
    """A help text whose lines are shown as they stand: each paragraph is marked so for click."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in text.strip("\n").split("\n\n"))


def explain(error: Exception) -> tuple[str, int] | None:
    """The line and the exit code of an error that is the caller's or the round's; None for a bug of ours."""
    from dca_proto.errors import DcaError, InputError, RoundAborted, StorageError
    from dca_proto.runtime.outcome import abort_line
    from inference.errors import DataError

    if isinstance(error, RoundAborted):
        return abort_line(error), error.exit_code
    if isinstance(error, DcaError):
        return str(error), error.exit_code
    if isinstance(error, DataError):
        return str(error), InputError.exit_code
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in _OPTIONAL:
        return f"this needs {error.name}, which is not installed: {to_install('full')}", USAGE
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        place = error.filename or "the output"
        return f"cannot write {place}: {error.strerror}; free space or name another place", StorageError.exit_code
    import typer  # here, for the errors above are explained without it, too

    if isinstance(error, typer.Abort):
        return "interrupted", INTERRUPTED
    click_exception = typer.BadParameter.__mro__[2]  # click's own base class, wherever typer keeps it
    if isinstance(error, click_exception):
        return _usage_line(error), USAGE
    return None


def _usage_line(error: Any) -> str:
    """A wrong call, as click words it, and where help is."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "dca"
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`" if message else f"see `{path} --help`"


def foreign_package() -> str | None:
    """What is wrong and what to do, where another project's `inference` or `emulator` would be imported; else None.

    Such a package comes first where its folder stands earlier on the path: in site-packages before an editable install,
    in the current folder under ``python -m``, or in PYTHONPATH. A wheel installed later replaces files in the same
    folder. So both count here, the place beside `dca_proto` and a line of the package's own. Imports neither.
    """
    beside = Path(dca_proto.__file__).resolve().parent.parent
    for name in ("inference", "emulator"):
        spec = importlib.util.find_spec(name)
        expected = beside / name / "__init__.py"
        found = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
        if found != expected or _OWN_LINE not in found.read_text(encoding="utf-8"):
            place = "no such package" if found is None else f"another project's, {found}"
            return (
                f"cannot use package {name!r}: found {place}, expected this project's, {expected}; install this "
                "project into an environment of its own (python -m venv), and start it where no other folder or file "
                f"is called {name}"
            )
    return None
