"""Gives an actor's status to Prometheus: each figure of `Status` that has a `Metric`, and no other.

    [metrics]
    listen = "127.0.0.1:9464"      # http://127.0.0.1:9464/metrics

Nothing is counted here: a request makes the same record as `dca status`, in the actor's own thread. The server has a
thread of its own, answers few at a time, and reads no more than the line and the headers of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import dca_proto
from dca_proto.errors import StorageError
from dca_proto.results.figure import Figure, figures_of
from dca_proto.results.status import PHASE_S, Durations, Status
from dca_proto.runtime.listen import Listen

log = structlog.get_logger("dca.metrics")
PREFIX = "dca_"
ABOUT = "actor"
"""The metric whose labels say whose the others are: ``dca_actor_info``."""
_ABOUT_FIELDS = ("role", "name", "id", "federation")
_ENDINGS = {"s": "_seconds", "bytes": "_bytes"}
_AT_ONCE, _PATIENCE_S = 4, 5.0
_VISIT_S = 15.0
"""A visit is cut after this time, however slowly its bytes come."""
_FAMILIES: dict[str, Any] = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


# --- from the record --------------------------------------------------------------------------------------------------


def metrics_of() -> dict[str, Figure]:
    """Return the figures that are metrics, by the metric's name as a query writes it."""
    return {_name(field, figure): figure for field, figure in figures_of(Status).items() if figure.metric is not None}


def _name(field: str, figure: Figure) -> str:
    assert figure.metric is not None, "a figure that is a metric"
    base = (figure.metric.name or field).removesuffix("_s" if figure.unit == "s" else f"_{figure.unit}")
    return f"{PREFIX}{base}{_ENDINGS.get(figure.unit, '')}{'_total' if figure.metric.kind == 'counter' else ''}"


def families_of(status: Status) -> Iterator[Metric]:
    """Yield a metric for each figure of an actor that has a value, from the record's fields."""
    about = {name: str(getattr(status, name)) for name in _ABOUT_FIELDS} | {"version": dca_proto.__version__}
    yield InfoMetricFamily(f"{PREFIX}{ABOUT}", "The actor.", value=about)
    for field, figure in figures_of(Status).items():
        if figure.metric is not None and (value := getattr(status, field)) is not None:
            yield _family(_name(field, figure), figure, value)


def _family(name: str, figure: Figure, value: Any) -> Metric:
    assert figure.metric is not None, "a figure that is a metric"
    kind, labels, text = (
        figure.metric.kind,
        figure.metric.labels,
        f"{figure.title[:1].upper()}{figure.title[1:]}: {figure.help}",
    )
    if kind == "histogram":
        found = HistogramMetricFamily(name, text, labels=labels)
        for keys, one in _rows(value, len(labels)):
            found.add_metric(keys, _buckets(one), one.total_s)
        return found
    family: Metric = _FAMILIES[kind](name, text, labels=labels)
    for keys, one in _rows(value, len(labels)):
        family.add_metric(keys, _number(one))  # type: ignore[attr-defined]
    return family


def _rows(value: Any, depth: int) -> Iterator[tuple[list[str], Any]]:
    """Yield the keys and the value of each entry in tables of this depth."""
    if not depth:
        yield [], value
        return
    for key, inner in value.items():
        for keys, one in _rows(inner, depth - 1):
            yield [key, *keys], one


def _number(value: Any) -> float:
    """Return a number as it is, and a time as Unix seconds."""
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else float(value)


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Return how many durations were at most each end of a bin."""
    ends = [*(f"{end:g}" for end in PHASE_S), "+Inf"]
    return list(zip(ends, map(float, itertools.accumulate(durations.counts)), strict=True))


# --- the server -------------------------------------------------------------------------------------------------------


class _OfStatus(Collector):
    """Makes the metrics from a new record at each request."""

    def __init__(self, make: Callable[[], Status]) -> None:
        self._make = make

    def collect(self) -> Iterable[Metric]:
        return families_of(self._make())


class _Handler(WSGIRequestHandler):
    """Logs nothing, and waits for nobody."""

    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """Answers few at a time; further ones are closed unanswered."""

    daemon_threads = True

    def __init__(self, listen: Listen) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__((listen.host, listen.port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        cut = threading.Timer(_VISIT_S, _cut, [request])
        cut.daemon = True
        cut.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            cut.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone, or was too slow."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has been closed
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.asynccontextmanager
async def serving(listen: Listen, make: Callable[[], Status]) -> AsyncIterator[Listen]:
    """Give metrics to whoever asks, until the context ends. Yields the address, with its port.

    Raises `StorageError` if the address cannot be had.
    """
    loop = asyncio.get_running_loop()

    async def made() -> Status:
        return make()

    def ask() -> Status:
        return asyncio.run_coroutine_threadsafe(made(), loop).result(_PATIENCE_S)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfStatus(ask))
    try:
        server = _Server(listen)
    except OSError as error:
        raise StorageError(f"[metrics] listen: cannot listen at {listen}: {error.strerror or error}") from None
    server.set_app(_guarded(make_wsgi_app(registry), listen))
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    at = Listen(listen.host, server.server_port)
    log.info("metrics", url=f"http://{at}/metrics")
    try:
        yield at
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


def _guarded(app: Any, listen: Listen) -> Any:
    """Return an application that answers requests to read `/metrics` at this address only."""

    def guarded(environ: dict[str, Any], start: Any) -> Any:
        if not listen.is_named_by(environ.get("HTTP_HOST", "")):
            return _refuse(start, "403 Forbidden", f"ask for the metrics by the address {listen}")
        if environ["REQUEST_METHOD"] != "GET" or environ["PATH_INFO"] not in ("/", "/metrics"):
            return _refuse(start, "404 Not Found", "the metrics are at /metrics")
        try:
            return app({**environ, "QUERY_STRING": ""}, start)
        except Exception as error:  # whatever the record leads to, or an actor that is busy for longer than patience
            log.warning("no metrics", error=type(error).__name__)
            return _refuse(start, "503 Service Unavailable", "the actor did not answer")

    return guarded


def _refuse(start: Any, status: str, why: str) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{why}\n".encode()]
