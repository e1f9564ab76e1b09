"""Epoch keys: made once, kept through their grace, never back; and what is remembered of others' epochs."""

from __future__ import annotations

import hashlib

import pytest

from dca_proto.crypto.sealing import AgreementKey, Identity, Random
from dca_proto.errors import PeerError, UsageError
from dca_proto.protocol.effects import Forget, Persist
from dca_proto.protocol.keyring import SEEN, TABLE, Keyring, SeenEpochs
from dca_proto.protocol.params import Timing
from dca_proto.protocol.wire.messages import EpochKey, FileStamp
from dca_proto.testing import seeded

EPOCH_MS, GRACE_MS = 1000, 200
SEED = bytes(range(32))
NODE, OTHER = b"n" * 16, b"o" * 16


def timing() -> Timing:
    return Timing(epoch_ms=EPOCH_MS, epoch_grace_ms=GRACE_MS)


def ring(records: tuple = (), random: Random | None = None, seed: bytes = SEED) -> Keyring:
    return Keyring(records, timing(), Identity(seed), random or seeded("keyring"))


def key_bytes(epoch: int) -> bytes:
    return epoch.to_bytes(4, "big")


def test_a_key_is_made_once_an_epoch_and_written_before_it_is_used() -> None:
    keys = ring()
    (made,) = keys.renew(5500)
    assert isinstance(made, Persist)
    assert (made.table, made.key) == (TABLE, key_bytes(5))
    assert AgreementKey(made.value).public == keys.public
    assert (keys.epoch, keys.expires_ms, keys.epochs) == (5, 6000, (5,))
    assert keys.renew(5999) == []


def test_a_key_outlives_its_epoch_by_the_grace_to_the_millisecond() -> None:
    keys = ring()
    keys.renew(5500)
    old = keys.public
    (made,) = keys.renew(6000)
    assert isinstance(made, Persist)
    assert (keys.epoch, keys.epochs) == (6, (5, 6))
    assert keys.key(5).public == old != keys.public  # type: ignore[union-attr]
    assert keys.renew(6199) == []
    assert keys.renew(6200) == [Forget(TABLE, key_bytes(5))]
    assert keys.key(5) is None


def test_the_next_turn_is_the_next_end_or_the_next_end_of_a_grace() -> None:
    keys = ring()
    keys.renew(5500)
    assert keys.next_turn_ms(5500) == 6000
    keys.renew(6000)
    assert keys.next_turn_ms(6000) == 6200
    keys.renew(6200)
    assert keys.next_turn_ms(6200) == 7000


def test_a_clock_that_goes_back_one_epoch_keeps_the_key_and_one_far_ahead_leaves_none_behind() -> None:
    keys = ring()
    keys.renew(5500)
    public = keys.public
    assert keys.renew(4500) == []
    assert (keys.epoch, keys.public) == (5, public)
    forgotten, made = keys.renew(1500)
    assert forgotten == Forget(TABLE, key_bytes(5))
    assert (made.key, keys.epochs) == (key_bytes(1), (1,))


def test_a_stored_key_is_restored() -> None:
    keys = ring()
    (made,) = keys.renew(5500)
    again = ring(((made.table, made.key, made.value), ("round", b"key", b"value")))
    assert (again.epoch, again.public) == (5, keys.public)
    assert again.renew(5600) == []


def test_a_damaged_key_stops_the_start() -> None:
    with pytest.raises(UsageError, match=r"table 'epoch' cannot be read \(31 bytes\)"):
        ring(((TABLE, key_bytes(5), bytes(31)),))


def test_a_secret_is_hedged_by_the_identity_the_epoch_and_the_time() -> None:
    """A restored random generator repeats itself; then only the same identity at the same time has the same key."""

    def repeats(size: int) -> bytes:
        return bytes(size)

    def made(now_ms: int, seed: bytes = SEED) -> bytes:
        (write,) = ring(random=repeats, seed=seed).renew(now_ms)
        return write.value

    message = bytes(32) + key_bytes(5) + (5500).to_bytes(8, "big")
    hedge = hashlib.blake2b(key=SEED, digest_size=32, person=b"dca5-hedge").digest()
    assert made(5500) == hashlib.blake2b(message, key=hedge, digest_size=32, person=b"dca5-epoch").digest()
    assert len({made(5500), made(5501), made(6500), made(5500, bytes(32))}) == 4


def test_repr_shows_epochs_only() -> None:
    keys = ring()
    (made,) = keys.renew(5500)
    assert repr(keys) == "Keyring(epochs=[5])"
    assert made.value.hex() not in repr(made)


# Others' epochs


STAMP = FileStamp(1, bytes(32))


def epoch_key(epoch: int, compute: bytes = NODE) -> EpochKey:
    return EpochKey(compute, epoch, bytes(32), (epoch + 1) * EPOCH_MS, STAMP)


def is_refused(seen: SeenEpochs, epoch: int, now_ms: int, compute: bytes = NODE) -> bool:
    try:
        seen.check([epoch_key(epoch, compute)], now_ms)
    except PeerError as error:
        return error.code == "epoch"
    return False


def test_an_older_epoch_than_one_that_was_seen_is_refused_but_in_its_grace() -> None:
    seen = SeenEpochs((), timing())
    assert seen.note([epoch_key(7)], 7000) == [Persist(SEEN, NODE, key_bytes(7))]
    assert not is_refused(seen, 7, 7500)
    assert not is_refused(seen, 6, 7199), "in the grace of epoch 6"
    assert is_refused(seen, 6, 7200)
    assert is_refused(seen, 5, 7000)
    assert not is_refused(seen, 5, 7000, OTHER), "each node has epochs of its own"
    with pytest.raises(PeerError, match="epoch"):  # whatever end it claims
        seen.check([EpochKey(NODE, 5, bytes(32), 10 * EPOCH_MS, STAMP)], 7000)


def test_an_epoch_more_than_one_ahead_of_the_clock_is_refused() -> None:
    seen = SeenEpochs((), timing())
    assert not is_refused(seen, 8, 7999)
    assert is_refused(seen, 9, 7999)


def test_what_a_clock_far_ahead_left_behind_locks_nobody_out() -> None:
    seen = SeenEpochs([(SEEN, NODE, key_bytes(1000))], timing())
    assert not is_refused(seen, 8, 7500), "as the next epoch by this clock"
    assert is_refused(seen, 6, 7500)
    assert seen.note([epoch_key(7)], 7500) == [Persist(SEEN, NODE, key_bytes(7))]
    assert is_refused(seen, 5, 7500), "it guards again"


def test_only_a_higher_epoch_is_remembered_and_restored() -> None:
    seen = SeenEpochs((), timing())
    assert len(seen.note([epoch_key(7), epoch_key(3, OTHER)], 7000)) == 2
    assert seen.note([epoch_key(7), epoch_key(2, OTHER)], 7000) == []
    again = SeenEpochs([(SEEN, NODE, key_bytes(7)), ("epoch", key_bytes(1), bytes(32))], timing())
    assert is_refused(again, 5, 7000)
    with pytest.raises(UsageError, match="table 'seen' cannot be read"):
        SeenEpochs([(SEEN, NODE, b"")], timing())
