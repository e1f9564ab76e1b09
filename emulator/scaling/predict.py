"""Predicts a round too large for this machine, and how many machines it needs, from calibrated costs.

Core seconds, messages, bytes and memory are those of the actors; the emulator's own are left out. The scarcest resource
determines the number of machines: cores within the time for the round, memory, or network. Each prediction states what
it assumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from dca_proto.errors import UsageError
from dca_proto.protocol.params import Limits
from dca_proto.protocol.wire.fields import COMPUTES_MAX
from dca_proto.results.figure import about
from dca_proto.statistics.histogram import BINS_MAX
from dca_proto.wording import nearest
from emulator.scaling.cell import CLIENTS_MIN, Size
from emulator.scaling.costs import SIZES, Calibration, Ranged
from emulator.scaling.figures import COUNTED, ROLES, Figures

_SIZE_MAX = 10**12
_RANGES = {"clients": (CLIENTS_MIN, _SIZE_MAX), "dimension": (1, _SIZE_MAX), "computes": (2, COMPUTES_MAX)}
FAR = 10
"""The factor beyond the calibrated sizes at which a prediction has a warning."""
_GB, _GBIT = 1e9, 1e9 / 8


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine for Compute nodes, trainer or broker, and how it may be used.

    Attributes:
        broker_messages_s: messages/s, in and out together, of a broker on one machine.
        load: the part of a machine's capacity to use. round_s: how long the round may take.
    """

    cores: float = 16
    memory_gb: float = 64
    network_gbit: float = 10
    broker_messages_s: float = 100_000
    load: float = 0.5
    round_s: float = 3600

    def check(self) -> None:
        """Raise `UsageError` for impossible values."""
        options = {
            "--machine-cores": self.cores,
            "--machine-memory-gb": self.memory_gb,
            "--machine-network-gbit": self.network_gbit,
            "--broker-messages-s": self.broker_messages_s,
            "--round-s": self.round_s,
        }
        for option, value in options.items():
            if not 0 < value < math.inf:
                raise UsageError(f"{option} {value:g}: expected a number above 0")
        if not 0 < self.load <= 1:
            raise UsageError(f"--load {self.load:g}: expected a part above 0, at most 1")

    def count(self, **used: float) -> tuple[int, str]:
        """Return how many machines are needed, and the scarcest resource.

        Args:
            used: core seconds, bytes of memory, bytes sent and received, or messages, by resource.
        """
        capacity = {
            "cores": self.round_s * self.cores,
            "memory": self.memory_gb * _GB,
            "network": self.round_s * self.network_gbit * _GBIT,
            "messages": self.round_s * self.broker_messages_s,
        }
        parts = {resource: amount / capacity[resource] for resource, amount in used.items()}
        tightest = max(parts, key=lambda resource: parts[resource])
        return max(1, math.ceil(parts[tightest] / self.load)), tightest


class RoleNeed(msgspec.Struct, frozen=True):
    """What a role needs in a round, for all its actors and for each."""

    actors: Annotated[int, about("How many.")]
    core_s: Annotated[Ranged, about("Core seconds of all.")]
    core_s_each: Annotated[float, about("Of one.", unit="s")]
    bytes_each: Annotated[float, about("Of one, sent and received.", unit="bytes")]
    memory_bytes_each: Annotated[float | None, about("Of one.", unit="bytes")]
    messages: Annotated[float, about("Sent by all.")]
    bytes: Annotated[float, about("Sent by all.", unit="bytes")]
    machines: Annotated[int | None, about("Needed for all; null for clients, which have their own.")] = None
    tightest: Annotated[str, about("The resource that determines this number.")] = ""


class BrokerNeed(msgspec.Struct, frozen=True):
    """The messages and bytes that pass through the broker, in and out, and the machines that it needs."""

    messages: Annotated[float, about("In and out.")]
    messages_s: Annotated[float, about("Messages a second.")]
    bytes: Annotated[float, about("In and out.", unit="bytes")]
    bytes_s: Annotated[float, about("Bytes a second.")]
    machines: Annotated[int, about("That it needs.")]
    tightest: Annotated[str, about("The resource that determines this number.")]


class Prediction(Size, frozen=True):
    """A predicted round."""

    round_s: Annotated[float, about("Of the round.", unit="s")]
    roles: Annotated[dict[str, RoleNeed], about("What each role needs.")]
    broker: Annotated[BrokerNeed, about("What passes through the broker.")]
    sessions_s: Annotated[float | None, about("Core time once an epoch, for sessions.", unit="s")]
    agreement_s: Annotated[float | None, about("Core time once an epoch, for the keys of all pairs.", unit="s")]
    assumptions: Annotated[list[str], about("What the prediction assumes.")]


def parse_size(text: str) -> Size:
    """Parse a size such as ``clients=1e7,dimension=1e4,computes=10``. Raises `UsageError`."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in _RANGES:
            raise UsageError(f"--predict: {key!r} is unknown{nearest(key, _RANGES)}; expected {', '.join(_RANGES)}")
        if not equals or key in sizes:
            raise UsageError(f"--predict: {part.strip()!r}: expected {key}=NUMBER, once")
        least, most = _RANGES[key]
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (least <= number <= most and number == int(number)):
            raise UsageError(f"--predict: {key}={value}: expected a whole number from {least} to {most:g}")
        sizes[key] = int(number)
    missing = [key for key in _RANGES if key not in sizes]
    if missing:
        wanted = ",".join(f"{key}=..." for key in _RANGES)
        raise UsageError(f"--predict: {', '.join(missing)} is missing; expected {wanted}")
    return Size(**sizes)


def predict(size: Size, costs: Calibration, measured: Sequence[Figures], machine: Machine) -> Prediction:
    """Predict a round of this size.

    Args:
        costs: fitted. measured: the cells that they were fitted to.

    Raises:
        UsageError: the calibration has only one other number of Compute nodes, or lacks a figure.
    """
    require_computes(size, [cell.computes for cell in measured])
    needed = [(key, role) for key in ("core_s_by_role", *COUNTED) for role in ROLES]
    lacking = [f"{key} of {role}" for key, role in needed if (key, role) not in costs]
    if lacking:
        raise UsageError(f"--predict: the calibration has no {', '.join(lacking)}; measure again")
    figures = {figure: cost.at(size) for figure, cost in costs.items()}
    messages, passed = (
        math.fsum(figures[key, role] for key in keys for role in ROLES)
        for keys in (("messages", "received"), ("bytes", "received_bytes"))
    )
    round_s = machine.round_s
    return Prediction(
        size.clients,
        size.dimension,
        size.computes,
        round_s=round_s,
        roles={role: _role(role, size, figures, costs, machine) for role in ROLES},
        broker=BrokerNeed(
            messages, messages / round_s, passed, passed / round_s, *machine.count(messages=messages, network=passed)
        ),
        sessions_s=figures.get(("sessions_s", "")),
        agreement_s=figures.get(("agreement_s", "")),
        assumptions=_assumptions(size, measured, machine),
    )


def require_computes(size: Size, measured: Iterable[int]) -> None:
    """Raise `UsageError` if the calibration has a single M, and this size another."""
    known = sorted(set(measured))
    if len(known) == 1 and size.computes != known[0]:
        raise UsageError(
            f"--predict: computes={size.computes}: the calibration was measured with M = {known[0]} only, and cannot "
            "predict others; calibrate with several, such as --computes 3,10"
        )


def far_beyond(size: Size, measured: Sequence[Figures]) -> Iterator[str]:
    """Yield a warning for each of N, d and M that is more than `FAR` times beyond the calibrated sizes.

    Costs are sums of few terms. Far outside the measured sizes, another term can dominate that the fit could not see:
    predicted from d of at most 100, a client's core time at d = 3,000 was 64 % too low.
    """
    for symbol, key in SIZES.items():
        asked, known = getattr(size, key), [getattr(cell, key) for cell in measured]
        least, most = min(known), max(known)
        if asked > FAR * most:
            yield (
                f"{symbol} = {asked:,} is {asked / most:,.0f} times the largest calibrated {symbol} ({most:,}): times "
                f"may lie outside their intervals; calibrate with --{key} up to {-(-asked // FAR):,} or more"
            )
        elif asked * FAR < least:
            yield (
                f"{symbol} = {asked:,} is {least / asked:,.0f} times less than the smallest calibrated {symbol} "
                f"({least:,}): times may lie outside their intervals; calibrate with --{key} from {asked * FAR:,} on"
            )


def _role(
    role: str, size: Size, figures: Mapping[tuple[str, str], float], costs: Calibration, machine: Machine
) -> RoleNeed:
    actors = {"client": size.clients, "compute": size.computes, "trainer": 1}[role]
    core_s, memory = figures["core_s_by_role", role], figures.get(("memory_bytes", role))
    each, passed = core_s / actors, (figures["bytes", role] + figures["received_bytes", role]) / actors
    machines, tightest = machine.count(cores=each, memory=memory or 0.0, network=passed)
    has_own_machines = role == "client"
    return RoleNeed(
        actors=actors,
        core_s=Ranged(core_s, costs["core_s_by_role", role].interval(size)),
        core_s_each=each,
        bytes_each=passed,
        memory_bytes_each=memory,
        messages=figures["messages", role],
        bytes=figures["bytes", role],
        machines=None if has_own_machines else machines * actors,
        tightest="" if has_own_machines else tightest,
    )


def _assumptions(size: Size, measured: Sequence[Figures], machine: Machine) -> list[str]:
    largest = max(cell.clients * cell.dimension for cell in measured)
    beyond = size.clients * size.dimension / largest
    assumptions = [
        f"cores are as fast as the calibrated ones; costs stay linear up to {beyond:,.0f} times the largest "
        f"calibrated N d ({largest:,})",
        "nobody drops out and nothing is sent twice; sessions exist, and pairs have agreed on keys",
        "only the actors' own work is counted: MQTT clients, TLS and durable writes come on top",
        "clients emulated in one process verify an announcement's signature once for all; devices each verify it",
        "Python's garbage collector is off, as it was when costs were measured",
        "a Compute node's work and memory can be split over machines by client; today a node is one process",
        f"messages are the application's, without MQTT acknowledgements, and spread evenly over {machine.round_s:g} s",
        f"a machine has {machine.cores:g} cores, {machine.memory_gb:g} GB, {machine.network_gbit:g} Gbit/s, or a "
        f"broker of {machine.broker_messages_s:,.0f} messages/s, and {100 * machine.load:g} % of it is used",
    ]
    limits = Limits()
    if size.clients > limits.clients_max:
        assumptions.append(f"the protocol's limit of {limits.clients_max:,} clients is raised")
    if size.dimension > min(BINS_MAX, limits.dimension_max):
        assumptions.append(f"a statistic of over {BINS_MAX:,} values has an announcement as small as a histogram's")
    return assumptions
