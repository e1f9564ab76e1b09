"""Epoch keys: made once, kept as long as they are needed, never back."""

from __future__ import annotations

import pytest

from dca_proto.core.effects import Forget, Persist
from dca_proto.core.errors import PeerError
from dca_proto.core.keyring import TABLE, Keyring
from dca_proto.core.params import Timing
from dca_proto.core.sealing import AgreementKey
from dca_proto.testing import seeded

EPOCH_MS = 1000


def ring(records: tuple = (), grace_ms: int = 0) -> Keyring:
    return Keyring(records, Timing(epoch_ms=EPOCH_MS, epoch_grace_ms=grace_ms), seeded("keyring"))


def test_a_key_is_made_once_an_epoch_and_written_before_it_is_used() -> None:
    keys = ring()
    (made,) = keys.renew(5500, ())
    assert isinstance(made, Persist)
    assert (made.table, made.key) == (TABLE, (5).to_bytes(4, "big"))
    assert AgreementKey(made.value).public == keys.public
    assert (keys.epoch, keys.expires_ms) == (5, 6000)
    assert keys.renew(5999, ()) == []


def test_a_new_epoch_deletes_the_old_key() -> None:
    keys = ring()
    keys.renew(5500, ())
    old = keys.public
    made, forgotten = keys.renew(6000, ())
    assert forgotten == Forget(TABLE, (5).to_bytes(4, "big"))
    assert isinstance(made, Persist)
    assert keys.public != old
    assert not keys.holds(5, old)


def test_a_key_in_use_is_kept_until_it_is_not() -> None:
    keys = ring()
    keys.renew(5500, ())
    old = keys.public
    assert [type(write) for write in keys.renew(6500, {5})] == [Persist]
    assert keys.holds(5, old)
    assert keys.renew(6600, ()) == [Forget(TABLE, (5).to_bytes(4, "big"))]


def test_epochs_never_go_back_whatever_the_clock_does() -> None:
    keys = ring()
    keys.renew(5500, ())
    public = keys.public
    assert keys.renew(1500, ()) == []
    assert (keys.epoch, keys.public) == (5, public)
    assert keys.is_current(0)
    assert not keys.is_current(6000)


def test_a_stored_key_is_restored() -> None:
    keys = ring()
    (made,) = keys.renew(5500, ())
    again = ring(((made.table, made.key, made.value), ("round", b"key", b"value")))
    assert (again.epoch, again.public) == (5, keys.public)
    assert again.renew(5600, ()) == []


def test_agreement_is_per_epoch_and_ends_with_it() -> None:
    keys, peer = ring(), AgreementKey(bytes(range(32)))
    keys.renew(5500, ())
    first = keys.agree(5, peer.public)
    assert first == peer.agree(keys.public) == keys.agree(5, peer.public)
    keys.renew(6500, {5})
    assert keys.agree(6, peer.public) != first
    keys.renew(6500, ())
    with pytest.raises(PeerError, match="epoch 5"):
        keys.agree(5, peer.public)


def test_repr_shows_epochs_only() -> None:
    keys = ring()
    (made,) = keys.renew(5500, ())
    assert repr(keys) == "Keyring(epochs=[5])"
    assert made.value.hex() not in repr(made)
