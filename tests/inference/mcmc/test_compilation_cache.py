"""Compiled samplers are kept in the user's cache, and where that cannot be, nothing happens."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from inference.mcmc.nuts import keep_compiled


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.config, "update", lambda name, value: changed.append((name, value)))
    changed.clear()


changed: list[tuple[str, str]] = []


def test_the_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert keep_compiled() == tmp_path / "dca" / "jax"
    assert changed == [("jax_compilation_cache_dir", str(tmp_path / "dca" / "jax"))]
    assert (tmp_path / "dca" / "jax").stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_made_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert keep_compiled() is None
    assert changed == []


def test_a_folder_that_is_named_already_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", str(tmp_path))
    assert keep_compiled() is None
    assert changed == []
