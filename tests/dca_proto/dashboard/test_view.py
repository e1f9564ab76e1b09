"""What the dashboard shows of statuses: warnings first, every figure of a status, and texts as texts."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from pages import Outline
from status_samples import HOSTILE, status_of

from dca_proto.dashboard.memory import RESULTS_MAX, Memory
from dca_proto.dashboard.page import Renderer
from dca_proto.dashboard.view import view_of
from dca_proto.report import page as report_page
from dca_proto.report.tables import as_text
from dca_proto.results.figure import figures_of
from dca_proto.results.series import BEGUN, DONE, FAILED, SeriesEstimate, SeriesResult, SeriesSlot
from dca_proto.results.status import STATUS, LastRound, StatedResult, StatedValue, Status, Statuses

ACTORS = [
    status_of("client", name="ward-7", id="cd" * 16, sessions=None, results=[], warnings=[], last=None),
    status_of("compute", name="berlin", id="ef" * 16, epsilon_left=None, results=[], warnings=["its disk is full"]),
    status_of("trainer", name="lab"),
]


def sections_of(
    statuses: Statuses, *, memory: Memory | None = None, drawn: bool = False, **about: Any
) -> dict[str, str]:
    """The HTML of each section; charts, which are slow, are drawn on request."""
    known = memory or Memory()
    known.note(statuses.actors)
    renderer = Renderer()
    if drawn:
        return renderer.sections(view_of(statuses, known, **about))
    with patch.object(report_page, "svg", lambda chart, width, name: "<svg></svg>"):
        return renderer.sections(view_of(statuses, known, **about))


def words(html: str) -> str:
    return Outline(html).text


def test_what_needs_attention_comes_first_and_marks_the_page() -> None:
    found = sections_of(Statuses(actors=ACTORS, stopped=["paris.toml"], failed={"rome.toml": "its key is open"}))
    assert [*found][:3] == ["title", "badge", "warnings"]
    assert words(found["title"]) == "Federation wards: 3 actors of 5 run"
    assert words(found["badge"]) == "4 warnings"
    text = words(found["warnings"])
    for warning in (
        "paris.toml: its actor does not run",
        "rome.toml: its key is open",
        "compute berlin: its disk is full",
        "trainer lab: the TLS certificate lab.pem ends in 6 days: renew it",
    ):
        assert warning in text


def test_a_trainer_that_rests_is_no_warning() -> None:
    found = sections_of(Statuses(actors=ACTORS[:1], resting=["lab.toml"]))
    assert words(found["badge"]) == "all is well"
    assert words(found["title"]) == "Federation wards: 1 actor of 1 run, 1 trainer not at work"
    assert "lab.toml: not at work; a trainer ends with its job" in words(found["actors"])
    assert words(sections_of(Statuses(actors=ACTORS[:1], stopped=["lab.toml"]))["badge"]) == "1 warning"


def test_the_last_round_that_failed_needs_attention_for_an_hour_or_until_one_goes_well() -> None:
    def badge(*ends: tuple[str, str, bool]) -> str:
        rounds = [LastRound(at=f"2026-11-29T{at}Z", round_id=of * 32, what="too few", ok=ok) for at, of, ok in ends]
        actors = [
            status_of("compute", name=f"node-{number}", warnings=[], results=[], at="2026-11-29T06:00:00Z", last=last)
            for number, last in enumerate(rounds)
        ]
        found = sections_of(Statuses(actors=actors))
        warned = words(found["warnings"])
        assert ("1 warning" in words(found["badge"])) == ("round" in warned)
        return warned

    names = "(compute node-0, compute node-1)"
    warned = badge(("05:58:00", "a", False), ("05:58:01", "a", False), ("05:20:00", "b", True))
    assert f"round aaaaaaaa failed at 05:58:01 UTC: too few {names}" in warned
    assert "round bbbbbbbb failed" in badge(("05:40:00", "a", False), ("05:41:00", "b", False))
    for ends in (
        [("04:59:59", "a", False)],
        [("05:58:00", "a", False), ("05:59:00", "b", True)],
        [("05:58:00", "a", True)],
    ):
        assert "round" not in badge(*ends)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("rounds", "mean 3f2a91c0 trainer collecting, 1 Compute node collecting, 1 client collecting"),
        ("rounds", "23 of 25"),
        ("rounds", "ward-3 (0dcbcd97), ward-9 (91c03b6a)"),
        ("results", "mean temperature 21.5 and 2 other numbers"),
        ("results", "22.80 [22.02, 23.58]"),
        ("schedule", "daily mean trainer lab 212 of 365 3 2026-11-30 06:00:00 UTC 2027-04-30"),
        ("actors", "ε 1.25 of 4"),
        ("actors", "berlin (01020304) -0.25 s"),
        ("actors", "connected for 118 minutes"),
        ("phases", "collect 3"),
        ("dropped", "rounds completed all trainer lab 40"),
        ("dropped", "did not take part epsilon trainer lab 4"),
        ("dropped", "messages dropped malformed compute berlin 5"),
        ("dropped", "messages with data dropped no number compute berlin 7"),
        ("certificates", "2026-12-05 04:37:41 UTC in 5.9 days TLS certificate lab.pem"),
    ],
)
def test_each_section_says_what_it_is_for(section: str, says: str) -> None:
    assert says in words(sections_of(Statuses(actors=ACTORS))[section])


@pytest.mark.parametrize("field", [name for name, figure in figures_of(Status).items() if figure.table == STATUS])
def test_every_figure_of_a_status_is_on_the_page(field: str) -> None:
    status = status_of(away_because="the broker is down")
    rows = Outline(sections_of(Statuses(actors=[status]))["actors"]).rows
    figure = figures_of(Status)[field]
    assert [figure.title, as_text(getattr(status, field), figure.unit).replace("\u00a0", " ")] in rows


TIMES = ("at", "until", "data_read")
TABLES = ("ended", "declines", "dropped", "data_dropped", "clock_offset_s", "certificates", "phases")
"""Fields whose keys are texts."""


def hostile(value: Any, field: str = "") -> Any:
    """A record in which somebody else chose every text that is no time."""
    if isinstance(value, dict):
        inner = {name: one if field == "certificates" else hostile(one, name) for name, one in value.items()}
        is_record = field not in TABLES and not (value and all(isinstance(one, int) for one in value.values()))
        return inner if is_record else dict.fromkeys([HOSTILE], [*inner.values()][-1])
    if isinstance(value, list):
        return [hostile(one, field) for one in value]
    return HOSTILE if isinstance(value, str) and field not in TIMES else value


def test_a_text_is_never_markup() -> None:
    status = msgspec.convert(hostile(msgspec.to_builtins(status_of(away_because="x", connected=False))), Status)
    found = sections_of(Statuses(actors=[status], stopped=[HOSTILE], failed={f"b{HOSTILE}": HOSTILE}), drawn=True)
    for name, html in found.items():
        assert "script" not in Outline(html).elements, name
        assert "<script" not in html, name
    for name in ("title", "warnings", "rounds", "results", "actors", "dropped", "certificates"):
        assert HOSTILE in words(found[name]), f"{name} shows it as it is"


def test_a_page_without_actors_says_so() -> None:
    found = sections_of(Statuses(actors=[]))
    assert words(found["title"]) == "No actor runs: 0 actors of 0 run"
    assert found["results"] == found["phases"] == ""


def slot_of(day: int, **known: Any) -> SeriesSlot:
    """A slot of a day in November: 20 plus a tenth of the day, or a gap."""
    estimate = SeriesEstimate(
        name="mean", unit="°C", estimate=20 + day / 10, interval_95=[19.5 + day / 10, 20.5 + day / 10]
    )
    usual: dict[str, Any] = {"state": DONE, "result": SeriesResult(estimates=[estimate], contributors=day)}
    at_ms = 86_400_000 * (20_758 + day)
    return SeriesSlot(slot=f"2026-11-{day:02}", at_ms=at_ms, **{**usual, **known})


def test_the_series_of_standing_jobs_is_drawn_and_its_gaps_have_reasons() -> None:
    slots = [slot_of(day) for day in range(1, 17)]
    slots[9] = slot_of(10, state=FAILED, result=None, reason="only 3 clients answered")
    slots.append(slot_of(17, state=BEGUN, result=None))
    found = sections_of(Statuses(actors=[]), series={"daily mean": slots}, drawn=True)["schedule"]
    text = words(found)
    assert "daily mean: mean: 15 slots until 2026-11-16, with 95 % intervals; 1 gap." in text
    assert "2026-11-16 mean 21.60 [21.10, 22.10] °C 16" in text
    assert "2026-11-10 gap only 3 clients answered" in text
    assert "2026-11-17 runs now" in text
    assert "The last 14 of 17: dca results has all." in text
    assert "2026-11-03" not in text
    assert "mean (°C)" in found


def test_few_slots_and_unknown_estimates_are_listed_without_a_chart() -> None:
    nothing = SeriesResult(estimates=[SeriesEstimate(name="mean")])
    for slots in ([], [slot_of(1)], [slot_of(1, result=nothing), slot_of(2, result=SeriesResult(estimates=[]))]):
        found = sections_of(Statuses(actors=[]), series={HOSTILE: slots}, drawn=True)["schedule"]
        assert "<svg" not in found
        assert HOSTILE not in found


def result_of(number: int) -> StatedResult:
    return StatedResult(
        at=f"2026-11-29T{number // 60:02}:{number % 60:02}:00Z", round_id=f"{number:032x}", statistic="mean",
        contributors=25, outcomes=[StatedValue(label="x", value=float(number), noise_std=1.0)],
    )  # fmt: skip


def test_a_new_chart_beside_an_old_one_has_names_of_its_own() -> None:
    sums = [msgspec.structs.replace(result_of(number), statistic="sum") for number in range(10, 15)]
    memory, renderer = Memory(), Renderer()
    for results in ([*map(result_of, range(3)), *sums], [result_of(3)]):
        memory.note([status_of(results=results)])
        with patch.object(report_page, "svg", lambda chart, width, name: f'<svg id="{name}"></svg>'):
            html = renderer.sections(view_of(Statuses(actors=[status_of(results=[])]), memory))["results"]
        names = re.findall(r' id="([^"]+)"', html)
        assert len(names) == len({*names}) > 0
    assert html.count('class="desk"') == 2


def test_results_are_remembered_though_the_trainer_restarts() -> None:
    memory = Memory()
    memory.note([status_of(results=[result_of(1), result_of(2)])])
    memory.note([])
    memory.note([status_of(results=[result_of(3)])], [result_of(0), result_of(1)])
    assert [result.outcomes[0].value for result in memory.results] == [0, 1, 2, 3]
    assert {name: len(series) for name, series in memory.series().items()} == {"mean: x": 4}


def test_memory_is_bounded() -> None:
    memory = Memory()
    for number in range(RESULTS_MAX + 50):
        memory.note([status_of(results=[result_of(number)])])
    assert len(memory.results) == RESULTS_MAX
    assert memory.results[0] == result_of(50)


def test_a_chart_is_drawn_again_only_for_a_new_result() -> None:
    drawings: list[str] = []
    memory, renderer = Memory(), Renderer()
    with patch.object(report_page, "svg", lambda chart, width, name: drawings.append(name) or "<svg></svg>"):
        for results in ([1, 2], [1, 2], [1, 2, 3]):
            statuses = Statuses(actors=[status_of(results=[result_of(one) for one in results])])
            memory.note(statuses.actors)
            renderer.sections(view_of(statuses, memory))
    assert len(drawings) == 4, "two widths, twice"
