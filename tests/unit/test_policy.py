"""A client's policy and a Compute node's floors: each limit bites exactly at its figure."""

from __future__ import annotations

import msgspec
import pytest

from dca_proto.core import accounting
from dca_proto.core.errors import UsageError
from dca_proto.core.ledger import Charge, Ledger
from dca_proto.core.mechanism import DistributedDiscreteGaussian
from dca_proto.core.messages import Announcement, Signed
from dca_proto.core.params import Limits
from dca_proto.core.plan import ask
from dca_proto.core.policy import DAY_MS, Floors, Policy, Refusal

NOW_MS = 1000 * DAY_MS
TRAINER = bytes(range(16))


def announcement(**changes: object) -> Announcement:
    question = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
    plain = Announcement(
        1, bytes(16), TRAINER, "sum", question, 0, 24, DistributedDiscreteGaussian.name, 1.0, 1e-5, 2, 1, "seed",
        (Signed(b"", bytes(64)),) * 3, bytes(32), 1, 2,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def refusal(
    policy: Policy, ledger: Ledger | None = None, missing: tuple[str, ...] = (), **changes: object
) -> str | None:
    body = announcement(**changes)
    question = ask(body, DistributedDiscreteGaussian(), Limits())
    found = policy.check_announcement(body, question, frozenset(missing), ledger or Ledger(), NOW_MS)
    return found.reason if found else None


def test_the_defaults_let_a_usual_round_through() -> None:
    assert refusal(Policy()) is None


@pytest.mark.parametrize(
    ("policy", "changes", "reason"),
    [
        (Policy(trainers=(TRAINER.hex(),)), {"trainer": bytes(16)}, "trainer"),
        (Policy(statistics=("sum",)), {"statistic": "mean"}, "statistic"),
        (Policy(computes_min=3), {"computes": (Signed(b"", bytes(64)),) * 2}, "computes"),
        (Policy(colluders_min=1), {"colluders": 0}, "colluders"),
        (Policy(), {"delta": 1.0001e-5, "epsilon": 0.1}, "delta"),
        (Policy(), {"epsilon": 1.0001}, "epsilon"),
    ],
)
def test_each_limit_bites_where_it_is_crossed(policy: Policy, changes: dict, reason: str) -> None:
    assert refusal(policy) is None, "at the limit"
    assert refusal(policy, **changes) == reason


def test_a_smaller_delta_may_buy_a_larger_epsilon_only_within_the_same_mu() -> None:
    """The limit is held in Gaussian DP: (1.2, 1e-7) is a smaller promise broken than (1, 1e-5)."""
    assert accounting.mu_of(1.2, 1e-7) < accounting.mu_of(1.0, 1e-5)
    assert refusal(Policy(), epsilon=1.2, delta=1e-7) is None


def test_no_trusted_compute_node_may_be_missing() -> None:
    assert refusal(Policy(), missing=("north",)) == "trusted-computes"


def spent(mu: float, days_ago: float) -> Ledger:
    return Ledger([Charge(bytes(16), "sum", TRAINER, mu, 1.0, 1e-5, NOW_MS - int(days_ago * DAY_MS))])


def test_the_budget_is_of_a_period() -> None:
    allowed, round_mu = accounting.mu_of(4.0, 1e-5), accounting.mu_of(1.0, 1e-5)
    just = (allowed**2 - round_mu**2) ** 0.5
    assert refusal(Policy(), spent(just * (1 - 1e-12), 1)) is None
    assert refusal(Policy(), spent(just * (1 + 1e-9), 1)) == "budget"
    assert refusal(Policy(), spent(allowed, 364.9)) == "budget"
    assert refusal(Policy(), spent(allowed, 365.1)) is None


def test_a_refusal_has_both_figures() -> None:
    policy = Policy(clients_min=20, honest_min=10)
    assert policy.check_size(19, 1) == Refusal("clients", "N = 19", "N >= 20")
    assert policy.check_size(20, 10) == Refusal("honest", "N - T - 1 = 9", "N - T - 1 >= 10")
    assert policy.check_size(20, 9) is None
    assert Floors(clients_min=3, honest_min=1).check_size(2, 0) == Refusal("clients", "N = 2", "N >= 3")
    assert Floors(clients_min=3, honest_min=1).check_size(3, 1) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon_per_round_max": 0.0},
        {"epsilon_per_round_max": float("nan")},
        {"epsilon_per_period_max": -1.0},
        {"delta_max": 0.0},
        {"delta_max": 1.0},
        {"period_days": 0.0},
        {"period_days": float("inf")},
        {"computes_min": 1},
        {"honest_min": 0},
    ],
)
def test_a_policy_that_would_protect_nobody_is_the_callers_error(fields: dict) -> None:
    with pytest.raises(UsageError):
        Policy(**fields)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Policy)


def test_an_unknown_field_is_an_error() -> None:
    for kind in (Policy, Floors):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert({"clients_mim": 3}, kind)
