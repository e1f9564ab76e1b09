"""The small trials that `dca audit --protocol` runs to look for secrets that others learn."""

from __future__ import annotations

import pytest

from dca_proto.crypto import labels, masks
from dca_proto.crypto.sealing import derive
from dca_proto.protocol.client import answer
from emulator.claim import Claim
from emulator.trials.rehearsal import leaked_secrets


@pytest.mark.parametrize("claim", [Claim(), Claim(clients=3, tolerate=0, computes=2, epsilon=30.0, delta=1e-13)])
def test_nobody_learns_a_secret_of_production_actors(claim: Claim) -> None:
    assert leaked_secrets(claim, "as they are") == []


def test_a_receipt_key_that_gives_the_noise_of_a_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "noise_key", lambda root: derive(root, labels.RECEIPT_KEY))
    (found,) = leaked_secrets(Claim(), "a label")
    assert "noise key" in found


def test_long_masks_are_judged_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = masks.expand_into
    monkeypatch.setattr(masks, "expand_into", lambda data, at, size, seed: honest(data, at, size, bytes(32)))
    (found,) = leaked_secrets(Claim(), "long masks")
    assert "masks" in found
