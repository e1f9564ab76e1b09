"""Hooks of the documentation site (mkdocs.yml): pages that stand beside the code, and the reference of commands.

`pip install -e '.[docs]'`, then `mkdocs build --strict`, makes the site. Its pages are those in docs/, the design
documents and the changelog as they stand in the checkout, and one page that is made from the commands themselves.
"""

from __future__ import annotations

import importlib
import inspect
import re
from importlib.metadata import entry_points
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from dca_proto.cli import GROUP, examples_of
from emulator.collusion import command as collusion

ROOT = Path(__file__).parents[1]
BESIDE_THE_CODE = {
    "README.md": "index.md",
    "dca_proto/DESIGN.md": "design/protocol.md",
    "dca_proto/PRIVACY.md": "design/privacy.md",
    "inference/DESIGN.md": "design/inference.md",
    "emulator/DESIGN.md": "design/emulator.md",
    "CHANGELOG.md": "changelog.md",
}
_COMMANDS = "reference/commands.md"
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in BESIDE_THE_CODE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, _COMMANDS, content=commands_page()))
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
        own = {name: one for name, one in group.commands.items() if name != "collude"}
        parts += [_command(f"dca {entry.name} {name}", one, "", "###") for name, one in own.items()]
    parts.append(_function("dca emulate collude", collusion.collude, collusion.EXAMPLES, "##"))  # imported by itself
    return "\n".join(parts)


def _function(name: str, function: Any, examples: str, heading: str) -> str:
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    return _command(name, typer.main.get_command(app), examples, heading)


def _command(name: str, command: Any, examples: str, heading: str) -> str:
    lines = [f"{heading} {name}\n", _escaped(inspect.cleandoc(command.help or "")), ""]
    lines += ["| argument or option | default | |", "| --- | --- | --- |"]
    for one in command.params:
        names = ", ".join(f"`{text}`" for text in one.opts) if one.param_type_name == "option" else f"`{one.name}`"
        default = "" if one.default is None or callable(one.default) else f"`{one.default}`"
        lines.append(f"| {names} | {default} | {_escaped(getattr(one, 'help', None) or '')} |")
    if examples:
        body = re.sub(r"\AExamples:\n+", "", inspect.cleandoc(examples))
        lines += ["", "```text", body, "```"]
    return "\n".join([*lines, ""])


def _exit_codes() -> str:
    """The table in the head of `dca_proto.cli`."""
    head = inspect.getdoc(importlib.import_module("dca_proto.cli")) or ""
    return "Exit codes:\n\n" + "\n".join(line for line in head.splitlines() if line.startswith("|")) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\b", "")
