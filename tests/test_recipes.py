"""CONTRIBUTING.md: each place that a recipe names is covered by a test, which fails if the place is forgotten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dca_proto.protocol.client.actor import Client
from dca_proto.protocol.compute.actor import ComputeNode
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.wire import messages
from dca_proto.runtime.access import _WRITES
from dca_proto.testing import TestFederation

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = {
    part.partition("\n")[0]: re.split(r"\n(?=\d+\. )", part.partition("\n\n1. ")[2])
    for part in TEXT[TEXT.index("## How to add things") :].split("\n### ")[1:]
}
"""The numbered steps of each recipe."""


def test_recipes_are_found() -> None:
    assert len(RECIPES) >= 7
    assert all(RECIPES.values()), "a recipe has numbered steps"


@pytest.mark.parametrize("name", RECIPES)
def test_each_step_names_a_test_that_exists(name: str) -> None:
    """Its last paragraph may have other text; a step ends with the test in parentheses."""
    for number, step in enumerate(RECIPES[name], 1):
        cited = re.findall(r"`(test_\w+)`", step.split("\n\n")[0])
        assert cited, f"step {number} of {name!r} names no test that fails if it is forgotten"
        for test in cited:
            assert test in _functions(), f"step {number} of {name!r}: no test is called {test}"


def _functions() -> set[str]:
    if not FOUND:
        for path in TESTS.rglob("test_*.py"):
            FOUND.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return FOUND


FOUND: set[str] = set()


KINDS = {kind.__name__: kind for union in (messages.Frame, messages.Body) for kind in union.__args__}
HANDLED = {kind.__name__ for actor in (Client, ComputeNode, Trainer) for kind in actor.messages}
HANDLED |= {kind.__name__ for kind in Trainer.answers}
INSIDE = {
    "Signed": "the frame of a signed body",
    "ListHeader": "signed, inside a FrozenList",
    "VerifiedHeader": "signed, inside a FrozenList of a verified sum",
    "FrozenList": "sealed: `ComputeNode._on_sealed`",
    "Certificate": "inside a Hello or a Release",
}
"""Kinds without a handler of their own, and where they are read."""


@pytest.mark.parametrize("name", KINDS)
def test_each_message_has_a_handler(name: str) -> None:
    assert (name in HANDLED) != (name in INSIDE)


@pytest.mark.parametrize("name", KINDS)
def test_the_design_names_each_message(name: str) -> None:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    design = (ROOT / "dca_proto" / "DESIGN.md").read_text(encoding="utf-8")
    assert f"`{name}`" in design or words in " ".join(design.lower().split())


def test_actors_write_to_the_channels_that_a_brokers_access_list_opens() -> None:
    """In a round that completes, and in one that is aborted."""
    made = TestFederation(5, 2)
    network = made.network()
    roles = dict.fromkeys(made.clients, Channel.CLIENT) | dict.fromkeys(made.computes, Channel.COMPUTE)
    roles[made.trainer_identity.id] = Channel.TRAINER
    for down in ((), made.clients[:3]):
        network.down.update(down)
        network.command(made.trainer_identity.id, made.request())
        network.advance(network.now_ms + 10**7)
    written = {(roles[one.sender], one.to.channel) for one in network.sent}
    assert len(written) >= 8
    assert not [(role, channel) for role, channel in written if channel not in _WRITES[role]]
