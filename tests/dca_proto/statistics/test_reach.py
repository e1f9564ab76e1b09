"""Parameters of which every value is about zero are refused before a charge, whatever statistic and parameter it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from numpy.typing import NDArray
from statistic_samples import STATISTICS

from dca_proto.errors import UsageError
from dca_proto.protocol.params import Limits
from dca_proto.statistic_check import farthest
from dca_proto.statistics import Gradient, Mean, Phases, Statistic, register
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.reach import require_reach
from dca_proto.testing import TestFederation

CLIENTS = 10**7


def scaled(value: Any, factor: float) -> Any:
    """Return a number, or all numbers of nested tuples, times a factor; None for other values."""
    if isinstance(value, tuple):
        parts = tuple(scaled(part, factor) for part in value)
        return None if None in parts else parts
    return value * factor if isinstance(value, float) else None


def versions(value: Any, factor: float) -> Iterator[Any]:
    """Yield a parameter times a factor; of a tuple, also with one part alone: codes, for example, keep their ends."""
    if whole := scaled(value, factor):
        yield whole
        if isinstance(value, tuple) and len(value) > 1:
            for place, part in enumerate(whole):
                yield (*value[:place], part, *value[place + 1 :])


def changed(statistic: Statistic, bits: int) -> Iterator[Statistic]:
    """Yield all valid statistics in which one parameter, or its part for one column, is much larger or smaller."""
    for field in msgspec.structs.fields(statistic):
        for power in (-9, -6, -3, 3, 6, 12):
            for value in versions(getattr(statistic, field.name), 10.0**power):
                try:
                    one = type(statistic)(**{**msgspec.structs.asdict(statistic), field.name: value})
                    client_sensitivity(one, one.rows_per_value, bits)
                except UsageError:
                    continue
                yield one


def is_refused(statistic: Statistic, bits: int) -> bool:
    try:
        require_reach(statistic, bits)
    except UsageError:
        return True
    return False


@pytest.mark.parametrize("bits", [8, 24, 40])
def test_every_example_has_a_reach(bits: int) -> None:
    assert not [one for one in STATISTICS if is_refused(one, bits)]


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: type(one).__name__)
def test_what_is_refused_gives_about_nothing_by_another_search(statistic: Statistic) -> None:
    """That search tries far more rows, and may find a larger value: by less than a factor of 100 here."""
    some = list(changed(statistic, 16))
    refused = [one for one in some if is_refused(one, 16)]
    assert len(refused) < len(some)
    for one in refused:
        assert farthest(one, 16, rounds=0).l2_squared ** 0.5 * CLIENTS < 100 * one.stated_sensitivity(16).l2, one


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: type(one).__name__)
def test_every_example_can_be_announced(statistic: Statistic) -> None:
    """Also one with intervals for some columns and none for others."""
    actors = TestFederation(4, 3)
    parameters = {name: value for name, value in msgspec.structs.asdict(statistic).items() if value is not None}
    request = actors.request(statistic=statistic.name, parameters=parameters, rows_max=statistic.rows_per_value)
    request.check(actors.federation, actors.mechanism, Limits(), actors.timing)


BOX: dict[str, Any] = {"columns": ("x", "y"), "centre": (0.0, 0.0), "scale": (1.0, 1.0)}


@pytest.mark.parametrize(
    "statistic",
    [
        Gradient(**BOX, bound=(1e-2, 1e-2), theta=(0.5,), clip=1e5),
        Gradient(**BOX, bound=(1.0, 1.0), theta=(0.5, 9.0), clip=2.0, family="student", degrees=1e12, by_features=True),
        Mean(**BOX, bound=(1.0, 1.0), within=((-1e-9, 1e-9), (0.0, 1e-9))),
    ],
    ids=["bounds", "degrees", "within"],
)
def test_a_trainer_refuses_the_request_before_any_charge(statistic: Statistic) -> None:
    actors = TestFederation(4, 3)
    parameters = msgspec.structs.asdict(statistic)
    for changes in ({}, {"clients": 0}):
        request = actors.request(statistic=statistic.name, parameters=parameters, fraction_bits=16, **changes)
        trainer = actors.trainer()
        with pytest.raises(UsageError, match=r"no row has a value of more than .* use more fraction bits"):
            trainer.check_request(request, actors.network().now_ms)
        assert not trainer.ledger.charges


def test_phases_of_an_interval_of_one_point_are_no_zeros() -> None:
    """Their cosines are 1: they count rows."""
    require_reach(Phases(**BOX, bound=(1.0, 1.0), within=((0.0, 1e-9), (0.0, 1e-9))), 24)


@register
class Unready(Statistic, frozen=True, kw_only=True):
    name = "test-unready"
    dimension = 1

    def ranges(self) -> dict[str, tuple[float, float]]:
        return dict.fromkeys(self.columns, (0.0, 1.0))

    def labels(self) -> tuple[str, ...]:
        return ("nothing",)

    def row_sensitivity(self, fraction_bits: int) -> Any:
        raise AssertionError

    def evaluate(self, rows: NDArray[Any], fraction_bits: int) -> NDArray[Any]:
        raise ArithmeticError


def test_a_users_statistic_that_fails_on_made_up_rows_is_not_checked() -> None:
    require_reach(Unready(columns=("x",)), 24)
