"""The `dca` command, which runs sub-commands from the entry-point group ``dca.commands``.

It imports only the command that is called. `dca --help` imports none: it reads the first line of each command's
docstring (of its module's, for a group) from the source. A command is a function with typer's annotations, or a
`typer.Typer`. Its help ends with its module's `EXAMPLES`: a text, or a dictionary of texts by command. A command
returns None or an exit code, and raises this project's errors:

| exit code | when |
| --- | --- |
| 0 | success |
| 1 | `dca status --check`: an actor needs attention or does not run |
| 2 | invalid call: `UsageError`, or an error of typer |
| 3 | a round of `dca trainer`, `dca learn` or `dca swarm` was aborted: `RoundAborted` |
| 4 | `dca audit` refuted a claim, or `dca emulate` found a broken invariant |
| 5 | bad input, a file, its contents, or columns, bounds or a job that do not fit them: `InputError`, `DataError` |
| 6 | the broker cannot be reached: `TransportError` |
| 7 | the broker refused the login: `LoginError` |
| 8 | a store or an output, also stdout, cannot be read or written: `StorageError` |
| 9 | a worker process of `dca swarm`, `dca scaling` or `dca audit` died: `WorkerDiedError` |
| 130 | Ctrl-C |
| 141 | the reader of stdout closed it, such as `head`; the command did all its work |
| 143 | SIGTERM ended `dca trainer`, `dca learn` or `dca swarm` |

A failed stream never ends a command early (`dca_proto.cli.streams`).
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
from dca_proto.cli.streams import guarded
from dca_proto.wording import nearest, shown, to_install

GROUP = "dca.commands"
USAGE, REFUTED, INTERRUPTED, BROKEN_PIPE = 2, 4, 130, 141
_NOT_WRITTEN = 8  # `StorageError.exit_code`
_OTHER_PLACE = "free space or name another place"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_COMPLETION = ("--install-completion", "--show-completion")
_COMPLETE = "_DCA_COMPLETE"  # set when the shell asks for completions
_OWN_LINE = 'PROJECT = "dca-proto"'  # marks our `inference` and `emulator`; other projects have packages of these names
_NEEDED = ("typer", "rich")  # for every command, but not for --help and --version
_OPTIONAL = {"cryptography", "iotcore", "matplotlib", "scipy", "segno", "sklearn"}  # for some commands

_NEXT = """Examples:

  dca swarm                              learn privately from 442 patients' data, on simulated devices
  dca federation init demo --computes 3 --clients 25 --broker mqtt://127.0.0.1
  dca client client.toml                 run a client, as on a device
  dca learn trainer.toml                 learn from a federation's clients; run it again to resume after a crash
  dca emulate sweep --seeds 0..99        test the protocol in virtual time, under faults and adversaries
  dca COMMAND --help                     help for a command
  dca schema COMMAND                     the JSON schema of the command's --json output
  dca --install-completion               install shell completion of commands and options

Errors are one line; `dca --debug COMMAND ...` adds the traceback.
"""

_SCHEMA_HELP = """Usage: dca schema COMMAND

Print the JSON schema of what the command writes with --json, as in: dca schema account; dca schema emulate sweep
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `dca` and return the exit code.

    Args:
        arguments: by default those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    with guarded() as output:
        code = _main([argument for argument in given if argument != "--debug"], debug)
        sys.stdout.flush()  # fails here, not at exit
        if (failure := output.failure) is None:
            return code
        if output.has_lost_its_reader:
            return code or BROKEN_PIPE
        return _fail(f"cannot write the output: {failure.strerror}; {_OTHER_PLACE}", code or _NOT_WRITTEN)


def _main(arguments: list[str], debug: bool) -> int:
    """Run a command, and return its exit code."""
    try:
        if (foreign := foreign_package()) is not None:
            return _fail(foreign)
        return _dispatch(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # of a file that the user named, such as /dev/stdout
        return BROKEN_PIPE
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
        if debug:
            traceback.print_exc()
        return _fail(*failure)


def _fail(line: str, code: int = USAGE) -> int:
    sys.stderr.write(f"dca: {shown(line)}\n".replace("\n", " ", line.count("\n")))
    return code


def _dispatch(arguments: list[str]) -> int:
    commands = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    name, *rest = arguments or ["--help"]
    if name in _COMPLETION or _COMPLETE in os.environ:
        return _complete(commands, arguments)
    if name == "help" and rest:  # `dca help swarm` means `dca swarm --help`
        return _dispatch([*rest, "--help"])
    if name in ("--help", "-h", "help"):
        return _print_help(commands)
    if name == "schema":
        return _print_schema(commands, rest)
    if name == "--version":
        print(dca_proto.version_line())
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
    """Print the JSON schema of the output of ``dca PATH --json``."""
    if {"-h", "--help"} & {*path}:
        print(_SCHEMA_HELP, end="")
        return 0
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
    """Return the type (or types, see `schema_of`) of a command's --json output, from its module's `OUTPUT`, or None.

    Args:
        name: the name of the command, or of a command in its group.
    """
    entry.load()
    output = getattr(sys.modules[entry.module], "OUTPUT", None)
    kind = output.get(name) if isinstance(output, dict) else output
    # A string names a type in a module that is not imported yet.
    return EntryPoint(name, kind, GROUP).load() if isinstance(kind, str) else kind


def summary(entry: EntryPoint) -> str:
    """Return the first line of a command's docstring without importing its module; empty if it has none."""
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

    app = command = entry.load()
    if not isinstance(command, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(entry.name, epilog=verbatim(examples_of(entry)))(command)
    elif not arguments and command.info.invoke_without_command is not True:
        arguments = ["--help"]
    return _run(app, f"dca {entry.name}", arguments)


def _run(app: Any, name: str, arguments: list[str]) -> int:
    """Run an application of typer under a name and return the exit code. `-h` means `--help`."""
    import typer

    command: Any = typer.main.get_command(app)
    options = ["-h", "--help"]
    result = command.main(args=arguments, prog_name=name, standalone_mode=False, help_option_names=options)
    return result if isinstance(result, int) else 0


def _complete(commands: dict[str, EntryPoint], arguments: list[str]) -> int:
    """Install or show the shell completion, or complete a line. Imports only the command that the line names."""
    import typer

    words = " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")).split()
    app = typer.Typer(name="dca")
    for name, entry in commands.items():
        command = entry.load() if name in words else lambda: None
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, help=summary(entry))(command)
    app.command("schema", help="Print the JSON schema of a command's --json output.")(lambda: None)
    return _run(app, "dca", arguments)


def examples_of(entry: EntryPoint) -> str:
    """Return the end of a command's help text; its module is already imported."""
    examples = getattr(sys.modules[entry.module], "EXAMPLES", "")
    return str(examples[entry.name] if isinstance(examples, dict) else examples)


def verbatim(text: str) -> str:
    """Mark each paragraph of a help text so that click does not rewrap its lines."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in text.strip("\n").split("\n\n"))


def explain(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code of an expected error; None for a bug."""
    from dca_proto.errors import DcaError, InputError, RoundAborted, StorageError
    from dca_proto.results.round import abort_line
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
        return f"cannot write {place}: {error.strerror}; {_OTHER_PLACE}", StorageError.exit_code
    import typer  # here, since the errors above can occur without it

    if isinstance(error, typer.Abort):
        return "interrupted", INTERRUPTED
    click_exception = typer.BadParameter.__mro__[2]  # click's base class, which typer may bundle
    if isinstance(error, click_exception):
        return _usage_line(error), USAGE
    return None


def _usage_line(error: Any) -> str:
    """Return click's message and the command that shows help."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "dca"
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`" if message else f"see `{path} --help`"


def foreign_package() -> str | None:
    """Return an error message if Python would import another project's `inference` or `emulator`; else None.

    Another package is found first if its folder comes earlier on the path: in site-packages before an editable install,
    in the current folder under ``python -m``, or in PYTHONPATH. A wheel installed later may overwrite files in the same
    folder. So this checks both the place beside `dca_proto` and a line in each package, without importing it.
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
                "project into a separate environment (python -m venv), and start it in a folder without another folder "
                f"or file called {name}"
            )
    return None
