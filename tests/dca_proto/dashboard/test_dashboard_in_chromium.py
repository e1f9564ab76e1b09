"""The dashboard in headless Chromium: read at a glance, live, by keyboard, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from boards import Shown, serving
from chromium import Chromium
from page_faults import faults, measured, opened, pale, wait_for
from status_samples import HOSTILE, status_of

from dca_proto.dashboard import server
from dca_proto.dashboard.server import Dashboard

DESK, PHONE = 1280, 390
LIVE = "live.textContent === 'live'"


def actors(**known: object) -> Shown:
    client = status_of("client", name="ward-7", id="cd" * 16, sessions=None, results=[], warnings=[])
    node = status_of("compute", name="berlin", id="ef" * 16, results=[], connected=False, away_because="it is down")
    return Shown(client, node, status_of("trainer", name="lab"), **known)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with opened(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def shown() -> Shown:
    return actors(stopped=["paris.toml"])


@pytest.fixture
def board(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    monkeypatch.setattr(server, "_LOOK_S", 0.1)
    with serving(shown) as one:
        yield one


def text_of(chromium: Chromium, place: str = "body") -> str:
    found: str = chromium.evaluate(f"document.querySelector('{place}').innerText")
    return found.replace("\u00a0", " ")


def lines_of_dates(chromium: Chromium) -> set[int]:
    """On how many lines dates in tables stand, found by their text."""
    script = """(() => {
      const found = [], texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const node = texts.currentNode;
        if (!node.parentElement.closest('td') || node.parentElement.closest('details')) continue;
        for (const date of node.data.matchAll(/\\d{4}-\\d\\d-\\d\\d/g)) {
          const range = document.createRange();
          range.setStart(node, date.index);
          range.setEnd(node, date.index + 10);
          found.push(new Set([...range.getClientRects()].map(one => one.top)).size);
        }
      }
      return found;
    })()"""
    return set(chromium.evaluate(script))


@pytest.mark.long
def test_the_page_is_read_at_a_glance(chromium: Chromium, board: Dashboard) -> None:
    """Wide and narrow, light and dark: nothing is cut, too small or too pale; it loads its own files alone."""
    chromium.show(board.url, DESK, "light")
    wait_for(chromium, LIVE)
    for width in (DESK, PHONE):
        for scheme in ("light", "dark"):
            chromium.resize(width, scheme)
            assert faults(measured(chromium, width), width) == []
            assert pale(chromium) == []
            assert lines_of_dates(chromium) == {1}
    text = text_of(chromium)
    for says in ("3 warnings", "paris.toml: its actor does not run", "23 of 25", "Results", "away", "ε 1.25 of 4"):
        assert says in text
    sent = [
        one["params"]["request"]["url"].partition("?")[0] for one in chromium.events_of("Network.requestWillBeSent")
    ]
    own = f"http://{board.listen}/"
    assert set(sent) == {own, f"{own}page.css", f"{own}page.js", f"{own}events"}
    assert [one["params"]["entry"]["text"] for one in chromium.events_of("Log.entryAdded")] == []
    assert chromium.evaluate("document.title") == "3 warnings · Federation wards: 3 actors of 4 run"


@pytest.mark.long
def test_it_is_live_and_survives_that_an_actor_stops_and_starts(
    chromium: Chromium, board: Dashboard, shown: Shown
) -> None:
    chromium.show(board.url, PHONE, "dark")
    wait_for(chromium, LIVE)
    trainer = shown.actors.pop()
    shown.stopped = ["lab.toml"]
    wait_for(chromium, "warnings.innerText.includes('lab.toml: its actor does not run')")
    assert "temperature" in text_of(chromium, "#results"), "its results stay"
    assert "trainer lab" not in text_of(chromium, "#actors")
    shown.actors, shown.stopped = [trainer, *shown.actors], []
    wait_for(chromium, "actors.innerText.includes('trainer lab')")
    assert "lab.toml" not in text_of(chromium)
    assert faults(measured(chromium, PHONE), PHONE) == []


@pytest.mark.long
def test_it_says_when_the_dashboard_itself_has_ended(chromium: Chromium, board: Dashboard) -> None:
    chromium.show(board.url, DESK, "light")
    wait_for(chromium, LIVE)
    board.stop()
    wait_for(chromium, "live.textContent.startsWith('no connection to the dashboard')")
    assert pale(chromium) == []


@pytest.mark.long
def test_the_keyboard_reaches_everything_and_keeps_its_place(
    chromium: Chromium, board: Dashboard, shown: Shown
) -> None:
    chromium.show(board.url, DESK, "light")
    wait_for(chromium, LIVE)
    chromium.press("Tab")
    assert chromium.evaluate("document.activeElement.className") == "skip"
    assert chromium.evaluate("document.activeElement.getBoundingClientRect().left") >= 0, "it is seen"
    chromium.press("Enter")
    assert chromium.evaluate("document.activeElement.id") == "warnings"
    while chromium.evaluate("document.activeElement.tagName") != "SUMMARY":
        chromium.press("Tab")
        assert chromium.evaluate("document.activeElement !== document.body"), "before the last one"
    assert chromium.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    chromium.press("Enter")
    assert chromium.evaluate("document.activeElement.parentElement.open")
    shown.actors[0] = status_of("client", name="ward-7", id="cd" * 16, inbox=77)  # the list below changes
    wait_for(chromium, "actors.innerText.includes('77')")
    assert chromium.evaluate("document.activeElement.tagName") == "SUMMARY", "the focus has stayed"
    assert chromium.evaluate("document.activeElement.parentElement.open"), "and the list is still unfolded"


@pytest.mark.long
def test_hostile_texts_become_no_elements_and_no_code_runs(chromium: Chromium, board: Dashboard, shown: Shown) -> None:
    chromium.show(board.url, PHONE, "light")
    wait_for(chromium, LIVE)
    image = "<img src=x onerror=\"document.title = 'ran'\">"
    shown.actors = [status_of(name=HOSTILE, federation=image, warnings=[HOSTILE + image], dropped={image: 1})]
    wait_for(chromium, "warnings.innerText.includes('<script>')")
    assert chromium.evaluate("document.querySelectorAll('main script, img').length") == 0
    assert image in text_of(chromium, "h1")
    assert chromium.evaluate("document.title") != "ran"
    assert faults(measured(chromium, PHONE), PHONE) == []


@pytest.mark.long
def test_the_policy_stops_what_escaping_would_miss(chromium: Chromium, board: Dashboard) -> None:
    """Markup put in by hand, as if the escaping had a hole: nothing runs, and nothing is loaded or styled."""
    chromium.show(board.url, DESK, "light")
    wait_for(chromium, LIVE)
    hole = (
        "<script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"
        '<p id=hole style="color: rgb(1, 2, 3)">.</p>'
    )
    chromium.evaluate(f"put('phases', {hole!r})")
    wait_for(chromium, "document.getElementById('hole')")
    assert chromium.evaluate("getComputedStyle(hole).color") != "rgb(1, 2, 3)"
    assert chromium.evaluate("document.title") != "ran"


@pytest.mark.long
def test_the_measure_of_contrast_bites(chromium: Chromium, board: Dashboard) -> None:
    chromium.show(board.url, DESK, "light")
    wait_for(chromium, LIVE)
    chromium.evaluate("document.querySelector('h1').style.setProperty('color', '#999')")
    assert len(pale(chromium)) == 1
