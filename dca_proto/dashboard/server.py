"""The dashboard's door: a page, its script and style, and a stream of what has changed. Nobody can change anything.

A browser shows the page to whoever has its address, which contains a token. Others on the machine, and pages of other
sites, do not have it. A request has to name this address as its host, so that no other name can be made to lead here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dca_proto.dashboard.memory import Memory, Seen
from dca_proto.dashboard.page import POLICY, Renderer, script, style
from dca_proto.dashboard.view import view_of
from dca_proto.errors import StorageError
from dca_proto.results.status import Statuses
from dca_proto.runtime.listen import Listen

log = structlog.get_logger("dca.dashboard")
TOKEN_BYTES = 24
_LOOK_S, _ALIVE_S = 1.0, 15.0
_WATCHING_MAX, _CONNECTIONS_MAX = 16, 64
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Look = Callable[[], Seen]
"""Looks once. It is called in a thread."""
Handler = Callable[[Request], Awaitable[Response]]


class Board:
    """Looks at the actors once a second, and keeps the HTML of the page's sections.

    Args:
        look: see `Look`.
        watched: as of `view_of`.
    """

    def __init__(self, look: Look, watched: str = "") -> None:
        self._look, self._watched = look, watched
        self._memory, self._renderer = Memory(), Renderer()
        self._news = asyncio.Event()  # set, and replaced, when the sections change
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_looked = asyncio.Event()
        self._is_over = False
        self._watching = 0
        self.sections: dict[str, str] = {}

    async def refresh(self) -> None:
        """Look once, and tell those who watch if something has changed."""
        self._put(await asyncio.to_thread(self._made))

    def _put(self, made: dict[str, str]) -> None:
        if made != self.sections:
            self.sections = made
            news, self._news = self._news, asyncio.Event()
            news.set()

    def _failure(self, why: str) -> dict[str, str]:
        """Return the sections that say why a look failed; all of them before the first one that did not fail."""
        failed = {"this page": f"it could not be made, so all below is old: {why}"}
        found = Renderer().sections(view_of(Statuses(actors=[], failed=failed), Memory()))
        return {name: html for name, html in found.items() if not self.sections or name in ("badge", "warnings")}

    def end(self) -> None:
        """Let those who watch go. May be called in any thread."""
        self._is_over = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: self._news.set())

    def _made(self) -> dict[str, str]:
        seen = self._look()
        self._memory.note(seen.statuses.actors, seen.results)
        view = view_of(seen.statuses, self._memory, seen.series, watched=self._watched)
        return self._renderer.sections(view)

    async def run(self) -> None:
        """Look again and again, until cancelled. Why a look fails is logged when it changes."""
        self._loop = asyncio.get_running_loop()
        said = ""
        while True:
            try:
                await self.refresh()
            except Exception as error:  # whatever a statement of an actor of another version leads to
                if (why := f"{type(error).__name__}: {error}") != said:
                    log.warning("the dashboard cannot be made", error=why)
                    self._put({**self.sections, **self._failure(why)})
                said = why
            else:
                said = ""
            self._has_looked.set()
            await asyncio.sleep(_LOOK_S)

    async def wait_for_look(self) -> None:
        """Wait until the first look has ended."""
        await self._has_looked.wait()

    def page(self, token: str) -> str:
        """Return the whole page."""
        return self._renderer.page(self.sections, token)

    @property
    def has_room(self) -> bool:
        """True if one more may watch."""
        return self._watching < _WATCHING_MAX

    async def changes(self) -> AsyncIterator[str]:
        """Yield all sections, and then those that have changed, as server-sent events; now and then a comment."""
        self._watching += 1
        sent: dict[str, str] = {}
        try:
            while not self._is_over:
                news = self._news
                new = {name: html for name, html in self.sections.items() if sent.get(name) != html}
                sent = dict(self.sections)
                yield f"data: {json.dumps(new)}\n\n" if new else ": alive\n\n"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ALIVE_S):
                        await news.wait()
        finally:
            self._watching -= 1


class Door:
    """The application: it knows the address, the token and the board."""

    def __init__(self, board: Board, listen: Listen, token: str) -> None:
        self._board, self._listen, self._token = board, listen, token
        routes = {"/": self._page, "/page.js": self._script, "/page.css": self._style, "/events": self._events}
        self.app = Starlette(
            routes=[Route(path, self._checked(handler), methods=["GET"]) for path, handler in routes.items()],
            lifespan=self._living,
        )
        self.app.router.redirect_slashes = False

    @contextlib.asynccontextmanager
    async def _living(self, app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._board.run())
        await self._board.wait_for_look()
        yield
        looking.cancel()

    def _checked(self, handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            answer = (
                await handler(request) if self._is_host(request) else _refusal("ask by the address that was printed")
            )
            answer.headers.update(HEADERS)
            return answer

        return checked

    def _is_host(self, request: Request) -> bool:
        hosts = request.headers.getlist("host")
        return len(hosts) == 1 and self._listen.is_named_by(hosts[0])

    def _has_token(self, request: Request) -> bool:
        given = request.query_params.get("token", "")
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def _page(self, request: Request) -> Response:
        if not self._has_token(request):
            return _refusal("the address lacks its token; use the one that dca dashboard printed")
        return Response(self._board.page(self._token), media_type="text/html; charset=utf-8")

    async def _events(self, request: Request) -> Response:
        if not self._has_token(request):
            return _refusal("the address lacks its token")
        if not self._board.has_room:
            return PlainTextResponse("too many watch\n", 503)
        return StreamingResponse(self._board.changes(), media_type="text/event-stream")

    async def _script(self, request: Request) -> Response:
        return Response(script(), media_type="text/javascript; charset=utf-8")

    async def _style(self, request: Request) -> Response:
        return Response(style(), media_type="text/css; charset=utf-8")


def _refusal(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 403)


class _Server(uvicorn.Server):
    """Lets those who watch go before it waits for them."""

    def __init__(self, board: Board, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._board = board
        self.was_interrupted = False

    def leave(self) -> None:
        """Make the server end."""
        self._board.end()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Note Ctrl-C, which `Dashboard.run` raises: uvicorn would raise it within its loop, with a traceback."""
        self.force_exit = self.should_exit and sig == signal.SIGINT  # the second time
        self.was_interrupted = self.was_interrupted or sig == signal.SIGINT
        self.leave()


class Dashboard:
    """A dashboard that listens, but does not answer yet.

    Args:
        board: what to show. listen: where.

    Raises `StorageError` if the address cannot be had.
    """

    def __init__(self, board: Board, listen: Listen) -> None:
        self._socket = _listening(listen)
        self.listen = Listen(listen.host, self._socket.getsockname()[1])
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._board = board
        self._server: _Server | None = None
        self._is_stopped = False

    @property
    def url(self) -> str:
        """The page's address, with its token."""
        return f"http://{self.listen}/?token={self._token}"

    def run(self) -> None:
        """Answer until `stop`, SIGTERM, or Ctrl-C, which is raised again."""
        door = Door(self._board, self.listen, self._token)
        self._server = _Server(
            self._board,
            uvicorn.Config(
                door.app,
                log_config=None,
                access_log=False,
                http="h11",  # whose headers have a limit
                ws="none",
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_CONNECTIONS_MAX,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=1,
            ),
        )
        if self._is_stopped:
            self._socket.close()
            return
        self._server.run(sockets=[self._socket])
        if self._server.was_interrupted:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Answer in a thread, until the context ends."""
        thread = threading.Thread(target=self.run, name="dashboard", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join(5)

    def close(self) -> None:
        """Give up an address that was never answered at."""
        self._socket.close()

    def stop(self) -> None:
        """Make `run` return, or not begin."""
        self._is_stopped = True
        if self._server is not None:
            self._server.leave()


def _listening(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((listen.host, listen.port))
        made.listen(_CONNECTIONS_MAX)  # who comes before the first look waits for it
    except OSError as error:
        made.close()
        raise StorageError(f"--listen: cannot listen at {listen}: {error.strerror or error}") from None
    return made
