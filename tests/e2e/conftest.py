"""Fixtures: certificates for brokers with TLS, made once for all tests; and `dca swarm` in the test's own process."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from commands import Dca, Done

from dca_proto.cli import main


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dca:
    """Run `dca fleet` as `dca` runs `dca swarm`."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: Done(main(["fleet", *arguments]), *capsys.readouterr())


@pytest.fixture
def dca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dca:
    """Run `dca swarm` to its end, in its own folder, by the entry point of the command."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        return Done(main(["swarm", *arguments]), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a test CA, a certificate for 127.0.0.1, one for a client, and an untrusted CA."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    directory = tmp_path_factory.mktemp("authority")
    for name in ("ca", "stranger"):
        request = ("req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key")
        request += ("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", f"{name}.pem")
        openssl(directory, *request, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for name in ("broker", "client"):
        request = ("req", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(directory, *request, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        sign = ("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key")
        openssl(directory, *sign, "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")
    return directory


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
