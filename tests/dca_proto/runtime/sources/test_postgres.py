"""A query of a real PostgreSQL, which the test starts; skipped visibly where it is not installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from patience import PATIENCE_S

from dca_proto.errors import InputError, UsageError
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.sources import Feed, read_source
from dca_proto.runtime.sources import postgres as module

pytestmark = pytest.mark.long
PASSWORD = "hunter2 'of\" three"
BROKER = BrokerSettings(url="mqtt://127.0.0.1")


class Server(NamedTuple):
    """A running PostgreSQL with one user, and how to send it a statement."""

    folder: Path
    port: int

    def table(self, query: str, **more: Any) -> dict[str, Any]:
        url = f"postgresql://reader@127.0.0.1:{self.port}/postgres"
        return {"postgres": url, "password_file": str(self.folder / "password"), "query": query, **more}

    def execute(self, statement: str) -> None:
        import psycopg

        given = {"host": "127.0.0.1", "port": self.port, "user": "reader", "password": PASSWORD, "dbname": "postgres"}
        with psycopg.connect(**given) as connection:  # type: ignore[arg-type]
            connection.execute(statement)  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt install postgresql)")
    user = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        if "postgres" not in [entry.pw_name for entry in pwd.getpwall()]:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    folder = Path(tempfile.mkdtemp(prefix="dca-postgres-"))
    binaries = Path(found).resolve().parent
    try:
        (folder / "password").write_text(PASSWORD + "\n")
        (folder / "password").chmod(0o600)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres", "postgres")
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
        subprocess.run(
            [binaries / "initdb", "-D", "data", "-U", "reader", "-A", "scram-sha-256", "--pwfile=password", "-N"],
            check=True,
            **quiet,
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [binaries / "postgres", "-D", "data", "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]
        with subprocess.Popen(command, **quiet) as process:
            try:
                started = Server(folder, port)
                _wait(started, process)
                yield started
            finally:
                process.terminate()
    finally:
        shutil.rmtree(folder)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            server.execute("CREATE TABLE readings (time timestamptz, x numeric, note text)")
        except psycopg.OperationalError:
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.05)
        else:
            return


@pytest.fixture(autouse=True)
def _fresh(server: Server) -> None:
    server.execute("TRUNCATE readings")
    server.execute("INSERT INTO readings VALUES (now(), 20.5, 'Alice'), (now() - interval '2 hours', 99, NULL)")


QUERY = "SELECT x FROM readings WHERE time >= to_timestamp(%(since)s)"


def opened(table: dict[str, Any]) -> Feed:
    return read_source(table, Path(), BROKER).open()


def test_a_query_is_asked_again_before_each_round(server: Server) -> None:
    feed = opened(server.table(QUERY, window_s=3600))
    assert feed.columns == ("x",)
    assert feed.rows(("x",)).tolist() == [[20.5]]
    server.execute("UPDATE readings SET x = x + 1")
    feed.refresh()
    assert feed.rows(("x",)).tolist() == [[21.5]]
    server.execute("DROP TABLE readings")
    feed.refresh()
    with pytest.raises(UsageError, match='relation "readings" does not exist'):
        feed.rows(("x",))
    server.execute("CREATE TABLE readings (time timestamptz, x numeric, note text)")
    server.execute("INSERT INTO readings VALUES (now(), 3, NULL)")
    feed.refresh()
    assert feed.rows(("x",)).tolist() == [[3]]


QUERIES = {
    "SELEKT 1": "syntax error",
    "SELECT nothing FROM readings": 'column "nothing" does not exist',
    "DELETE FROM readings": "syntax error",
    "SELECT 1; DELETE FROM readings": "multiple commands|cannot insert",
    "WITH d AS (DELETE FROM readings RETURNING x) SELECT x FROM d": "FeatureNotSupported",
    "SELECT setval('s', 3) AS x": "does not exist",
    "SELECT x, x FROM readings": "named twice",
    "SELECT generate_series(1, 1000000000) AS x": "more than 100 rows",
    "SELECT 1 AS x FROM pg_sleep(60)": "QueryCanceled|within 1 s",
    "SELECT note::int AS x FROM readings": r"InvalidTextRepresentation \(22P02\)",
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_only_reads_and_ends(server: Server, query: str) -> None:
    with pytest.raises(UsageError, match=QUERIES[query]) as caught:
        opened(server.table(query, rows_max=100, timeout_s=1))
    assert "Alice" not in str(caught.value), "an error of the server may quote a value"
    assert PASSWORD not in str(caught.value)
    assert opened(server.table("SELECT count(*) AS n FROM readings")).rows(("n",)).tolist() == [[2]]


def test_a_server_that_cannot_be_reached_or_refuses_is_named_without_the_password(server: Server) -> None:
    wrong = server.folder / "wrong"
    wrong.write_text("swordfish")
    wrong.chmod(0o600)
    with pytest.raises(UsageError, match=r"cannot be reached: .*password authentication failed") as caught:
        opened(server.table(QUERY, window_s=60) | {"password_file": str(wrong)})
    assert "swordfish" not in str(caught.value)
    wrong.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        opened(server.table(QUERY, window_s=60) | {"password_file": str(wrong)})
    with pytest.raises(UsageError, match="cannot be reached"):
        opened(server.table("SELECT 1 AS x") | {"postgres": "postgresql://reader@127.0.0.1:1/postgres"})


def test_tls_is_required_of_another_machine(server: Server) -> None:
    """This server has none, so it is refused before it hears a password."""
    with pytest.raises(UsageError, match="does not support SSL"):
        opened(server.table("SELECT 1 AS x", tls=True))
    assert module._is_here("127.0.0.1")
    assert module._is_here("localhost")
    assert module._is_here("::1")
    assert not module._is_here("db.example")
    assert not module._is_here("192.168.1.5")
