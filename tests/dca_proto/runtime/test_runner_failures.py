"""A publish that fails for good ends the run, whatever the runner does at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from patience import PATIENCE_S
from runner_and_peer import PEER, RunnerAndPeer, settle

from dca_proto.errors import TransportError
from dca_proto.protocol.effects import Address, Channel, Effect, Persist, Send, Write
from dca_proto.protocol.events import Command, Event
from dca_proto.runtime.store import MemoryStore

Scenario = Callable[[RunnerAndPeer, "asyncio.Future[None]", "GatedStore"], Awaitable[None]]


class GatedStore(MemoryStore):
    """Commits when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = asyncio.Event()

    async def commit(self, writes: Sequence[Write]) -> None:
        await self.may_commit.wait()
        await super().commit(writes)


def answer(event: Event) -> Sequence[Effect]:
    if event == Command("send"):
        return [Send(Address(Channel.CLIENT, PEER), b"", b"fails later")]
    return [Persist("t", b"k", b"")] if event == Command("store") else ()


def play(scenario: Scenario) -> None:
    """Run a scenario with a runner whose one publish is under way. The run then ends with the error of that publish."""

    async def played() -> None:
        store, publish = GatedStore(), asyncio.get_running_loop().create_future()
        pair = RunnerAndPeer(answer, store)
        pair.runner.transport.publish = lambda *what: publish  # type: ignore[method-assign]
        running = asyncio.create_task(pair._run())
        await settle()
        pair.runner.command("send")
        await settle()
        assert pair.runner.pending == 1
        await scenario(pair, publish, store)
        with pytest.raises(TransportError, match="for good"):
            await running

    asyncio.run(asyncio.wait_for(played(), PATIENCE_S))


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_a_publish_that_fails_while_a_batch_is_stored_ends_the_run(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner slept until its next event, and raised the error only then."""
    monkeypatch.setattr(RunnerAndPeer, "is_shared", is_shared)

    async def scenario(pair: RunnerAndPeer, publish: asyncio.Future[None], store: GatedStore) -> None:
        pair.runner.command("store")
        await settle()
        publish.set_exception(TransportError("it failed for good"))
        await settle()
        store.may_commit.set()

    play(scenario)


def test_a_publish_that_fails_before_the_stop_ends_the_run_with_its_error() -> None:
    async def scenario(pair: RunnerAndPeer, publish: asyncio.Future[None], store: GatedStore) -> None:
        pair.runner.command("store")
        await settle()
        publish.set_exception(TransportError("it failed for good"))
        pair.runner.stop()
        store.may_commit.set()

    play(scenario)
