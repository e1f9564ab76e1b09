"""Where a running actor can be asked: the socket of `dca status`, and the metrics if its file names an address."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from dca_proto.errors import UsageError
from dca_proto.results.status import Status
from dca_proto.runtime.config import Config
from dca_proto.runtime.status import answering, status_path
from dca_proto.wording import to_install


@contextlib.asynccontextmanager
async def open_doors(config: Config, make: Callable[[], Status]) -> AsyncIterator[None]:
    """Answer whoever may ask with the record that `make` returns, until the context ends.

    Raises `UsageError` if the package for metrics is missing, or their address cannot be had.
    """
    async with contextlib.AsyncExitStack() as doors:
        if config.metrics is not None:
            await doors.enter_async_context(_serving()(config.metrics.address, make))
        await doors.enter_async_context(answering(status_path(config.files.store), make))
        yield


def _serving() -> Any:
    try:
        from dca_proto.runtime.metrics import serving
    except ModuleNotFoundError as error:
        raise UsageError(f"[metrics] needs {error.name}, which is not installed: {to_install('metrics')}") from None
    return serving
