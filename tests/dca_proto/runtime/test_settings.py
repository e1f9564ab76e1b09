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
    ],
)
def test_mistakes_are_named(table: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert("[broker]", table, BrokerSettings)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        convert("[broker]", {"url": "mqtt://me:hunter22@h"}, BrokerSettings)
    assert "hunter22" not in str(caught.value)


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
    with pytest.raises(UsageError, match=r"cannot load TLS files \(.*ca.pem\)"):
        BrokerSettings(url="mqtts://h", ca=tmp_path / "ca.pem").tls_context()
