"""The `[broker]` table: strict, and clear about what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from dca_proto.errors import UsageError
from dca_proto.runtime.settings import BrokerSettings, anchored, convert


def test_a_full_table_is_understood() -> None:
    table: dict[str, object] = {
        "url": "mqtts://broker.example",
        "ca": "ca.pem",
        "certificate": "/abs/c.pem",
        "key": "c.key",
        "username": "c-5f3a",
        "password_file": "password",
        "keepalive_s": 30,
        "session_expiry_s": 0,
        "part_bytes_max": 4096,
    }
    found = anchored(convert("[broker]", table, BrokerSettings), Path("/etc/dca"))
    assert (found.host, found.port, found.tls) == ("broker.example", 8883, True)
    assert (found.ca, found.certificate) == (Path("/etc/dca/ca.pem"), Path("/abs/c.pem"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "missing required field `url`"),
        (
            {"url": "mqtt://h", "keepalive": 3},
            r"'keepalive' \(did you mean 'keepalive_s'\?\); \[broker\] keys: url",
        ),
        ({"url": "http://h"}, "url: found 'http://h', expected mqtt://host"),
        ({"url": "mqtt://"}, "url: found 'mqtt://', expected"),
        ({"url": "mqtt://h:99999"}, "expected mqtt://host"),
        ({"url": "mqtt://h/path"}, "expected mqtt://host"),
        ({"url": "mqtt://h", "ca": "x"}, "ca and certificate need TLS"),
        ({"url": "mqtts://h", "certificate": "x"}, "certificate and key: found one, expected both"),
        ({"url": "mqtt://h", "keepalive_s": 0}, "keepalive_s: found 0, expected 1 to 65535"),
        ({"url": "mqtt://h", "keepalive_s": "60"}, "keepalive_s"),
        ({"url": "mqtt://h", "part_bytes_max": 10}, "part_bytes_max: found 10, expected 1024"),
        ({"url": 3}, "url"),
        ({"url": "ws://h/p?q"}, "url: found 'ws://h/p\\?q', expected mqtt://host"),
        ({"url": "ws://h", "client": "fleet"}, "has no WebSockets and no proxies"),
        ({"url": "mqtt://h", "client": "fleet", "proxy": "http://p"}, "has no WebSockets and no proxies"),
        ({"url": "mqtt://h", "client": "paho"}, "client"),
        ({"url": "mqtt://h", "version": "3"}, "version"),
        ({"url": "mqtt://h", "proxy": "ftp://p"}, "proxy: found 'ftp://p', expected http://host"),
        ({"url": "mqtt://h", "proxy": "http://p", "proxy_username": "u"}, "found one, expected both or neither"),
        ({"url": "mqtt://h", "proxy_username": "u", "proxy_password_file": "f"}, "found no proxy"),
        ({"url": "mqtts://h", "failover": ["mqtt://b"]}, "expected TLS in all or in none"),
        ({"url": "mqtt://h", "failover": ["mqtt://"]}, "failover: found 'mqtt://', expected"),
        ({"url": "mqtt://h", "failover": "mqtt://b"}, "failover"),
    ],
)
def test_mistakes_are_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert("[broker]", table, BrokerSettings)


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://me:hunter22@h",
        "mqtt://me:hunter22@h:port",
        "mqtt://me:hunter22@h:99999",
        "mqtt://me:hunter22/x@h",
        "mqtt://me:hunter22#@h",
        "wss://me:hunter22?@h/mqtt",
        "mqtt://[me:hunter22@h",
        "me:hunter22@h",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    """Not even a part of it, as of the text before a slash: that looks like a port."""
    with pytest.raises(UsageError, match="password in it") as caught:
        convert("[broker]", {"url": url}, BrokerSettings)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", ["failover", "proxy"])
def test_a_password_in_another_url_is_refused_and_not_repeated(name: str) -> None:
    value = ["mqtt://me:hunter22/@h"] if name == "failover" else "http://me:hunter22/@h"
    with pytest.raises(UsageError, match="password in it") as caught:
        convert("[broker]", {"url": "mqtt://h", name: value}, BrokerSettings)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "port", "path", "tls"),
    [
        ("ws://h", 80, "/mqtt", False),
        ("wss://h", 443, "/mqtt", True),
        ("wss://h:9/a/b", 9, "/a/b", True),
        ("mqtt://h", 1883, None, False),
    ],
)
def test_urls_have_the_ports_and_paths_of_their_schemes(url: str, port: int, path: str | None, tls: bool) -> None:
    found = BrokerSettings(url=url)
    assert (found.port, found.websocket_path, found.tls) == (port, path, tls)


def test_password_files_must_be_private_and_not_empty(tmp_path: Path) -> None:
    file = tmp_path / "password"
    settings = BrokerSettings(url="mqtt://h", username="u", password_file=file)
    with pytest.raises(UsageError, match=r"cannot read .*password"):
        settings.read_password()
    file.write_text("\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match=r"by others: found mode 0644, expected 0600; run: chmod 600 .*password"):
        settings.read_password()
    file.chmod(0o600)
    with pytest.raises(UsageError, match="is empty"):
        settings.read_password()
    file.write_text("correct horse\n")
    assert settings.read_password() == "correct horse"
    file.write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        settings.read_password()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_private_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "c.pem").write_text("")
    key = tmp_path / "c.key"
    settings = BrokerSettings(url="mqtts://h", certificate=tmp_path / "c.pem", key=key)
    with pytest.raises(UsageError, match=r"cannot read .*c.key"):
        settings.tls_context()
    key.write_text("secret")
    key.chmod(mode)
    with pytest.raises(UsageError, match=rf"found mode 0{mode:o}, expected 0600; run: chmod 600 .*c.key"):
        settings.tls_context()
    key.chmod(0o600)
    with pytest.raises(UsageError, match="cannot load TLS files"):
        settings.tls_context()


def test_missing_tls_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*ca.pem: No such file"):
        BrokerSettings(url="mqtts://h", ca=tmp_path / "ca.pem").tls_context()


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64, "a.b..", "a\u0001b"])
def test_a_host_that_cannot_be_looked_up_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match=r"is no host name; expected mqtt://host\[:port\]"):
        BrokerSettings(url=f"mqtt://{host}")


@pytest.mark.parametrize("host", ["a.b.", "bücher.example", "[::1]", "127.0.0.1", "x" * 63])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert BrokerSettings(url=f"mqtt://{host}:9").port == 9
