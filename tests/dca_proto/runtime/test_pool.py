"""The pool of a Compute node: rounds are the same byte for byte with one process and with many, also if they die."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from structlog.testing import capture_logs

from dca_proto.crypto import sealing
from dca_proto.engine import Worker, WorkerDiedError, cores, open_engine
from dca_proto.errors import UsageError
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.compute.summands import MaskWork, ShareWork
from dca_proto.protocol.effects import Effect, Report, Send
from dca_proto.protocol.events import Event, Received, Started
from dca_proto.protocol.facts import Dropped, RoundCompleted
from dca_proto.protocol.federation import known_signer
from dca_proto.protocol.pairing import AgreeWork, CheckedHello, HelloWork, WaitingHello
from dca_proto.protocol.pool import PART_MAX, Pool
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode, sign
from dca_proto.protocol.wire.messages import Hello, Signed
from dca_proto.runtime import device
from dca_proto.runtime.config import ComputeFiles
from dca_proto.runtime.pool import PAYS_US, START_US, ProcessPool
from dca_proto.runtime.settings import convert
from dca_proto.testing import Network, TestFederation

NOW_MS = 1_700_000_000_000
SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(open_engine(), 2, start_us=0, pays_us=0) as many:
        many.wait()
        yield many


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children() if "resource_tracker" not in " ".join(one.cmdline())}


def squares(numbers: tuple[int, ...]) -> list[int]:
    return [number**2 for number in numbers]


def turned(text: bytes) -> bytes:
    return text[::-1]


def who(number: int) -> int:
    return os.getpid()


def dies_unless(pair: tuple[int, int]) -> int:
    """The square of a number; it takes any process with it but the given one."""
    parent, number = pair
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def fails(number: int) -> int:
    raise ValueError(f"no {number}")


def test_work_is_done_in_several_processes_and_comes_in_order(pool: ProcessPool) -> None:
    numbers = tuple(range(1000))
    found = list(pool.spread(squares, len(numbers), 1.0, lambda start, end: numbers[start:end]))
    assert len(found) > 2
    assert list(chain(*found)) == [number**2 for number in numbers]
    makers = set(pool.map(who, range(64)))
    assert os.getpid() not in makers
    assert makers <= children()


def test_an_error_of_the_work_is_raised_and_the_processes_go_on(pool: ProcessPool) -> None:
    with pytest.raises(RuntimeError, match=r"no 0|no 1"):
        pool.map(fails, range(2))
    assert pool.map(squares, [(3,), (4,)]) == [[9], [16]]


def waits(_: int) -> None:
    time.sleep(0.2)


@pytest.mark.long
def test_long_work_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else systemd's watchdog would end a node in the last step of a large round, again and again."""
    said: list[str] = []

    def sizes(pool: Pool, count: int, us: float) -> list[int]:
        said.clear()
        return list(pool.spread(len, count, us, range))

    here = Pool(lambda: said.append("alive"))
    assert sizes(here, 3 * PART_MAX + 1, 1.0) == [PART_MAX] * 3 + [1]
    assert len(said) == 3, "between them"
    assert sizes(here, 9, 250_000.0) == [4, 4, 1], "a second each"
    assert sizes(here, PART_MAX, 1.0) == [PART_MAX]
    assert not said
    files = ComputeFiles(identity=Path("a"), federation=Path("b"), store=Path("c"), processes=2)
    monkeypatch.setattr("dca_proto.runtime.pool._PART_S", 0.01)
    with device._pool(files, lambda: said.append("alive")) as pool:
        assert isinstance(pool, ProcessPool)
        pool.wait()
        pool.map(waits, range(2))
        assert said


def test_nothing_starts_before_there_is_enough_work() -> None:
    before = children()
    with ProcessPool(open_engine(), 2) as small:
        for _ in range(int(START_US / PAYS_US) - 1):
            assert not small.pays(1, PAYS_US)
        assert not small.pays(10**6, (PAYS_US - 1) / 10**6), "it is over before another process has it"
        assert children() == before
        small.pays(1, PAYS_US)
        assert children() > before
    assert children() == before
    with ProcessPool(open_engine(), 1, start_us=0, pays_us=0) as one:
        assert not one.pays(10**9, 1e6), "one process is the node's own"
        assert children() == before


@pytest.mark.long
def test_work_of_processes_that_die_is_done_here_and_others_take_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dca_proto.runtime.pool._DEATHS_MAX", 4)
    before = children()
    with ProcessPool(open_engine(), 2, start_us=0, pays_us=0) as pool, capture_logs() as logs:
        pool.wait()
        pairs = [(os.getpid(), number) for number in range(5)]
        assert pool.map(dies_unless, pairs) == [0, 1, 4, 9, 16]
        deaths = [line for line in logs if line["log_level"] == "error"]
        assert len(deaths) == 2, "one line for each"
        assert all("SIGKILL" in line["reason"] or "killed" in line["reason"] for line in deaths)
        assert not pool.pays(1, 1.0), "none is ready"
        pool.wait()
        assert pool.pays(1, 1.0)
        assert os.getpid() not in pool.map(who, range(8)), "others work"
        assert pool.map(dies_unless, pairs) == [0, 1, 4, 9, 16]
        pool.wait()
        assert not pool.pays(10, 1e6), "the machine is at fault"
        assert logs[-1]["then"] == "no more are started"
    assert children() == before


@pytest.mark.long
def test_on_a_cluster_every_message_but_the_first_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, seen = open_engine(), []
    monkeypatch.setattr(engine, "is_local", False)
    secret = b"the secret of an epoch, 32 bytes"
    with ProcessPool(engine, 2, start_us=0, pays_us=0) as pool:
        pool.wait()
        for process in pool._ready:
            call = process.worker.call

            def note(method: str, *arguments: object, call: Callable[..., object] = call) -> object:
                answer = call(method, *arguments)
                seen.append((method, pickle.dumps((arguments, answer))))
                return answer

            monkeypatch.setattr(process.worker, "call", note)
        assert pool.map(turned, [secret] * 4) == [secret[::-1]] * 4
    assert {method for method, _ in seen} == {"run_sealed"}
    assert len({sent for _, sent in seen}) == 4
    assert not any(part in sent for _, sent in seen for part in (secret, secret[::-1]))


class Crossed:
    """Gives each question the answer to the one before, as somebody in a cluster might."""

    def __init__(self, worker: Worker) -> None:
        self.call_it, self.last, self.end = worker.call, b"", worker.end

    def call(self, method: str, *arguments: bytes) -> object:
        answer, self.last = self.last or arguments[0], self.call_it(method, *arguments)
        return answer


@pytest.mark.long
def test_a_cluster_cannot_give_a_question_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    monkeypatch.setattr(engine, "is_local", False)
    with ProcessPool(engine, 2, start_us=0, pays_us=0) as pool, capture_logs() as logs:
        pool.wait()
        for process in pool._ready:
            process.worker = Crossed(process.worker)  # type: ignore[assignment]
        assert pool.map(turned, [b"abc", b"def", b"ghi"]) == [b"cba", b"fed", b"ihg"]
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["process died"] * 2
        assert "sent no answer to its question" in logs[-1]["reason"]


def test_a_node_works_on_where_no_process_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("dca_proto.engine.local.spawn", refuse)
    numbers = (1, 2, 3)
    with ProcessPool(open_engine(), 2, start_us=0, pays_us=0) as pool, capture_logs() as logs:
        for _ in range(9):
            assert list(pool.spread(squares, 3, 1.0, lambda start, end: numbers[start:end])) == [[1, 4, 9]]
    failed = [line for line in logs if line["event"] == "process died"]
    assert len(failed) == 5
    assert "no process of a Compute node's pool starts ([Errno 11]" in failed[0]["reason"]
    assert failed[-1]["then"] == "no more are started"


class Stuck(Worker):
    """A process of a full cluster: it starts only when it is ended."""

    def __init__(self) -> None:
        super().__init__("stuck", "")
        self.ended = threading.Event()

    def _call(self, method: str, arguments: tuple[object, ...]) -> tuple[object, str]:
        self.ended.wait()
        raise WorkerDiedError("ended")

    def end(self) -> None:
        self.ended.set()


def test_a_node_stops_while_processes_of_its_cluster_never_start(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, workers = open_engine(), [Stuck(), Stuck()]
    waiting = iter(workers)
    monkeypatch.setattr(engine, "worker", lambda *arguments: next(waiting))
    with ProcessPool(engine, 2, start_us=0, pays_us=0) as pool:
        assert not pool.pays(10, 1e6)
    assert all(worker.ended.is_set() for worker in workers)


@pytest.mark.parametrize("address", [None, "", "auto", "local"])
def test_a_node_gives_its_keys_to_no_cluster_that_it_finds(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    files = ComputeFiles(identity=Path("a"), federation=Path("b"), store=Path("c"), engine="ray")
    with pytest.raises(UsageError, match=r'engine = "ray" needs .* expected host:port'), device._pool(files):
        pass


@pytest.mark.parametrize(
    "wrong", [{"processes": -1}, {"processes": 1025}, {"processes": "all"}, {"engine": "slurm"}, {"engine": "ray:/x"}]
)
def test_a_wrong_pool_in_a_compute_nodes_file_is_refused(wrong: dict[str, object]) -> None:
    files = {"identity": "a", "federation": "b", "store": "c"}
    with pytest.raises(UsageError, match=next(iter(wrong))):
        convert("[compute]", {**files, **wrong}, ComputeFiles)


@pytest.mark.parametrize(("processes", "count"), [(0, cores()), (1, 0), (3, 3)])
def test_a_compute_nodes_file_states_its_processes(processes: int, count: int) -> None:
    files = ComputeFiles(identity=Path("a"), federation=Path("b"), store=Path("c"), processes=processes)
    with device._pool(files) as pool:
        assert (pool._count if isinstance(pool, ProcessPool) else 0) == count


# --- a node with it ---------------------------------------------------------------------------------------------------


class Looking(ComputeNode):
    """A node that sees each Hello ahead, as the runner shows them."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, Received):
            self.look_ahead([(event.sender, event.payload)])
        return super().handle(event, now_ms)


def a_round(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Network:
    """Two rounds, the second after a restart of a node."""
    monkeypatch.setattr("dca_proto.testing.ComputeNode", Looking)
    actors = TestFederation(10, 3, name="pool", pool=pool)
    network = actors.network()
    for restarts in (False, True):
        if restarts:
            network.restart(actors.computes[0])
        network.command(actors.trainer_identity.id, actors.request(clients=10, tolerate=2, epsilon=1.0))
        network.advance(network.now_ms + 3_600_000)
    return network


def test_rounds_are_the_same_byte_for_byte(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    here = a_round(Pool(), monkeypatch)
    used: list[str] = []
    spread = pool.map
    monkeypatch.setattr(pool, "map", lambda work, parts: (used.append(work.__name__), spread(work, parts))[1])
    there = a_round(pool, monkeypatch)
    assert set(used) == {"check_hellos", "agree_all", "summed"}, "all kinds of work were handed over"
    assert [one.payload for one in here.sent] == [one.payload for one in there.sent]
    assert here.stores == there.stores
    sums = [[one.aggregate.value.tobytes() for one in run.reported(RoundCompleted)] for run in (here, there)]  # type: ignore[attr-defined]
    assert sums[0] == sums[1]
    assert len(sums[0]) == 2
    assert repr(here.facts) == repr(there.facts)


def hellos(actors: TestFederation) -> list[tuple[bytes, bytes]]:
    """Each client's Hello, then forged ones of clients that have none, and what is no Hello."""
    sent = []
    for index in range(5):
        (hello,) = [one for one in actors.client(index).handle(Started(), NOW_MS) if hasattr(one, "payload")]
        sent.append((actors.clients[index], hello.payload))
    stranger = actors.client_identities[0]

    def changed(index: int, **changes: object) -> bytes:
        frame = decode_frame(sent[index][1])
        assert isinstance(frame, Signed)
        body = msgspec.structs.replace(decode_body(frame.body), **changes)
        return encode(sign(actors.client_identities[index], actors.federation.id, body))

    body = decode_body(decode_frame(sent[4][1]).body)  # type: ignore[union-attr]
    assert isinstance(body, Hello)
    forged = encode(sign(stranger, actors.federation.id, body))
    uncertified = msgspec.structs.replace(body.certificate, expires_ms=body.certificate.expires_ms - 1)
    bad = [
        (sent[4][0], forged),
        (sent[4][0], changed(4, certificate=uncertified)),
        (sent[4][0], changed(4, public=bytes(32))),
        (sent[3][0], sent[4][1]),
        (sent[4][0], sent[4][1][:-1]),
    ]
    return [*sent[:3], *bad, *sent[:1], *sent[3:]]


def outcomes(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[Effect]], int, list[bytes]]:
    """What a node does with these Hellos, how many signatures it checks by itself, and the pair keys."""
    actors = TestFederation(5, 1, name="hellos", pool=pool)
    node, batch = actors.compute(0), hellos(actors)
    node.handle(Started(), NOW_MS)
    checked: list[bytes] = []
    verify = sealing.verify
    for module in ("wire.codec", "federation"):
        name = f"dca_proto.protocol.{module}.verify"
        monkeypatch.setattr(name, lambda key, *rest: (checked.append(key), verify(key, *rest))[1])
    known_signer.cache_clear()
    node.look_ahead(batch)
    effects = [node.handle(Received(*one), NOW_MS) for one in batch]
    monkeypatch.undo()
    slots = np.arange(5)
    keys, valid = node._sessions.pair_keys(NOW_MS // 86_400_000, slots, NOW_MS)
    assert valid.all()
    return effects, len(checked), [key.tobytes() for key in keys]


def test_hellos_that_are_checked_ahead_have_the_same_outcome(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, checked_here, keys_here = outcomes(Pool(), monkeypatch)
    there, checked_there, keys_there = outcomes(pool, monkeypatch)
    assert here == there
    assert keys_here == keys_there
    facts = [one.fact for one in chain(*here) if isinstance(one, Report)]
    drops = [fact.code for fact in facts if isinstance(fact, Dropped)]
    assert drops == ["signature", "signature", "key", "sender", "malformed"]
    assert checked_here >= 10
    assert checked_there <= 4, "of those that a process refused, and no others"


class Here(Pool):
    """Work of any size pays, and is done here."""

    def pays(self, count: int, us: float) -> bool:
        return count > 0


def test_no_signature_is_checked_ahead_of_what_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = TestFederation(3, 1, name="ahead", pool=Here())
    node, checked = actors.compute(0), list[bytes]()
    node.handle(Started(), NOW_MS)
    verify = sealing.verify
    for module in ("wire.codec", "federation"):
        name = f"dca_proto.protocol.{module}.verify"
        monkeypatch.setattr(name, lambda key, *rest: (checked.append(key), verify(key, *rest))[1])

    def ahead(*messages: tuple[bytes, bytes]) -> int:
        known_signer.cache_clear()
        before = len(checked)
        node.look_ahead(messages)
        return len(checked) - before

    def hello(index: int, now_ms: int) -> tuple[bytes, bytes]:
        sent = actors.client(index).handle(Started(), now_ms)
        return next((actors.clients[index], one.payload) for one in sent if isinstance(one, Send))

    old, new, other = hello(0, NOW_MS), hello(0, NOW_MS + 1), hello(1, NOW_MS)
    assert ahead(new, new, new) == 2, "copies are one"
    assert ahead(new, other) == 2, "what still waits was checked"
    assert node.handle(Received(*new), NOW_MS)
    assert ahead(new) == ahead(old) == ahead(*[new] * 9) == 0, "known, or older"
    assert ahead((actors.clients[2], hello(1, NOW_MS + 5)[1])) == 0, "another client's"
    assert ahead(hello(0, NOW_MS + 9)) == 1, "its certificate is known"


@pytest.mark.long
def test_keys_that_were_agreed_on_ahead_go_with_their_epoch() -> None:
    actors = TestFederation(2, 1, name="ahead", pool=Here())
    node = actors.compute(0)
    node.handle(Started(), NOW_MS)
    (sent,) = [one for one in actors.client(0).handle(Started(), NOW_MS) if isinstance(one, Send)]
    node.look_ahead([(actors.clients[0], sent.payload)])
    assert len(node._sessions._ahead) == 1
    node.handle(Started(), NOW_MS + 3 * 86_400_000)
    assert not node._sessions._ahead


@pytest.mark.long
def test_no_secret_of_the_work_is_shown() -> None:
    secret, known = b"\xa5" * 32, b"\x5a" * 16
    shown = [
        repr(
            HelloWork(known, (known,), known, 1, secret, [WaitingHello(known, secret, secret, known, (0, 0, secret))])
        ),
        repr(CheckedHello(known, secret, known)),
        repr(AgreeWork(known, known, 1, secret, [(known, 1, secret)])),
        repr(MaskWork(secret, known, known, known, 1)),
        repr(ShareWork(secret, known, known, known, 1, None, secret, (secret,))),  # type: ignore[arg-type]
    ]
    for text in shown:
        assert "xa5" not in text


@pytest.mark.long
@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_script_that_measures_a_node_finds_the_right_sum(tmp_path: Path, processes: str) -> None:
    file = tmp_path / "node.json"
    arguments = ["--clients", "400", "--hellos", "40", "--processes", processes, "--json", str(file)]
    subprocess.run([sys.executable, SCRIPTS / "bench_node.py", *arguments], check=True, capture_output=True)
    found = json.loads(file.read_text())
    assert found["answer"]["contributors"] == 400, "it compares the sum itself"
    assert 70 < found["contributions"]["held"] < 210, "a third of 400, drawn from a hash; false alarm 1e-11"
    assert found["sessions"]["hellos"] == 40
