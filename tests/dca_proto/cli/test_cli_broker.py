"""What the command line lets a broker be, and be called."""

from __future__ import annotations

from pathlib import Path

import pytest

from dca_proto.cli import broker, main
from dca_proto.runtime.access import Access
from dca_proto.runtime.broker import BrokerOptions, TlsFiles

NOBODY = Access(bytes(32), ())


@pytest.mark.parametrize("url", ["http://x", "mqtt://", "mqtt://a:99999", "x"])
def test_hardening_7_a_trial_refuses_a_url_that_actors_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    given = ("--computes", "2", "--clients", "1", "--broker", url)
    assert main(["federation", "init", str(tmp_path / "fed"), *given]) == 2
    assert "--broker: url" in capsys.readouterr().err
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize(
    ("options", "lacking"),
    [
        (BrokerOptions(host="127.0.0.1"), ""),
        (BrokerOptions(host="::1"), ""),
        (BrokerOptions(host="localhost"), ""),
        (BrokerOptions(host="0.0.0.0"), "no --federation and no --tls-certificate"),
        (BrokerOptions(host="::"), "no --federation and no --tls-certificate"),
        (BrokerOptions(host="0.0.0.0", access=NOBODY), "found no --tls-certificate, expected"),
        (
            BrokerOptions(host="0.0.0.0", tls=TlsFiles(Path("a"), Path("b"), Path("c"))),
            "found no --federation, expected",
        ),
        (
            BrokerOptions(host="0.0.0.0", tls=TlsFiles(Path("a"), Path("b"), Path("c")), access=NOBODY),
            "",
        ),
    ],
)
def test_hardening_7_a_broker_opens_to_a_network_with_passwords_and_tls_only(
    options: BrokerOptions, lacking: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []

    async def serve(directory: Path, options: BrokerOptions) -> None:
        started.append(options)

    monkeypatch.setattr(broker, "_serve", serve)
    monkeypatch.setattr(broker, "_tls", lambda *_: options.tls)
    monkeypatch.setattr(broker, "_access", lambda *_: options.access)
    code = main(["broker", "--host", options.host])
    assert (code, len(started)) == ((2, 0) if lacking else (0, 1))
    assert lacking in capsys.readouterr().err
    assert main(["broker", "--host", options.host, "--insecure"]) == 0
