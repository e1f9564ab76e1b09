"""The dashboard's door: who may ask, for what, what a browser may do, and what the stream sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from boards import Shown, ask, serving
from patience import PATIENCE_S
from status_samples import status_of

from dca_proto.cli import main
from dca_proto.dashboard import server
from dca_proto.dashboard.server import HEADERS, Board, Dashboard
from dca_proto.errors import StorageError
from dca_proto.runtime.listen import Listen


def path_of(board: Dashboard, page: str = "/") -> str:
    return f"{page}?{urlsplit(board.url).query}"


@pytest.fixture(scope="module")
def board() -> Iterator[Dashboard]:
    with serving(Shown(status_of(results=[]))) as one:
        yield one


@contextlib.contextmanager
def watching(board: Dashboard) -> Iterator[http.client.HTTPResponse]:
    asking = http.client.HTTPConnection(board.listen.host, board.listen.port, timeout=PATIENCE_S)
    asking.request("GET", path_of(board, "/events"))
    answer = asking.getresponse()
    try:
        yield answer
    finally:
        answer.close()
        asking.close()


def event(answer: http.client.HTTPResponse) -> dict[str, str]:
    """The next event; comments are skipped."""
    while not (line := answer.readline().decode()).startswith("data: "):
        assert line, "the stream has ended"
    found: dict[str, str] = json.loads(line[6:])
    return found


def test_whoever_has_the_address_reads_the_page(board: Dashboard) -> None:
    status, headers, text = ask(board, path_of(board))
    assert (status, "Federation wards" in text) == (200, True)
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert re.findall(r"<script(?! src=\"page.js\" defer>)|<style| style=| on\w+=", text) == [], "no inline code"
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", text) == ["page.css", "page.js", "#warnings"]


@pytest.mark.parametrize(("page", "kind"), [("/page.js", "text/javascript"), ("/page.css", "text/css")])
def test_script_and_style_are_no_secret(board: Dashboard, page: str, kind: str) -> None:
    status, headers, text = ask(board, page)
    assert (status, headers.get_content_type(), len(text) > 500) == (200, kind, True)
    assert headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("page", ["/", "/events"])
@pytest.mark.parametrize("token", ["", "?token=", "?token=x", "?token=%C3%A9", "?tok"])
def test_without_the_token_there_is_nothing(board: Dashboard, page: str, token: str) -> None:
    status, headers, text = ask(board, page + token)
    assert (status, "wards" in text) == (403, False)
    assert "Set-Cookie" not in headers


@pytest.mark.parametrize("page", ["/", "/page.js", "/page.css", "/events"])
@pytest.mark.parametrize(
    "host", ["rebound.example", "rebound.example:9460", "", "127.0.0.1.rebound.example", "192.0.2.1"]
)
def test_another_name_does_not_lead_here(board: Dashboard, page: str, host: str) -> None:
    """A page of another site may make its own name lead to this address."""
    status, _, text = ask(board, path_of(board, page), host=host)
    assert status in (400, 403)
    assert "wards" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(board: Dashboard, method: str) -> None:
    assert ask(board, path_of(board), method=method)[0] == 405


def test_other_paths_lead_nowhere(board: Dashboard) -> None:
    assert {ask(board, path_of(board, page))[0] for page in ("/docs", "/page.html", "/../view.py", "/page.js/")} == {
        404
    }


def test_the_stream_sends_all_and_then_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_S", 0.02)
    shown = Shown(status_of(results=[]))
    with serving(shown) as board, watching(board) as answer:
        first = event(answer)
        assert [*first][:3] == ["title", "badge", "warnings"]
        shown.actors, shown.stopped = [], ["lab.toml"]  # its actor stops
        gone = event(answer)
        assert "lab.toml: its actor does not run" in gone["warnings"]
        shown.actors, shown.stopped = [status_of(results=[])], []
        back = event(answer)
        assert back["actors"] == first["actors"]
        assert "certificates" in back


def test_a_look_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_S", 0.02)
    shown = Shown(status_of(results=[]))
    with serving(shown) as board, watching(board) as answer:
        event(answer)
        shown.actors = [None]  # type: ignore[list-item]
        shown.actors = [status_of(results=[], federation="others")]
        assert "Federation others" in event(answer)["title"]


def test_a_page_that_cannot_be_made_says_so_from_the_first_look_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_S", 0.02)
    shown = Shown()
    shown.actors = [None]  # type: ignore[list-item]
    with serving(shown) as board, watching(board) as answer:
        assert "this page: it could not be made" in event(answer)["warnings"]
        assert ask(board, path_of(board))[0] == 200
        shown.actors = [status_of(results=[], warnings=[])]
        assert "could not be made" not in event(answer)["warnings"]
        shown.actors = [None]  # type: ignore[list-item]
        last = event(answer)
        assert {*last} == {"badge", "warnings"}, "what is old stays"


def test_few_may_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_WATCHING_MAX", 1)
    with serving(Shown(status_of(results=[]))) as board, watching(board) as answer:
        event(answer)
        assert ask(board, path_of(board, "/events"))[0] == 503
        assert ask(board, path_of(board))[0] == 200


def test_two_dashboards_have_different_tokens_and_addresses() -> None:
    boards = [Dashboard(Board(Shown()), Listen("127.0.0.1", 0)) for _ in range(2)]
    tokens = {urlsplit(one.url).query for one in boards}
    assert len(tokens) == 2
    assert all(len(token) >= len("token=") + 32 for token in tokens)
    with pytest.raises(StorageError, match="cannot listen at"):
        Dashboard(Board(Shown()), boards[0].listen)
    for one in boards:
        one.close()


def test_what_others_reach_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "lab.toml", "--listen", "0.0.0.0:0"]) == 2
    assert "which other machines reach, expected a loopback address; --beyond-loopback" in capsys.readouterr().err


def test_a_dashboard_that_was_stopped_first_does_not_begin() -> None:
    board = Dashboard(Board(Shown()), Listen("127.0.0.1", 0))
    board.stop()
    running = threading.Thread(target=board.run, daemon=True)
    running.start()
    running.join(PATIENCE_S)
    assert not running.is_alive()


def test_who_watches_is_let_go_at_the_end(board: Dashboard, caplog: pytest.LogCaptureFixture) -> None:
    with serving(Shown(status_of(results=[]))) as ending, watching(ending) as answer:
        event(answer)
        ending.stop()
        while answer.readline():
            pass
    assert caplog.text == "", "nothing was cancelled"
