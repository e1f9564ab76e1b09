"""Pages of `dca report` in headless Chromium: all is there, nothing is cut, overlaps or loads; light and dark, wide
and narrow."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from chromium import Chromium
from page_faults import faults, measured, opened
from report_samples import SAMPLES, swarm, sweep

from dca_proto.cli.report import report

DESK, PHONE = 1280, 390
FILES_OPEN = 80
SAYS = {
    "swarm": ("Learned from 336 of 342 clients", "second-moments", "agree", "points per kg/m²", "6.16 [0.2, 12.1]"),
    "aborted-swarm": ("No result", "300 clients contributed, 308 were needed"),
    "fleet": ("9,980 of 10,000 clients", "40,112", "trainer", "shared"),
    "iterative-swarm": ("bmi 6.16", "held-out AUC", "gradient ×13"),
    "learned": ("a 3.10 [0.9, 5.3] log odds", "held-out AUC", "38 of 40"),
    "trial": ("log-rank test p = 0.0012", "with 1 warning", "A band is 0.6 wide", "arm 1, private", "time (months)"),
    "emulation": ("nothing broken", "a round never hangs", "partition 1/1", "dca emulate replay 17"),
    "broken-emulation": ("Invariant 3 (exact sum) did not hold", "✗ broken"),
    "sweep": ("2 scenarios of 2,000", "torn-write", "dca emulate replay 812"),
    "coalition": ("does not cover this coalition", "which look random", "recovered in one round"),
    "scaling": ("d = 10,000", "100,000", "Table 1", "4.8", "clients (N)"),
    "audit": ("The claim of epsilon 1 stands", "threshold of the guess", "x' taken for x (false positives)"),
}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Many files are open while it starts: its pipes may not take the place of one."""
    with contextlib.ExitStack() as files:
        kept = [files.enter_context(Path(os.devnull).open("rb")) for _ in range(FILES_OPEN)]
        browser = files.enter_context(opened(tmp_path_factory.mktemp("profile")))
        assert {os.fstat(file.fileno()).st_rdev for file in kept} == {Path(os.devnull).stat().st_rdev}
        yield browser


def loaded(chromium: Chromium, page: Path) -> list[str]:
    """Addresses that were fetched beside the page itself; what the policy blocked was not."""
    blocked = {one["params"]["requestId"] for one in chromium.events_of("Network.loadingFailed")}
    sent = [one["params"] for one in chromium.events_of("Network.requestWillBeSent")]
    fetched = [one["request"]["url"] for one in sent if one["requestId"] not in blocked]
    return [address for address in fetched if address != page.as_uri()]


def require_picture(png: bytes, scheme: str) -> None:
    """Paper of the scheme's colour, and plenty of ink on it."""
    pixels = matplotlib.image.imread(io.BytesIO(png))[..., :3]
    paper = pixels[2, 2]
    assert (paper.mean() > 0.9) == (scheme == "light")
    ink = np.abs(pixels - paper).max(axis=2) > 0.3
    assert 0.01 < ink.mean() < 0.6
    assert len(set((pixels[ink] * 7).astype(np.uint8) @ np.array([64, 8, 1]))) > 20, "colours"


@pytest.mark.long
@pytest.mark.parametrize("name", SAYS)
def test_a_page_is_read_at_a_glance(name: str, chromium: Chromium, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(SAMPLES[name]()))
    report(path, None, None)
    page = path.with_suffix(".html")
    chromium.show(page, DESK, "light")
    for width, scheme in ((DESK, "light"), (PHONE, "dark")):
        chromium.resize(width, scheme)
        seen = measured(chromium, width)
        assert faults(seen, width) == []
        text = seen["text"].replace("\u00a0", " ")
        drawn = chromium.evaluate("[...document.querySelectorAll('svg text')].map(one => one.textContent).join(' ')")
        assert [phrase for phrase in SAYS[name] if phrase not in text and phrase not in drawn] == []
        require_picture(chromium.picture(), scheme)
    assert loaded(chromium, page) == []
    assert [one["params"]["entry"]["text"] for one in chromium.events_of("Log.entryAdded")] == []


def test_the_content_policy_blocks_foreign_content_in_a_page(chromium: Chromium, tmp_path: Path) -> None:
    """Markup put into the page by hand, as if the escaping had a hole: nothing runs, loads or is styled."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sweep()))
    report(path, None, None)
    page = path.with_suffix(".html")
    hole = (
        "<script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"
        '<img src="http://127.0.0.1:9/pixel"><p id="p" style="color: rgb(1, 2, 3)">'
        "<style>#p { background: rgb(4, 5, 6) }</style>"
    )
    page.write_text(page.read_text(encoding="utf-8").replace("<footer>", f"{hole}<footer>"), encoding="utf-8")
    chromium.show(page, DESK, "light")
    seen = chromium.evaluate(
        "[document.title, getComputedStyle(p).color, getComputedStyle(p).backgroundColor,"
        " document.querySelectorAll('script, img').length]"
    )
    assert seen[0] != "ran"
    assert seen[1] != "rgb(1, 2, 3)"
    assert seen[2] != "rgb(4, 5, 6)"
    assert seen[3] == 3, "the hole was one"
    assert loaded(chromium, page) == []


@pytest.mark.long
def test_hostile_texts_become_no_elements(chromium: Chromium, tmp_path: Path) -> None:
    run = swarm()
    run["rounds"][0]["name"] = run["broker"] = "<script>document.title = 'ran'</script><img src=x>"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    report(path, None, None)
    chromium.show(path.with_suffix(".html"), PHONE, "light")
    seen = measured(chromium, PHONE)
    assert seen["active"] == 0
    assert "<script>document.title" in seen["text"]
    assert faults(seen, PHONE) == []


@pytest.mark.long
def test_the_test_detects_a_bad_layout(chromium: Chromium, tmp_path: Path) -> None:
    """The measure bites: a wide page, two labels in one place, small print."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'><main><p id=wide>.</p>"
        "<svg><text x=20 y=20>one</text><text x=24 y=22>other</text></svg><small>print</small>"
        "<style>#wide { width: 900px } small { font-size: 8px }</style></main>"
    )
    chromium.show(page, PHONE, "light")
    found = faults(measured(chromium, PHONE), PHONE)
    assert "one / other" in found
    assert "text of 8 px" in found
    assert any("wide in a window of" in one for one in found)
    assert any('id="wide"' in one for one in found)


@pytest.mark.long
def test_the_test_detects_loaded_resources(chromium: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "loading.html"
    (tmp_path / "other.css").write_text("p { color: red }")
    page.write_text("<!doctype html><link rel=stylesheet href=other.css><p>text</p>")
    chromium.show(page, PHONE, "light")
    assert loaded(chromium, page) == [(tmp_path / "other.css").as_uri()]
