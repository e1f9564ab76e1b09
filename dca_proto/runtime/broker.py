"""Starts and stops a broker for a trial, a test or `dca broker`: mosquitto if it is installed, else rumqttd.

Either runs as a separate process, with its configuration, data and log in a given directory. It runs outside the
terminal's process group, so Ctrl-C does not reach it before the actors have closed. It ends with the process that
started it, even if that is killed: rumqttd exits at the end of its standard input; mosquitto, on Linux only, when the
thread that started it ends (see `parent_death`).
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.runtime import parent_death
from dca_proto.runtime.access import Access, limit_lines, member_lines, write_access
from dca_proto.runtime.parts import PART_BYTES_DEFAULT
from dca_proto.runtime.settings import Version
from dca_proto.wording import to_install

BrokerKind = Literal["auto", "embedded", "mosquitto"]
QueueLimits = Literal["default", "large"]
LOG_NAME = "broker.log"
TLS_LINE = "tls_version tlsv1.2"
"""The least version."""
SESSION_EXPIRY_S = 7 * 24 * 3600
_START_TIMEOUT_S = 20.0
_POLL_S = 0.02
_WATCH_S = 0.2
_PORT_TRIES = 3
_STOP_TIMEOUT_S = 5.0
_HEAD_BYTES = 1024  # room in a packet for its header, mostly the topic


class TlsFiles(msgspec.Struct, frozen=True):
    """PEM files of a broker: its certificate and key, and the CA that signs clients' certificates.

    With `require_certificate`, the broker refuses clients without a certificate signed by `ca`.
    """

    ca: Path
    certificate: Path
    key: Path
    require_certificate: bool = False


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `launch_broker`.

    Args:
        kind: ``auto`` takes mosquitto if it is installed.
        host: address to listen on; the default accepts connections from this machine only.
        port: 0 takes a free port.
        limits: used without `access`. ``large`` queues any number of messages for a client; ``default`` keeps
            mosquitto's limit of 1000, beyond which it drops messages that it has acknowledged.
        session_expiry_s: how long a client may stay away before mosquitto forgets its session.
        tls: listen with TLS (mosquitto only).
        access: let in members only, with passwords, access lists and limits (mosquitto only).
    """

    kind: BrokerKind = "auto"
    host: str = "127.0.0.1"
    port: int = 0
    limits: QueueLimits = "large"
    session_expiry_s: int = SESSION_EXPIRY_S
    tls: TlsFiles | None = None
    access: Access | None = None


class Broker(msgspec.Struct, frozen=True):
    """A running broker."""

    url: str
    kind: str
    version: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def mqtt_version(self) -> Version:
        """The newest version of MQTT that it speaks well: rumqttd has no 5 at the port of 3.1.1."""
        return "5" if self.kind == "mosquitto" else "3.1.1"

    @property
    def pid(self) -> int:
        """The id of the broker's process."""
        return self.process.pid

    async def ended(self) -> None:
        """Wait until the broker exits by itself, then raise `UsageError` that names its log."""
        while self.process.poll() is None:  # noqa: ASYNC110 - no system-independent event exists
            await asyncio.sleep(_WATCH_S)
        code = self.process.returncode
        raise UsageError(f"the broker exited with code {code}: {_last_line(self.log_path)}; see {self.log_path}")


def find_mosquitto() -> str | None:
    """Return the path of mosquitto, or None. Also looks in /usr/sbin, where Debian installs it."""
    return shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


@contextlib.asynccontextmanager
async def launch_broker(directory: Path, options: BrokerOptions | None = None) -> AsyncIterator[Broker]:
    """Run a broker until the context ends.

    Args:
        directory: for its configuration, data and log; created if missing. A mosquitto restarted in the same directory
            still has its sessions.
        options: how to run it.

    Raises:
        UsageError: the port is in use, the broker is not installed, it does not support `options`, or it did not start.
    """
    options = options or BrokerOptions()
    kind = _choose_kind(options)
    log_path = directory / LOG_NAME
    process, port = await _launch(kind, directory, options, log_path)
    try:
        scheme = "mqtts" if options.tls else "mqtt"
        host = f"[{options.host}]" if ":" in options.host else options.host
        yield Broker(f"{scheme}://{host}:{port}", kind, _version(kind), process, log_path)
    finally:
        _stop(process)


async def _launch(
    kind: str, directory: Path, options: BrokerOptions, log_path: Path
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a broker and return it with its port. If another process took a free port first, try another one."""
    for tries_left in reversed(range(_PORT_TRIES)):
        port = _checked_port(options)
        process = _start(kind, directory, msgspec.structs.replace(options, port=port), log_path)
        try:
            if await _is_listening(process, options.host, port):
                return process, port
        except BaseException:
            _stop(process)
            raise
        _stop(process)
        if options.port or not tries_left:
            break
        with contextlib.suppress(OSError):  # if another process has taken the port, try another one
            if _probe_port(options.host, port) == port:
                break
    raise UsageError(f"the broker did not start on port {port}: {_last_line(log_path)}; see {log_path}")


def _choose_kind(options: BrokerOptions) -> str:
    kind = options.kind
    if kind == "auto":
        kind = "mosquitto" if find_mosquitto() else "embedded"
    if kind == "mosquitto" and not find_mosquitto():
        raise UsageError("mosquitto is not installed: apt install mosquitto (Debian), or use --broker embedded")
    if kind == "embedded" and importlib.util.find_spec("iotcore") is None:
        raise UsageError(f"the embedded broker is not installed: {to_install('broker')}, or install mosquitto")
    if kind == "embedded" and (options.tls or options.access):
        raise UsageError("TLS, passwords and access lists need mosquitto: install it (Debian: apt install mosquitto)")
    if kind == "embedded" and not _is_loopback(options.host):
        raise UsageError(
            f"--host {options.host}: the embedded broker serves this machine only: expected 127.0.0.1, ::1 or "
            "localhost; for other machines install mosquitto (Debian: apt install mosquitto)"
        )
    return kind


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (host.replace(".", "").isdigit() and host.startswith("127.")) or host == "::1"


def _checked_port(options: BrokerOptions) -> int:
    """Return the requested port if it is free; for port 0, a free one."""
    try:
        return _probe_port(options.host, options.port)
    except OSError as error:
        raise UsageError(
            f"port {options.port} on {options.host} cannot be used: {error.strerror}; choose another with --port, "
            "or 0 for a free one"
        ) from None


def _probe_port(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def mosquitto_lines(place: str, session_expiry_s: int = SESSION_EXPIRY_S) -> list[str]:
    """Return the lines that every mosquitto of a federation has. It keeps sessions in the folder `place`."""
    return [
        "set_tcp_nodelay true",
        "sys_interval 0",
        "persistence true",
        f"persistence_location {place}",
        f"persistent_client_expiration {max(1, -(-session_expiry_s // 3600))}h",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
        f"max_packet_size {PART_BYTES_DEFAULT + _HEAD_BYTES}",
        "max_qos 1",  # at QoS 2 it would store messages that a sender never releases
    ]


def mosquitto_configuration(directory: Path, options: BrokerOptions) -> list[str]:
    """Return the lines of mosquitto's configuration file, and write the password and access files that it names."""
    directory = directory.resolve()
    lines = [
        f"listener {options.port} {options.host}",
        f"user {getpass.getuser()}",  # started as root, it would switch to a user that cannot read these files
        *mosquitto_lines(f"{directory}{os.sep}", options.session_expiry_s),
    ]
    if options.access is not None:
        lines += limit_lines(options.access)
    elif options.limits == "large":
        lines += ["max_queued_messages 0", "max_inflight_messages 0"]
    if options.tls is not None:
        files = (("cafile", options.tls.ca), ("certfile", options.tls.certificate), ("keyfile", options.tls.key))
        for _, path in files:
            if not path.is_file():
                raise InputError(f"TLS file {path} does not exist")
        lines += [f"{name} {path.resolve()}" for name, path in files]
        lines.append(f"require_certificate {str(options.tls.require_certificate).lower()}")
        lines.append(TLS_LINE)
    if options.access is None:
        return [*lines, "allow_anonymous true"]
    passwords, lists = write_access(options.access, directory)
    return [*lines, *member_lines(str(passwords), str(lists))]


def _start(kind: str, directory: Path, options: BrokerOptions, log_path: Path) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "mosquitto":
        path = directory / "mosquitto.conf"
        path.write_text("\n".join(mosquitto_configuration(directory, options)) + "\n", encoding="utf-8")
        guarded = [sys.executable, "-IS", parent_death.__file__, str(os.getpid())]
        command = [*guarded, str(find_mosquitto()), "-c", str(path)]
    else:
        from dca_proto.runtime.embedded import configuration  # imports iotcore, of an extra

        path = directory / "rumqttd.toml"
        path.write_text(
            configuration("127.0.0.1" if options.host == "localhost" else options.host, options.port), encoding="utf-8"
        )
        command = [sys.executable, "-m", "dca_proto.runtime.embedded", str(path)]
    with log_path.open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)


async def _is_listening(process: subprocess.Popen[bytes], host: str, port: int) -> bool:
    """Wait for the process to accept connections. Return False if it ends, or does not in time."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    give_up = asyncio.get_running_loop().time() + _START_TIMEOUT_S
    while process.poll() is None and asyncio.get_running_loop().time() < give_up:
        answered = await _answers(host, port) and not is_other_process(process.pid, port)
        await asyncio.sleep(_POLL_S)  # mosquitto listens for a moment even if it cannot read its certificates
        if answered:
            return process.poll() is None
    return False


async def _answers(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _last_line(log_path: Path) -> str:
    return (log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing logged"])[-1]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process; kill it if it does not end in time. Blocks, so that cancellation leaves none behind."""
    assert process.stdin is not None
    process.terminate()
    process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _version(kind: str) -> str:
    if kind == "embedded":
        return importlib.metadata.version("iotcore")
    usage = subprocess.run([str(find_mosquitto()), "-h"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\S+)", usage)
    return found.group(1) if found else "unknown"


def is_other_process(pid: int, port: int) -> bool:
    """Return True if other processes listen on the port and this one does not. False if it cannot be determined."""
    own: set[str] = set()
    try:
        listening = {line for table in ("tcp", "tcp6") for line in _listening(pid, table, port)}
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                kind, _, inode = str(descriptor.readlink()).partition(":")
                if kind == "socket":
                    own.add(inode.strip("[]"))
    except OSError:
        return False
    return bool(listening) and not listening & own


def _listening(pid: int, table: str, port: int) -> set[str]:
    """Return the inodes of the sockets that listen on the port, in the process's network namespace (Linux)."""
    path = Path(f"/proc/{pid}/net/{table}")
    if not path.exists():
        return set()  # a system without IPv6
    rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()[1:]]
    is_listening = "0A"  # the state in /proc/net/tcp
    return {row[9] for row in rows if row[3] == is_listening and int(row[1].rpartition(":")[2], 16) == port}
