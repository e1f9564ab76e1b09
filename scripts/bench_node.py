#!/usr/bin/env python
"""Measures one Compute node with many sessions: production actor and store in a process of its own, synthetic load.

The load comes from the main process: Hellos, contributions, and the peers' lists and answers. It is cheap: clients
share few X25519 keys, and add no noise. Only the node is measured. Signatures cost the same however many sessions there
are, so only `--hellos` clients send a real Hello; the others' records are written into the store.

    sessions      the core time of a real Hello
    restart       reading and checking the store, and making the actor; memory afterwards
    contributions N/M of them, each with its first pair key
    answer        the lists of all N clients: checks, pair keys of all others, tags, masks, and the sum, which is
                  compared with the one that the load implies

Nothing passes a broker. Times are core time of the node's process, and wall time; with `--processes`, of its pool, too.

Examples:

    scripts/bench_node.py                                     100,000 sessions, d = 10, M = 3
    scripts/bench_node.py --clients 1000000 --json node.json
    scripts/bench_node.py --processes 2                       the pool of a Compute node
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import secrets
import tempfile
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from dca_proto.cli.progress import PatientBar
from dca_proto.crypto import sealing
from dca_proto.crypto.fixedpoint import ring_to_bytes
from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES, entry_of, holder_indices, tag_and_mask
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES, AgreementKey, Identity
from dca_proto.engine import cores, open_engine
from dca_proto.errors import UsageError
from dca_proto.protocol.announcement import open_announcement, open_answer, seal_list
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.contribution import make_contribution
from dca_proto.protocol.effects import Channel, Effect, Persist, Report, Send
from dca_proto.protocol.events import Received, Started
from dca_proto.protocol.facts import Dropped, NodeAborted, Released
from dca_proto.protocol.federation import enrol
from dca_proto.protocol.lists import list_hash
from dca_proto.protocol.pairing import pair_key
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.policy import Floors
from dca_proto.protocol.pool import Pool
from dca_proto.protocol.sessions import SESSIONS, Session, StoredSession
from dca_proto.protocol.wire import messages as m
from dca_proto.protocol.wire.codec import body_of, decode_frame, encode, sign
from dca_proto.runtime.files import STDOUT, write_json
from dca_proto.runtime.pool import ProcessPool
from dca_proto.runtime.runner import writes_of
from dca_proto.runtime.store import SqliteStore
from dca_proto.testing import NoNoise, TestFederation

NOW_MS = 1_700_000_000_000
BATCH, KEYS = 256, 64
FOREVER_MS = 1 << 52
Message = tuple[bytes, bytes]


class Node:
    """The node under test, in its process: number 0 of the federation."""

    def __init__(self, path: str, computes: int, processes: int) -> None:
        began, core_s = time.monotonic(), time.process_time()
        self._federation = federation_of(computes)
        self._loop = asyncio.new_event_loop()
        self._engine = open_engine()
        self._pool = Pool() if processes < 2 else ProcessPool(self._engine, processes, start_us=0)
        if isinstance(self._pool, ProcessPool):
            self._pool.wait()
        self._store = SqliteStore(Path(path), self._federation.compute_identities[0].store_key)
        self._actor = ComputeNode(
            self._federation.compute_identities[0],
            self._federation.federation,
            floors=Floors(clients_min=1, honest_min=1),
            random=secrets.token_bytes,
            records=self._store.load(),
            pool=self._pool,
        )
        effects = self._actor.handle(Started(), NOW_MS)
        self._commit(effects)
        self._sends = [one for one in effects if isinstance(one, Send)]
        self._started = {"wall_s": time.monotonic() - began, "core_s": time.process_time() - core_s, **memory()}

    def started(self) -> dict[str, float]:
        return self._started

    def sends(self) -> list[Send]:
        """Return the messages that the node sent when it started."""
        return self._sends

    def fill(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Write sessions into the store."""
        self._commit([Persist(SESSIONS, client, record) for client, record in records])

    def handle(self, messages: Sequence[Message]) -> tuple[float, float, int]:
        """Handle messages as the runner does; return core seconds, wall seconds, and how many were sent or reported."""
        began, core_s, effects = time.monotonic(), time.process_time(), 0
        for start in range(0, len(messages), BATCH):
            batch = messages[start : start + BATCH]
            self._actor.look_ahead(batch)
            done = [effect for one in batch for effect in self._actor.handle(Received(*one), NOW_MS)]
            self._commit(done)
            wrong = [
                one.fact for one in done if isinstance(one, Report) and isinstance(one.fact, (Dropped, NodeAborted))
            ]
            if wrong:
                raise UsageError(f"the node refused the load: {wrong[0]}")
            effects += sum(isinstance(effect, (Send, Report)) for effect in done)
        return time.process_time() - core_s, time.monotonic() - began, effects

    def release(self, messages: Sequence[Message]) -> tuple[dict[str, float], bytes]:
        """Handle the peers' lists and answers; return the figures, and the sealed partial sum."""
        began, core_s = time.monotonic(), time.process_time()
        done = [effect for one in messages for effect in self._actor.handle(Received(*one), NOW_MS)]
        handled_s = time.monotonic() - began
        self._commit(done)
        facts = [one.fact for one in done if isinstance(one, Report)]
        released = next((fact for fact in facts if isinstance(fact, Released)), None)
        if released is None:
            raise UsageError(f"the node released nothing: {facts}")
        (partial,) = [one for one in done if isinstance(one, Send) and one.to.channel is Channel.TRAINER]
        figures = {"wall_s": time.monotonic() - began, "handle_s": handled_s, "core_s": time.process_time() - core_s}
        return {**figures, "contributors": released.contributors, **memory()}, partial.payload

    def _commit(self, effects: Sequence[Effect]) -> None:
        writes = writes_of(effects)
        if writes:
            self._loop.run_until_complete(self._store.commit(writes))

    def close(self) -> None:
        if isinstance(self._pool, ProcessPool):
            self._pool.__exit__()
        self._loop.run_until_complete(self._store.close())
        self._loop.close()


def memory() -> dict[str, float]:
    """Return this process's resident memory and its peak, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "peak_rss_mb": peak_kib * 1024 / 1e6}


@lru_cache(maxsize=1)
def federation_of(computes: int) -> TestFederation:
    """Return the federation; all processes make the same keys."""
    return TestFederation(0, computes, name="bench")


class Load(NamedTuple):
    """Synthetic clients: ids, shape ``(N, 16)``, in which the first few are those of `identities`; and their keys."""

    actors: TestFederation
    ids: NDArray[np.uint8]
    identities: list[Identity]
    keys: list[AgreementKey]
    epoch: int
    expires_ms: int

    def id(self, place: int) -> bytes:
        return self.ids[place].tobytes()

    def key(self, place: int) -> AgreementKey:
        return self.keys[place % KEYS]

    def hellos(self, start: int, end: int) -> list[Message]:
        """Return real Hellos of the first clients."""
        federation, made = self.actors.federation, []
        for place in range(start, end):
            identity = self.identities[place]
            certificate = enrol(self.actors.authority, federation, identity.public_key, FOREVER_MS)
            public = self.key(place).public
            body = m.Hello(certificate, self.epoch, NOW_MS, public, self.expires_ms, federation.stamp)
            made.append((identity.id, encode(sign(identity, federation.id, body))))
        return made

    def records(self, start: int, end: int) -> list[tuple[bytes, bytes]]:
        """Return stored sessions of other clients."""
        made = []
        for place in range(start, end):
            session = Session(
                self.epoch, NOW_MS, secrets.token_bytes(32), self.key(place).public, self.expires_ms, FOREVER_MS
            )
            made.append((self.id(place), encode(StoredSession(place, session))))
        return made

    def pair_key(self, place: int, node: m.EpochKey) -> bytes:
        ends = ((self.id(place), self.epoch), (node.compute, node.epoch))
        return pair_key(self.key(place), node.public, self.actors.federation.id, *ends)


def make_load(clients: int, hellos: int, computes: int) -> Load:
    sealing._shared_point = lru_cache(sealing._shared_point)  # few keys here; only the node's agreements are measured
    epoch = NOW_MS // Timing().epoch_ms
    identities = [Identity(os.urandom(KEY_BYTES)) for _ in range(hellos)]
    ids = np.frombuffer(os.urandom(ID_BYTES * clients), dtype=np.uint8).reshape(-1, ID_BYTES).copy()
    for place, identity in enumerate(identities):
        ids[place] = np.frombuffer(identity.id, dtype=np.uint8)
    keys = [AgreementKey(os.urandom(KEY_BYTES)) for _ in range(KEYS)]
    return Load(federation_of(computes), ids, identities, keys, epoch, (epoch + 1) * Timing().epoch_ms)


class SyntheticClient(NamedTuple):
    """As much of an identity as a contribution needs."""

    id: bytes

    def hedged(self, label: bytes, message: bytes) -> bytes:
        return secrets.token_bytes(KEY_BYTES)


class RoundLoad:
    """The messages of one round, and the sum that they imply."""

    def __init__(self, load: Load, dimension: int, keys: list[m.Signed]) -> None:
        self.load, self._actors = load, load.actors
        self.reply = AgreementKey(os.urandom(KEY_BYTES))
        columns = [f"x{index}" for index in range(dimension)]
        parameters = {"columns": columns, "centre": [0.0] * dimension, "scale": [1.0] * dimension}
        clients = len(load.ids)
        request = self._actors.request(
            parameters={**parameters, "bound": [1.0] * dimension}, clients=clients, tolerate=clients // 10, epsilon=0.3
        )
        federation, trainer = self._actors.federation, self._actors.trainer_identity
        body = request.announcement(
            trainer.id,
            (federation.number, federation.hash),
            self._actors.mechanism,
            tuple(keys),
            self.reply.public,
            NOW_MS,
        )
        self.opened = open_announcement(sign(trainer, federation.id, body), federation, Limits())
        self._validated = self.opened.validated(self._actors.mechanism, Limits())
        self._holders = holder_indices(self.opened.hash, load.ids, len(keys))
        self._entries = np.zeros((clients, ENTRY_BYTES), dtype=np.uint8)
        self._tags = np.zeros((clients, TAG_BYTES), dtype=np.uint8)
        self.expected = np.zeros(dimension, dtype=np.uint64)

    @property
    def announcement(self) -> Message:
        return self._actors.trainer_identity.id, self.opened.payload

    def contributions(self, start: int, end: int) -> list[Message]:
        """Return the contributions to the node among some clients; note what the others sent to its peers."""
        made, opened, size = [], self.opened, len(self.expected)
        for place in range(start, end):
            client = self.load.id(place)
            is_held = self._holders[place] == 0
            nodes = opened.epochs if is_held else opened.epochs[:1]
            pair_keys = [self.load.pair_key(place, node) for node in nodes]
            contribution = secrets.token_bytes(ID_BYTES)
            if is_held:
                message = make_contribution(
                    np.zeros(size, dtype=np.int64),
                    validated=self._validated,
                    mechanism=NoNoise(),
                    identity=cast(Identity, SyntheticClient(client)),
                    hello=b"",
                    round_id=opened.body.round_id,
                    announcement_hash=opened.hash,
                    charge=1,
                    holder=opened.computes[0],
                    holder_key=pair_keys[0],
                    pair_keys=pair_keys,
                    random=secrets.token_bytes,
                )
                contribution = message.contribution
                made.append((client, message.payload))
            entry = entry_of(client, contribution, 1)
            words = [np.frombuffer(tag_and_mask(key, opened.hash, entry, size), dtype="<u8") for key in pair_keys]
            for mask in words[1:]:  # the node takes its own mask from those that it holds, and adds it to all
                self.expected -= mask[1:]
            if not is_held:
                self.expected += words[0][1:]
            self._entries[place] = np.frombuffer(entry, dtype=np.uint8)
            self._tags[place] = words[0][:1].view(np.uint8)
        return made

    def peers(self) -> list[Message]:
        """Return the lists and answers of the node's peers."""
        opened, federation = self.opened, self._actors.federation
        order = np.lexsort(self._entries[:, ID_BYTES - 1 :: -1].T)
        hashes, lists, answers = [], [], []
        for place, identity in enumerate(self._actors.compute_identities):
            own = order[self._holders[order] == place]
            entries, tags = self._entries[own].tobytes(), self._tags[own].tobytes()
            hashes.append(list_hash(opened.hash, identity.id, entries))
            header = sign(
                identity, federation.id, m.ListHeader(opened.body.round_id, opened.hash, hashes[-1], len(own))
            )
            body = m.FrozenList(opened.body.round_id, opened.computes[0], header, entries, tags)
            sealed = seal_list(
                sign(identity, federation.id, body), opened, opened.epochs[0].public, secrets.token_bytes
            )
            lists.append((identity.id, sealed))
        for identity in self._actors.compute_identities:
            body = m.Answer(opened.body.round_id, opened.hash, identity.id, tuple(hashes), b"")
            answers.append((identity.id, encode(sign(identity, federation.id, body))))
        return [*lists[1:], *answers[1:]]

    def check(self, payload: bytes, contributors: int) -> None:
        """Compare the node's partial sum with the expected one."""
        frame = decode_frame(payload)
        assert isinstance(frame, m.Sealed)
        partial = body_of(open_answer(frame, self.reply, self.opened.hash), m.PartialSum)
        assert contributors == partial.count == len(self.load.ids), "everybody is in the sum"
        assert partial.vector == ring_to_bytes(self.expected), "the sum is that of the load"


def epoch_keys(actors: TestFederation, sent: Sequence[Send]) -> list[m.Signed]:
    """Return the signed epoch keys of all nodes; the first one's is among its messages."""
    own = [*sent]
    for index in range(1, len(actors.compute_identities)):
        own += [one for one in actors.compute(index).handle(Started(), NOW_MS) if isinstance(one, Send)]
    frames = [decode_frame(one.payload) for one in own if one.to.channel is Channel.EPOCH]
    return [frame for frame in frames if isinstance(frame, m.Signed)]


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of one node."""
    clients, computes, hellos = options.clients, options.computes, min(options.hellos, options.clients)
    load = make_load(clients, hellos, computes)
    store, engine = folder / "node.db", open_engine()
    build = partial(Node, str(store), computes, options.processes)
    step = 8192
    bar = PatientBar(Console(stderr=True), 2 * clients, f"{clients:,} clients")

    def advance(start: int) -> tuple[int, int]:
        bar.advance(min(step, clients - start))
        return start, min(start + step, clients)

    with bar:
        with engine.worker(build, "the node") as node:
            core_s = wall_s = 0.0
            for start in range(0, hellos, step):
                one = node.call("handle", load.hellos(start, min(start + step, hellos)))
                core_s, wall_s = core_s + one[0], wall_s + one[1]
            for start in range(hellos, clients, step):
                node.call("fill", load.records(*advance(start)))
        sessions = {
            "hellos": hellos,
            "core_us": core_s / max(hellos, 1) * 1e6,
            "wall_us": wall_s / max(hellos, 1) * 1e6,
        }
        stored = sum(path.stat().st_size for path in folder.glob("node.db*")) / clients
        with engine.worker(build, "the node") as node:
            restart = node.call("started")
            load_of_round = RoundLoad(load, options.dimension, epoch_keys(load.actors, node.call("sends")))
            node.call("handle", [load_of_round.announcement])
            held, core_s, wall_s = 0, 0.0, 0.0
            for start in range(0, clients, step):
                messages = load_of_round.contributions(*advance(start))
                one = node.call("handle", messages)
                held, core_s, wall_s = held + len(messages), core_s + one[0], wall_s + one[1]
            contributions = {"held": held, "core_us": core_s / held * 1e6, "wall_us": wall_s / held * 1e6}
            answer, payload = node.call("release", load_of_round.peers())
            load_of_round.check(payload, int(answer["contributors"]))
    return {
        "clients": clients,
        "computes": computes,
        "dimension": options.dimension,
        "processes": options.processes,
        "sessions": sessions,
        "store_bytes_a_session": stored,
        "restart": restart,
        "rss_bytes_a_session": (restart["rss_mb"] - empty_mb(folder, computes)) * 1e6 / clients,
        "contributions": contributions,
        "answer": answer,
    }


def empty_mb(folder: Path, computes: int) -> float:
    """Return the memory of a node without sessions, in MB."""
    with open_engine().worker(partial(Node, str(folder / "empty.db"), computes, 1), "an empty node") as node:
        empty: float = node.call("started")["rss_mb"]
    return empty


def show(result: dict[str, Any]) -> None:
    """Print the figures."""
    restart, answer = result["restart"], result["answer"]
    print(f"N = {result['clients']:,}, M = {result['computes']}, d = {result['dimension']}", end="")
    print(f", processes {result['processes']}, on {cores()} cores" if result["processes"] > 1 else "")
    print(
        f"  a Hello        {result['sessions']['core_us']:8.0f} us core  {result['sessions']['wall_us']:8.0f} us wall"
    )
    print(f"  store          {result['store_bytes_a_session']:8.0f} bytes a session")
    print(f"  restart        {restart['core_s']:8.1f} s core   {restart['wall_s']:8.1f} s wall", end="")
    print(f"   {restart['rss_mb']:,.0f} MB, peak {restart['peak_rss_mb']:,.0f} MB")
    print(f"  memory         {result['rss_bytes_a_session']:8.0f} bytes a session")
    one = result["contributions"]
    print(f"  a contribution {one['core_us']:8.0f} us core  {one['wall_us']:8.0f} us wall   {one['held']:,} held")
    print(f"  lists, release {answer['core_s']:8.1f} s core   {answer['wall_s']:8.1f} s wall", end="")
    print(f"   peak {answer['peak_rss_mb']:,.0f} MB; the sum is right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000, help="N")
    parser.add_argument("--computes", type=int, default=3, help="M")
    parser.add_argument("--dimension", type=int, default=10, help="d")
    parser.add_argument("--hellos", type=int, default=5000, help="clients that send a real Hello")
    parser.add_argument("--processes", type=int, default=1, help="of the node's pool; 1 for none")
    parser.add_argument("--json", help="write the figures to this file, or - for standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    write_json(result, options.json)
    if options.json != STDOUT:
        show(result)


if __name__ == "__main__":
    main()
