"""Hooks of the documentation site (mkdocs.yml): they add the pages beside the code and the reference of commands.

`pip install -e '.[docs]'`, then `mkdocs build --strict`, builds the site. Its pages are those in docs/, the design
documents and the changelog from the checkout, and two that are generated from the commands: their options, and the
types of their JSON output.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from dca_proto.cli import GROUP, examples_of, output_of
from dca_proto.cli.output import schema_of

ROOT = Path(__file__).parents[1]
BESIDE_THE_CODE = {
    "README.md": "index.md",
    "dca_proto/DESIGN.md": "design/protocol.md",
    "dca_proto/PRIVACY.md": "design/privacy.md",
    "inference/DESIGN.md": "design/inference.md",
    "emulator/DESIGN.md": "design/emulator.md",
    "CHANGELOG.md": "changelog.md",
}
_COMMANDS, _JSON = "reference/commands.md", "reference/json.md"
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in BESIDE_THE_CODE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, _COMMANDS, content=commands_page()))
    files.append(File.generated(config, _JSON, content=json_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links between the checkout's documents at the site's pages; a link to a source file becomes its path."""
    there = {page: source for source, page in BESIDE_THE_CODE.items()}
    own = there.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def at_site(link: re.Match[str]) -> str:
        text, path, anchor = link[1], normpath(f"{dirname(own)}/{link[2]}").lstrip("/"), link[3] or ""
        target = BESIDE_THE_CODE.get(path) or path.removeprefix("docs/")
        if files.get_file_from_path(target) is None:
            return f"{text} (`{path}`)" if (ROOT / path).exists() else link[0]
        return f"[{text}]({relpath(target, dirname(page.file.src_uri) or '.')}{anchor})"

    return _LINK.sub(at_site, markdown)


def commands_page() -> str:
    """Every command with its arguments, options and examples, from the commands themselves."""
    parts = ["# Commands\n", _exit_codes()]
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        found = entry.load()
        if not isinstance(found, typer.Typer):
            parts.append(_function(f"dca {entry.name}", found, examples_of(entry), "##"))
            continue
        group: Any = typer.main.get_command(found)
        parts.append(f"## dca {entry.name}\n\n{inspect.cleandoc(group.help or '')}\n")
        for name, one in group.commands.items():
            parts.append(_command(f"dca {entry.name} {name}", one, "", "###"))
    return "\n".join(parts)


def _function(name: str, function: Any, examples: str, heading: str) -> str:
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    return _command(name, typer.main.get_command(app), examples, heading)


def _command(name: str, command: Any, examples: str, heading: str) -> str:
    lines = [f"{heading} {name}\n", _escaped(inspect.cleandoc(command.help or "")), ""]
    lines += ["| option | default | meaning |", "| --- | --- | --- |"]
    for one in command.params:
        names = ", ".join(f"`{text}`" for text in one.opts) if one.param_type_name == "option" else f"`{one.name}`"
        stated = getattr(one, "show_default", None)
        default = stated if isinstance(stated, str) else one.default
        default = "" if default is None or callable(default) else f"`{default}`"
        lines.append(f"| {names} | {default} | {_escaped(getattr(one, 'help', None) or '')} |")
    if examples:
        body = re.sub(r"\AExamples:\n+", "", inspect.cleandoc(examples))
        lines += ["", "```text", body, "```"]
    return "\n".join([*lines, ""])


def json_page() -> str:
    """The types of what each command writes with --json, and their fields."""
    parts = [
        "# Results as JSON\n",
        "Every command with `--json` writes one object or a list of objects. `dca schema COMMAND` prints its JSON "
        "schema, from which this page is made. Later versions may add fields. If a field is removed, the changelog "
        "lists it.\n",
    ]
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        found = entry.load()
        group: Any = typer.main.get_command(found) if isinstance(found, typer.Typer) else None
        for name in group.commands if group else [entry.name]:
            output = output_of(entry, name)
            if output is not None:
                words = f"dca {entry.name} {name}" if group else f"dca {name}"
                schema, place = schema_of(output), words.replace(" ", "-")
                of = ", ".join(_type(one, place) for one in schema.get("allOf", [schema]))
                parts.append(f"## {words}\n\n{of}\n")
                parts += [part for kind in schema["$defs"].items() for part in _record(*kind, place)]
    return "\n".join(parts)


def _record(name: str, schema: dict[str, Any], place: str) -> Iterator[str]:
    """The table of a type's fields."""
    yield f'### <a id="{place}-{name}"></a>{name}\n'
    yield f"```text\n{inspect.cleandoc(schema.get('description', ''))}\n```\n"
    yield "| field | type | | meaning |\n| --- | --- | --- | --- |"
    for field, kind in schema.get("properties", {}).items():
        need = "" if field in schema.get("required", ()) else "optional"
        unit = f" In {kind['unit']}." if "unit" in kind else ""
        yield f"| `{field}` | {_type(kind, place)} | {need} | {_escaped(kind.get('description', ''))}{unit} |"
    yield ""


def _type(schema: dict[str, Any], place: str) -> str:
    """A type in words, with links to the records of the command in that place."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{place}-{name})"
    if "anyOf" in schema:
        return " or ".join(_type(one, place) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        items = schema.get("items") or {}
        return f"list of {_type(items, place)}" if isinstance(items, dict) else "list"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'], place)}"
    return str(schema.get("type", "any value"))


def _exit_codes() -> str:
    """The table in the head of `dca_proto.cli`."""
    head = inspect.getdoc(importlib.import_module("dca_proto.cli")) or ""
    return "Exit codes:\n\n" + "\n".join(line for line in head.splitlines() if line.startswith("|")) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\b", "")
