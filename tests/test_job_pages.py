"""docs/jobs has a page for each job of the registry: found, whole, true to the registry, and with a real example."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from functools import cache
from math import isclose
from pathlib import Path

import pytest

import make_job_pages
from inference.jobs import NAMES, find

ROOT = Path(__file__).parents[1]
SECTIONS = [
    "What it answers",
    "When to use another",
    "What you state",
    "An example",
    "What it means",
    "What one client can change",
    "What it costs",
    "What the warnings mean",
]
SYNTHETIC = ("simulated-trial",)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def text_of(name: str) -> str:
    page = ROOT / "docs" / "jobs" / f"{name}.md"
    assert page.exists(), f"job {name!r} has no page: write docs/jobs/{name}.md with the sections {', '.join(SECTIONS)}"
    return page.read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    _, *parts = re.split(r"(?m)^## (.+)\n", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def command_and_output(name: str) -> tuple[str, str]:
    found = re.findall(
        r"(?m)^<!-- not run: scripts/make_job_pages\.py .*-->\n```console\n\$ ((?:.*\\\n)*.*)\n((?:.*\n)*?)```$",
        text_of(name),
    )
    assert len(found) == 1, f"docs/jobs/{name}.md needs one example that scripts/make_job_pages.py runs"
    command, output = found[0]
    return command, output


@pytest.mark.parametrize("name", NAMES)
def test_a_job_has_a_page_in_the_navigation_with_all_sections(name: str) -> None:
    found = sections(text_of(name))
    assert [title for title in found if title in SECTIONS] == SECTIONS
    plain = {title: re.sub(r"<!--.*?-->", "", found[title]).strip() for title in SECTIONS}
    assert [title for title, text in plain.items() if len(text) < 40] == []
    assert f": jobs/{name}.md\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), "run scripts/make_diagrams.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_the_registry_knows(name: str) -> None:
    text = text_of(name)
    assert make_job_pages.with_facts(text, name) == text, "run scripts/make_job_pages.py"
    found, job = sections(text), find(name)
    for setting in fields(job.settings):
        assert re.search(rf"(?m)^- `{setting.name}\b", found["What you state"]), setting.name
        assert (f"`{setting.name}`" in found["What it costs"]) == (setting.name in job.changeable), setting.name
    reports = "report is private by itself" in " ".join(found["What one client can change"].split())
    assert reports == bool(job.mechanism(job.settings()))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_its_job_on_real_data(name: str) -> None:
    command, output = command_and_output(name)
    words = command.replace("\\\n", " ").split()
    assert "swarm" in words
    job = words[words.index("--job") + 1] if "--job" in words else NAMES[0]
    assert job == name
    assert "--dataset" in words or "--csv" in words, "the data set is named"
    assert not set(words) & set(SYNTHETIC), "real data"
    assert not {"--bounds-from-data", "--fast-noise"} & set(words), "private"
    assert "\nplan " in output
    assert "\nrounds\n" in output


@cache
def sentences() -> str:
    """The code that prints warnings, with its texts in one piece; a value in a text is §."""
    folders = (ROOT / "inference", ROOT / "dca_proto" / "statistics")
    code = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("*.py")))
    return re.sub(r"\{[^{}\"\n]*\}", "§", re.sub(r'"\s*\n\s*f?"', "", code))


@pytest.mark.parametrize("name", NAMES)
def test_the_warnings_that_a_page_quotes_are_printed_by_the_code(name: str) -> None:
    """A quote in italics is of one text; x, z and N stand for names and numbers."""
    text = " ".join(sections(text_of(name))["What the warnings mean"].split())
    quotes = re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", text)
    parts = [part.strip() for quote in quotes for part in re.split(r"\bx, z\b|\bx\b|\bN\b", quote)]
    assert parts
    assert [part for part in parts if part and part not in sentences()] == []


def test_lines_of_all_jobs_are_left_out_of_an_output() -> None:
    printed = """\
federation  9 clients,
            T = 1
plan        epsilon 2
rounds
round  values
─────────────
sum         2

3 held-out rows: not covered by epsilon
      private
─────────────
AUC       0.9

warning     noise
            hides x
spent       epsilon 2 of 2
files       run/result.json
"""
    kept = ["...", "plan        epsilon 2", "rounds", "round  values", "─────────────", "sum         2", ""]
    kept += ["...", "warning     noise", "            hides x", "..."]
    shown = make_job_pages.shortened(printed.splitlines())
    assert [line for line in shown if line] == [line for line in kept if line]


def agree(shown: str, printed: str, *, numbers: bool) -> bool:
    """Whether two outputs have the same words and, if asked, numbers that differ by rounding on other processors."""
    words = [re.sub(r"[\s─]+", " ", NUMBER.sub("#", text)).strip() for text in (shown, printed)]
    pairs = zip(*(NUMBER.findall(text) for text in (shown, printed)), strict=False)
    near = (isclose(*(float(one.replace(",", "")) for one in pair), rel_tol=0.02, abs_tol=0.002) for pair in pairs)
    return words[0] == words[1] and (not numbers or all(near))


def test_outputs_agree_up_to_rounding() -> None:
    shown = "mean  1.234 [1.1, 1.3]\n────\n"
    assert agree(shown, "mean  1.235 [1.1,  1.3]\n─────\n", numbers=True)
    assert not agree(shown, "mean  1.334 [1.1, 1.3]\n", numbers=True)
    assert agree(shown, "mean  1.334 [1.1, 1.3]\n", numbers=False)
    assert not agree(shown, "sd  1.234 [1.1, 1.3]\n", numbers=False)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_its_page_shows(name: str) -> None:
    command, output = command_and_output(name)
    if not make_job_pages.is_there(command):
        folder = os.environ.get("DCA_DATA") or "DCA_DATA, which is not set"
        pytest.skip(f"the example of {name} needs {make_job_pages.needs(command)} in {folder}")
    printed = "\n".join(make_job_pages.shortened(make_job_pages.printed(command).splitlines())) + "\n"
    sampled = "\nsampling " in output
    assert agree(output, printed, numbers=not sampled), f"run scripts/make_job_pages.py --examples {name}\n{printed}"
