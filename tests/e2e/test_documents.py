"""README and docs/*.md do what they show: their own blocks are typed in order, with only the broker's port put in.

A block below the comment `<!-- not run: reason -->` is not typed, but its commands and options exist. A Python or TOML
block is saved under the name in its first line.
"""

from __future__ import annotations

import contextlib
import os
import pydoc
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from patience import PATIENCE_S
from ports import free_port

from dca_proto.cli import main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES[1:], *sorted(ROOT.glob("*/DESIGN.md")), ROOT / "dca_proto/PRIVACY.md"]
README_LINES_MAX, LINE_CHARS_MAX = 150, 100
COMMAND_S = 600
IN_THIS_ENVIRONMENT = {"./scripts/run": "dca swarm", ". .venv/bin/activate": ":"}
"""What is typed where a reader makes or enters an environment first."""
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
INTERVAL = rf"{NUMBER} \[{NUMBER}, {NUMBER}\]"
WILD = {r"\.\.\.": ".*", INTERVAL: ".+", NUMBER: NUMBER, " {2,}": " +"}
"""What a page shows, and what may stand there: anything, other numbers, columns that are wider or narrower."""


class Block(NamedTuple):
    """A fenced block: its language, its text, and whether it is marked as one that is not run."""

    language: str
    text: str
    is_skipped: bool

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """What a console block types, each with the lines of output below it."""
        if self.language != "console":
            return []
        parts = re.findall(r"(?m)^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", self.text)
        return [(command, list(filter(None, output.split("\n")))) for command, output in parts]


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """A page's blocks that have a language, in order."""
    found = re.findall(r"(?m)(^<!-- not run: .* -->\n)?^```(\w+)\n((?:.*\n)*?)```$", text_of(page))
    return tuple(Block(language, content, bool(mark)) for mark, language, content in found)


def typed(page: Path) -> list[Block]:
    """What is typed of a page, or saved for it."""
    chosen = [block for block in blocks(page) if not block.is_skipped]
    return chosen if any(block.commands for block in chosen) else []


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shown(line: str) -> str:
    """The pattern of a line of output that a page shows; see `WILD`."""
    parts = re.split(f"({'|'.join(WILD)})", line)
    patterns = (next((wild for token, wild in WILD.items() if re.fullmatch(token, part)), None) for part in parts)
    return "(?m)^" + "".join(wild or re.escape(part) for part, wild in zip(parts, patterns, strict=True)) + " *$"


class Shell:
    """A person at bash, who types a block and waits until it has printed what the page shows.

    Args:
        folder: where. port: of the broker, in place of the usual one; others are free ones.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._ports = {"1883": port, "8883": port, "9464": free_port(), "9460": free_port()}
        self._path = folder / "printed"
        self._count = 0
        programs = os.environ.get("DCA_PROGRAMS", Path(sys.executable).parent)  # of an environment with the wheel
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        with self._path.open("w") as printed:
            self._bash = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env={**os.environ, "PATH": path, "COLUMNS": "80"},
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self._path.read_text()

    def follow(self, block: Block) -> None:
        """Save a file under the name in its first line, or type a console block's commands one by one."""
        name = re.match(r"# ([a-z0-9_-]+\.(?:py|toml))\n", block.text)
        if name:
            (self._folder / name[1]).write_text(block.text)
        for command, lines in block.commands:
            self._type(command)
            for line in lines:
                self._wait_for(shown(self._with_port(line)))

    def _type(self, command: str) -> None:
        """Type it, and wait until it is done (or in the background) without an error."""
        assert self._bash.stdin is not None
        self._count += 1
        self._bash.stdin.write(f"{self._with_port(command)}\nprintf '\\n<%s: %s>\\n' {self._count} $?\n")
        self._bash.stdin.flush()
        code = self._wait_for(rf"(?m)^<{self._count}: (\d+)>$")[1]
        assert code == "0", f"{command} ended with {code}:\n{self.printed[-4000:]}"

    def _with_port(self, text: str) -> str:
        text = re.sub(r"mqtt://127\.0\.0\.1(:1883)?", "mqtt://127.0.0.1:1883", text)
        text = text.replace("dca broker", "dca broker --port 1883")
        text = re.sub(rf"\b({'|'.join(self._ports)})\b", lambda usual: str(self._ports[usual[0]]), text)
        for script, command in IN_THIS_ENVIRONMENT.items():
            text = text.replace(script, command)
        return text

    def _wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + COMMAND_S
        while not (found := re.search(pattern, self.printed)):
            assert self._bash.poll() is None, f"bash has ended:\n{self.printed[-4000:]}"
            assert time.monotonic() < deadline, f"{pattern} is not in:\n{self.printed[-8000:]}{self._log()}"
            time.sleep(0.05)  # between looks; nothing is timed
        return found

    def _log(self) -> str:
        log = self._folder / "demo" / "log"
        return log.read_text()[-2000:] if log.exists() else ""

    def close(self) -> None:
        """The end of input; whatever bash started is stopped, whatever happened."""
        assert self._bash.stdin is not None
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(self._bash.pid, signal.SIGTERM)
        try:
            self._bash.stdin.close()
            self._bash.wait(PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._bash.pid, signal.SIGKILL)


@contextlib.contextmanager
def opened_shell(folder: Path) -> Iterator[Shell]:
    """A shell in a folder that has a reader's own files, and the checkout's scripts and notebooks."""
    for name in ("scripts", "notebooks"):
        (folder / name).symlink_to(ROOT / name)
    rng = np.random.default_rng(3)
    houses, rooms = rng.uniform((1, 20, 5e4), (9, 300, 9e5), (60, 3)), rng.normal(21, 2, (60, 1))
    np.savetxt(folder / "houses.csv", houses, delimiter=",", header="rooms,area,price", comments="")
    np.savetxt(folder / "rooms.csv", rooms, delimiter=",", header="temperature", comments="")
    shell = Shell(folder, free_port())
    try:
        yield shell
    finally:
        shell.close()


def printed_by(page: Path, folder: Path) -> str:
    """Type a page's blocks in order; all that was printed."""
    with opened_shell(folder) as shell:
        for block in typed(page):
            shell.follow(block)
        printed = shell.printed
    assert "Traceback" not in printed
    return printed


def test_lines_that_end_processes_name_them_in_full() -> None:
    """A machine may have a folder of the same name that belongs to another federation."""
    broad = [
        f"{page.name}: {line}"
        for page in DOCUMENTS
        for line in text_of(page).splitlines()
        if re.search(r"\bkillall\b|\bpkill\b(?! -f \$PWD/)", line)
    ]
    assert not broad


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES[1:] if typed(page)], ids=name_of)
def test_blocks_can_be_followed_to_the_letter(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if any("--broker mosquitto" in block.text for block in typed(page)):
        request.getfixturevalue("mosquitto_installed")
    printed = printed_by(page, tmp_path)
    if page.stem == "devices":
        (groups,) = re.findall(r"^temperature: (-?[\d.]+) ± ([\d.]+)$", printed, re.MULTILINE)
        mean, noise = map(float, groups)
        temperatures = [18.5 + i % 5 for i in range(1, 25)] + [21.75]
        assert abs(mean - np.mean(temperatures)) < 6 * noise + 0.1  # fails by chance once in 10^9 runs
        assert noise < 0.2 * mean, "an answer that one can use"
        assert "[info" not in printed, "the library logs nothing between a program's results"


@pytest.mark.long
def test_the_readme_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    printed = printed_by(README, tmp_path)
    last_summary = printed[printed.rindex("\nmean") :]
    match = re.search(r"^ *temperature +(-?[\d.]+)", last_summary, re.MULTILINE)
    assert match is not None
    assert abs(float(match[1]) - 21) < 6 * 2 + 1, "the mean, within its noise; fails by chance once in 10^9 runs"


def test_the_readme_embeds_a_client_in_a_few_lines() -> None:
    section = text_of(README).split("\n## Embed a client\n")[1].split("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(program.splitlines()) <= 15


def test_the_readme_is_short() -> None:
    assert len(text_of(README).splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short(page: Path) -> None:
    assert [line for line in text_of(page).splitlines() if len(line) > LINE_CHARS_MAX] == []


@pytest.mark.parametrize("page", sorted({*DOCUMENTS} - {*PAGES}), ids=name_of)
def test_lines_outside_of_tables_are_short(page: Path) -> None:
    long = [line for line in text_of(page).splitlines() if len(line) > LINE_CHARS_MAX]
    assert [line for line in long if not line.startswith("|") and "-->" not in line] == []


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are made from their text; a repeated one has a number."""
    found: dict[str, int] = {}
    text = re.sub(r"(?ms)^```.*?^```$", "", text_of(page))
    for heading in re.findall(r"(?m)^#+ (.*)$", text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found)


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", text_of(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_commands_and_files_that_are_named_exist(page: Path) -> None:
    text = text_of(page)
    assert set(re.findall(r"\bdca ([a-z]+)\b", text)) <= commands()
    named = set(re.findall(r"(?<![\w./])(?:scripts|docs|dca_proto|emulator|inference|tests)/[\w/.-]*\w", text))
    for path in (path for path in named if "NAME" not in path):
        assert (ROOT / path).exists(), path


STANDS_FOR = re.compile(r"(?m)^::: (\S+)(?:\n +options: \{ members: \[([^]]*)\] \})?")
"""A line of a page that the site replaces by a docstring, and the members that it shows if not all."""


@pytest.mark.parametrize("page", [page for page in PAGES if STANDS_FOR.search(text_of(page))], ids=name_of)
def test_a_page_that_the_site_fills_in_says_how_to_read_it_in_a_checkout(page: Path) -> None:
    text = text_of(page)
    first = STANDS_FOR.search(text)
    assert first is not None
    for command in ("python -m pydoc NAME", "pip install -e '.[docs]'", "mkdocs serve"):
        assert command in text[: first.start()]
    if page.stem == "files":
        for name, _ in STANDS_FOR.findall(text):
            assert (getattr(pydoc.locate(name), "__doc__", None) or "").strip(), name


def test_programs_of_pages_import_names_that_the_reference_promises() -> None:
    promised: set[str] = set()
    for name, members in STANDS_FOR.findall(text_of(ROOT / "docs/reference/python.md")):
        promised |= {f"{name}.{member.strip()}" for member in members.split(",")} if members else {name}
    programs = [block.text for page in PAGES for block in blocks(page) if block.language == "python"]
    imports = re.findall(r"(?m)^from (dca_proto\.\S+) import (.+)$", "\n".join(programs))
    found = {(module, name.strip()) for module, names in imports for name in names.split(",")}
    assert ("dca_proto.protocol.facts", "Missed") in found
    assert [f"{module}.{name}" for module, name in found if not {module, f"{module}.{name}"} & promised] == []


def test_the_code_and_the_tests_of_every_privacy_claim_exist() -> None:
    text = text_of(ROOT / "dca_proto/PRIVACY.md")
    named = set(re.findall(r"`([a-z0-9_/]+\.py)`", text))
    assert len(named) > 60
    tests = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    code = {path for path in named if not path.startswith("test_")}
    assert [name for name in sorted(named - code) if name not in tests] == []
    assert [
        path for path in sorted(code) if not any((ROOT / folder / path).exists() for folder in ("dca_proto", "."))
    ] == []
    attacks = set(map(int, re.findall(r"attacks? (\d+)", text)))
    written = "".join(path.read_text(encoding="utf-8") for name, path in tests.items() if "_attacks_" in name)
    assert attacks <= set(map(int, re.findall(r"def test_attack_(\d+)_", written)))


def test_the_sections_of_designs_that_are_cited_exist() -> None:
    """Code, tests and documents cite sections of `dca_proto/DESIGN.md`, unless they name another design or are one."""
    designs = {name_of(path): text_of(path) for path in ROOT.glob("*/DESIGN.md")}
    sections = {name: set(re.findall(r"(?m)^(?:## |\*\*)§(\d+(?:\.\d+)?) ", text)) for name, text in designs.items()}
    texts = {path: text_of(path) for path in DOCUMENTS}
    for folder in ("dca_proto", "emulator", "inference", "scripts", "tests"):
        texts |= {path: path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")}
    wrong = []
    for path, text in texts.items():
        own = name_of(path) if name_of(path) in designs else "dca_proto/DESIGN.md"
        for design, section in re.findall(
            r"(?:((?:dca_proto|emulator|inference)/DESIGN\.md)`? )?§(\d+(?:\.\d+)?)", text
        ):
            if section not in sections[design or own]:
                wrong.append(f"{name_of(path)}: §{section}")
    assert wrong == []


@cache
def commands() -> frozenset[str]:
    return frozenset({"schema", *(entry.name for entry in entry_points(group="dca.commands"))})


def calls(page: Path, program: str) -> Iterator[tuple[str, set[str]]]:
    """What a page calls of a program, by a pattern: its words up to the first option, and all options."""
    for block in blocks(page):
        shown_only = re.findall(r"(?m)^((?:dca|python) (?:.*\\\n)*.*)$", block.text) if block.language == "text" else []
        for command in [*(command for command, _ in block.commands), *shown_only]:
            for call in re.split(r"&&|[;&|](?![^ ])", command.replace("\\\n", " ")):
                found = re.search(rf"(?:^|\s)({program})((?: [a-z]+(?:-[a-z]+)*\b(?![.=/]))?)(.*)$", call)
                if found:
                    yield found[1] + found[2], set(re.findall(r"(?<!\S)--[a-z][a-z-]*", found[3]))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_that_are_typed_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for called, options in calls(page, r"dca [a-z]+"):
        _, name, *sub = called.split()
        with contextlib.suppress(SystemExit):
            main([name, *(sub if name in ("broker", "emulate", "federation", "store") else []), "--help"])
        known = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", capsys.readouterr().out))
        assert options <= known, called


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if any(calls(page, r"\S*scripts/\w+\.py"))], ids=name_of)
def test_options_of_scripts_that_are_typed_exist(page: Path) -> None:
    for called, options in calls(page, r"\S*scripts/\w+\.py"):
        if options:
            arguments = [sys.executable, called.split()[0], "--help"]
            help_text = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout
            assert options <= set(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", help_text)), called


def test_no_text_installs_the_unrelated_package_dca() -> None:
    """The name `dca` on PyPI is another project's."""
    folders = ("dca_proto", "emulator", "inference", "scripts", "tests", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    stranger = re.compile(r"pip install [\"']?dca\b(?!-)")
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in [*files, *DOCUMENTS]}
    assert [name for name, text in texts.items() if stranger.search(text)] == []
