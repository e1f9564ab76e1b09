"""What a round would take that this machine cannot hold, and how many machines it needs, from calibrated costs.

Core seconds, messages, bytes and memory are those of the actors' own work; the emulator's is left out. A machine is
needed for whichever is the tightest: its cores within the time that the round may take, its memory, or its network.
What a prediction assumes is told with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dca_proto.errors import UsageError
from dca_proto.protocol.params import Limits
from dca_proto.protocol.wire.fields import COMPUTES_MAX
from dca_proto.statistics.histogram import BINS_MAX
from dca_proto.wording import nearest
from emulator.scaling.calibration import Calibration, Size
from emulator.scaling.cell import CLIENTS_MIN
from emulator.scaling.held import Figures
from emulator.scaling.meter import ROLES

KEYS = {"clients": "N", "dimension": "d", "computes": "M"}
_SIZE_MAX = 10**12
_GB, _GBIT = 1e9, 1e9 / 8
_NEEDED = ("core_s_by_role", "messages", "bytes", "received", "received_bytes")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that Compute nodes, trainer or broker may run on, and how busy one lets it be.

    Attributes:
        broker_messages_s: what a broker on one takes in and gives out, together.
        load: the part of a machine's capacity that is used.
    """

    cores: float = 16
    memory_gb: float = 64
    network_gbit: float = 10
    broker_messages_s: float = 100_000
    load: float = 0.5

    def check(self) -> None:
        """Raises `UsageError` for what no machine is."""
        for name in ("cores", "memory_gb", "network_gbit", "broker_messages_s"):
            if not 0 < getattr(self, name) < math.inf:
                option = "--" + ("" if name.startswith("broker") else "machine-") + name.replace("_", "-")
                raise UsageError(f"{option} {getattr(self, name):g}: expected a number above 0")
        if not 0 < self.load <= 1:
            raise UsageError(f"--load {self.load:g}: expected a part above 0, at most 1")


class Figure(msgspec.Struct, frozen=True):
    """A predicted figure, and where 95 of 100 refits of the calibration put it."""

    value: float
    interval: tuple[float, float]


class RoleNeed(msgspec.Struct, frozen=True):
    """What a role takes in a round, all its actors together, and one of them.

    Attributes:
        actors: how many. core_s: core seconds of all. core_s_each, bytes_each, memory_bytes_each: of one;
            bytes are sent and received.
        messages, bytes: sent by all. machines: needed for all; None for clients, which have their own.
        tightest: what decides their number.
    """

    actors: int
    core_s: Figure
    core_s_each: float
    bytes_each: float
    memory_bytes_each: float | None
    messages: float
    bytes: float
    machines: int | None = None
    tightest: str = ""


class BrokerNeed(msgspec.Struct, frozen=True):
    """What passes through the broker: messages and bytes, in and out."""

    messages: float
    messages_s: float
    bytes: float
    bytes_s: float
    machines: int
    tightest: str


class Prediction(msgspec.Struct, frozen=True):
    """A predicted round.

    Attributes:
        sessions_s, agreement_s: core seconds once an epoch, for Hellos and for agreeing on the keys of all pairs.
    """

    clients: int
    dimension: int
    computes: int
    round_s: float
    roles: dict[str, RoleNeed]
    broker: BrokerNeed
    sessions_s: float | None
    agreement_s: float | None
    assumptions: list[str]


def parse_question(text: str) -> Size:
    """The size in ``clients=1e7,dimension=1e4,computes=10``. Raises `UsageError`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in KEYS:
            raise UsageError(f"--predict: {key!r} is unknown{nearest(key, KEYS)}; expected {', '.join(KEYS)}")
        if not equals or key in found:
            raise UsageError(f"--predict: {part.strip()!r}: expected {key}=NUMBER, once")
        found[key] = _whole(key, value)
    missing = [key for key in KEYS if key not in found]
    if missing:
        wanted = ",".join(f"{key}=..." for key in KEYS)
        raise UsageError(f"--predict: {', '.join(missing)} is missing; expected {wanted}")
    return Size(found["clients"], found["dimension"], found["computes"])


def _whole(key: str, text: str) -> int:
    least = {"clients": CLIENTS_MIN, "dimension": 1, "computes": 2}[key]
    most = COMPUTES_MAX if key == "computes" else _SIZE_MAX
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (least <= value <= most and value == int(value)):
        raise UsageError(f"--predict: {key}={text}: expected a whole number from {least} to {most:g}")
    return int(value)


def predict(
    size: Size, costs: Calibration, measured: Sequence[Figures], machine: Machine, round_s: float
) -> Prediction:
    """The round of that size.

    Args:
        costs: fitted. measured: the cells that they were fitted to. round_s: how long the round may take.

    Raises:
        UsageError: the calibration says nothing about that number of Compute nodes, or lacks a figure.
    """
    require_computes(size, [cell.computes for cell in measured])
    lacking = [f"{key} of {role}" for key in _NEEDED for role in ROLES if (key, role) not in costs]
    if lacking:
        raise UsageError(f"--predict: the calibration has no {', '.join(lacking)}; measure anew")
    roles = {role: _role(role, size, costs, machine, round_s) for role in ROLES}
    sessions, agreement = costs.get(("sessions_s", "")), costs.get(("agreement_s", ""))
    return Prediction(
        clients=size.clients,
        dimension=size.dimension,
        computes=size.computes,
        round_s=round_s,
        roles=roles,
        broker=_broker(size, costs, machine, round_s),
        sessions_s=None if sessions is None else sessions.at(size),
        agreement_s=None if agreement is None else agreement.at(size),
        assumptions=_assumptions(size, measured, machine, round_s),
    )


def require_computes(size: Size, measured: Iterable[int]) -> None:
    """Refuse an M that a calibration with these says nothing about. Raises `UsageError`."""
    known = sorted(set(measured))
    if len(known) == 1 and size.computes != known[0]:
        raise UsageError(
            f"--predict: computes={size.computes}: the calibration was measured with M = {known[0]} alone, which says "
            "nothing about others; calibrate with several, as --computes 3,10"
        )


def _role(role: str, size: Size, costs: Calibration, machine: Machine, round_s: float) -> RoleNeed:
    actors = {"client": size.clients, "compute": size.computes, "trainer": 1}[role]
    core = costs["core_s_by_role", role]
    sent, taken = costs["bytes", role].at(size), costs["received_bytes", role].at(size)
    memory = costs.get(("memory_bytes", role))
    need = RoleNeed(
        actors=actors,
        core_s=Figure(core.at(size), core.interval(size)),
        core_s_each=core.at(size) / actors,
        bytes_each=(sent + taken) / actors,
        memory_bytes_each=None if memory is None else memory.at(size),
        messages=costs["messages", role].at(size),
        bytes=sent,
    )
    if role == "client":
        return need
    each, tightest = _machines(
        machine,
        {
            "cores": need.core_s_each / (round_s * machine.cores),
            "memory": (need.memory_bytes_each or 0.0) / (machine.memory_gb * _GB),
            "network": need.bytes_each / (round_s * machine.network_gbit * _GBIT),
        },
    )
    return msgspec.structs.replace(need, machines=each * actors, tightest=tightest)


def _broker(size: Size, costs: Calibration, machine: Machine, round_s: float) -> BrokerNeed:
    def total(*keys: str) -> float:
        return math.fsum(costs[key, role].at(size) for key in keys for role in ROLES)

    messages, passed = total("messages", "received"), total("bytes", "received_bytes")
    machines, tightest = _machines(
        machine,
        {
            "messages": messages / (round_s * machine.broker_messages_s),
            "network": passed / (round_s * machine.network_gbit * _GBIT),
        },
    )
    return BrokerNeed(messages, messages / round_s, passed, passed / round_s, machines, tightest)


def _machines(machine: Machine, used: Mapping[str, float]) -> tuple[int, str]:
    """How many machines, when so many whole ones are used of each resource; and which decides."""
    tightest = max(used, key=lambda resource: used[resource])
    return max(1, math.ceil(used[tightest] / machine.load)), tightest


def _assumptions(size: Size, measured: Sequence[Figures], machine: Machine, round_s: float) -> list[str]:
    largest = max(cell.clients * cell.dimension for cell in measured)
    beyond = size.clients * size.dimension / largest
    told = [
        f"a core works as fast as those calibrated; costs stay linear {beyond:,.0f} times beyond the largest "
        f"calibrated N d ({largest:,})",
        "nobody drops out and nothing is sent twice; sessions stand, and pairs have agreed on keys",
        "the actors' own work: MQTT clients, TLS and durable writes come on top",
        "clients emulated in one process verify an announcement's signature once and share what follows from it; a "
        "device does so itself",
        "Python's garbage collector is off, as it was when costs were measured",
        "a Compute node's work and memory spread over its machines by client; as it stands, a node is one process",
        f"messages are the application's: acknowledgements are not counted, and are spread evenly over {round_s:g} s",
        f"a machine has {machine.cores:g} cores, {machine.memory_gb:g} GB, {machine.network_gbit:g} Gbit/s, or a "
        f"broker of {machine.broker_messages_s:,.0f} messages/s, and is used to {100 * machine.load:g} %",
    ]
    limits = Limits()
    if size.clients > limits.clients_max:
        told.append(f"the protocol's limit of {limits.clients_max:,} clients is raised")
    if size.dimension > min(BINS_MAX, limits.dimension_max):
        told.append(f"a statistic of more than {BINS_MAX:,} coordinates with an announcement as small as a histogram's")
    return told
