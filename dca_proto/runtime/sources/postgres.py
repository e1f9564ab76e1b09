"""A query of a PostgreSQL database. Needs the extra ``postgres`` (psycopg)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from dca_proto.errors import InputError, UsageError
from dca_proto.runtime.files import require_input
from dca_proto.runtime.keyfile import read_password
from dca_proto.runtime.listen import is_loopback
from dca_proto.runtime.settings import is_host
from dca_proto.runtime.sources.base import SqlSource, check_columns, table_of
from dca_proto.runtime.table import Say, Table
from dca_proto.wording import printable, to_install

_URL = "postgresql://user@host[:port]/database, or postgresql:///database for a local socket"
_IN_QUERY = "42"
"""The class of SQL states that are errors in the text of a query, or lacking rights: their messages have no data."""
_CHUNK = 1000


class PostgresSource(SqlSource, frozen=True, kw_only=True):
    """``postgres``: a query of a PostgreSQL database, in a transaction that only reads. Needs the extra ``postgres``.

    In the query, ``%%`` stands for a percent sign.

    Args:
        postgres: ``postgresql://user@host[:port]/database``; ``postgresql:///database`` for a local socket.
        password_file: a file with the password in its first line; readable by the owner only.
        ca: the CA certificates (PEM) that the server's certificate is checked against; by default the system's.
        tls: whether to require TLS; by default for every host but this machine.
    """

    key: ClassVar[str] = "postgres"
    since: ClassVar[str] = "%(since)s"

    postgres: str
    password_file: Path | None = None
    ca: Path | None = None
    tls: bool | None = None

    def __post_init__(self) -> None:
        SqlSource.__post_init__(self)
        try:
            parts = urlsplit(self.postgres)
            odd = parts.scheme != "postgresql" or parts.port == 0 or not self.postgres.isprintable()
        except ValueError:
            parts, odd = urlsplit(""), True
        if "@" in self.postgres and (odd or parts.password is not None or "@" in parts.path):  # may quote a password
            raise InputError(f"[data] postgres: found a password or another URL, expected {_URL}, with password_file")
        if odd or not parts.path.strip("/") or parts.query or parts.fragment:
            raise InputError(f"[data] postgres: found another URL, expected {_URL}")  # a query may have a password
        if parts.hostname and not is_host(parts.hostname):
            raise InputError(f"[data] postgres: {parts.hostname!r} is no host name; expected {_URL}")
        if self.tls is False and self.ca is not None:
            raise InputError("[data] ca needs TLS: found tls = false; leave out one of them")

    def read(self, say: Say) -> Table:
        if importlib.util.find_spec("psycopg") is None:
            raise UsageError(f"[data] postgres: {to_install('postgres')}")
        import psycopg

        for file in filter(None, (self.ca, self.password_file)):
            require_input(file)
        try:
            with psycopg.connect(**self._connection()) as connection:
                connection.read_only = True
                with connection.cursor(name="dca") as cursor:  # so that the server sends rows_max rows, and no more
                    cursor.itersize = _CHUNK
                    cursor.execute(self.query, {"since": self.since_s} if self.window_s else {})
                    columns = [column.name for column in cursor.description or ()]
                    check_columns(f"data {self.place}: the query", columns)
                    rows = cursor.fetchmany(self.rows_max + 1)
        except psycopg.Error as error:
            raise self._explained(error) from None
        if len(rows) > self.rows_max:
            raise self.too_many()
        return table_of(columns, rows, self.place, say, self.categories)

    def _connection(self) -> dict[str, Any]:
        parts = urlsplit(self.postgres)
        milliseconds = int(1000 * self.timeout_s)
        known = {
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username,
            "dbname": parts.path.strip("/"),
            "password": None if self.password_file is None else read_password(self.password_file),
            **self._tls(parts.hostname),
        }
        return {
            **{name: value for name, value in known.items() if value is not None},
            "connect_timeout": max(2, int(self.timeout_s)),
            "tcp_user_timeout": milliseconds,
            "application_name": "dca",
            "options": f"-c default_transaction_read_only=on -c statement_timeout={milliseconds}",
        }

    def _tls(self, host: str | None) -> dict[str, str]:
        needed = self.tls if self.tls is not None else bool(self.ca) or not _is_here(host)
        if not needed:
            return {"sslmode": "disable"}
        return {"sslmode": "verify-full", "sslrootcert": "system" if self.ca is None else str(self.ca)}

    def _explained(self, error: Any) -> InputError:
        state = error.sqlstate or ""
        if state.startswith(_IN_QUERY):
            return InputError(f"[data] query: {printable(str(error.diag.message_primary))}; expected one SELECT")
        if not state:  # no answer of the server: the address, the login or the network
            reason = printable(str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__)
            return InputError(f"data {self.place} cannot be reached: {reason}")
        return InputError(f"data {self.place} cannot be read: {type(error).__name__} ({state}); {self.advice}")


def _is_here(host: str | None) -> bool:
    """Return whether a connection stays on this machine. The library also reads PGHOST and PGHOSTADDR."""
    address = os.environ.get("PGHOSTADDR")
    host = host or os.environ.get("PGHOST")
    if address:
        host = address
    return not host or host.startswith(("/", "@")) or is_loopback(host)
