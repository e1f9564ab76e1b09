"""What owners do during a trial: newer federation files, revocations, files that do not fit, and stricter policies.

Each public name is the steps of a kind of fault (`faults.FAULTS`). A newer file reaches one member: at its restart, or
as a message. The members pass it on by themselves. When all faults are mended, one server gets the newest file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from dca_proto.crypto.sealing import KEY_BYTES, Identity
from dca_proto.protocol.effects import Address, Channel
from dca_proto.protocol.federation import Federation, Member
from dca_proto.protocol.policy import Floors, Policy
from dca_proto.protocol.wire.codec import encode, sign
from dca_proto.protocol.wire.messages import FederationFile
from emulator.sim.lane import Packet
from emulator.sim.process import Process
from emulator.trials.fault import END, HANDLED, Injection, Steps
from emulator.trials.federation import TrialFederation
from emulator.trials.phases import entered
from emulator.trials.scenario import Changes

_WAIT_MS = 1_000
_FILES = 3
_CAREFUL = 40
"""Of 256 clients with a strict policy, how many also want secure sums only."""


def give(injection: Injection, process: Process, file: Federation) -> None:
    """Give an actor a newer federation file: at a restart, or as a message while it runs."""
    if process.is_up and injection.stream.random() < 0.5:
        process.receive(process.id, encode(file.frame))
        return
    own = injection.world.follows(process)
    if own.number < file.number and {*own.revoked} <= {*file.revoked}:
        injection.world.actors.given[process.id] = file
        process.restart()


def _server(injection: Injection, besides: Sequence[Process]) -> Process:
    """Choose a trainer or a Compute node other than these processes."""
    servers = [process for process in (injection.world.trainer, *injection.world.computes) if process not in besides]
    return injection.stream.choice(servers)


def new_file(injection: Injection) -> Steps:
    """Give one server a newer file with the same members."""
    injection.reached(injection.targets[0])
    injection.note("a newer federation file", injection.targets[0])
    give(injection, injection.targets[0], injection.world.actors.revoke())
    yield END


def new_p(injection: Injection) -> Steps:
    """Give one server a newer file with another p."""
    actors = injection.world.actors
    others = {*range(len(actors.computes))} - {actors.newest.colluding}
    injection.reached(injection.targets[0])
    file = actors.sign_file(actors.revoked, _next(actors), injection.stream.choice(sorted(others)))
    injection.note(f"a newer federation file with p = {file.p}", injection.targets[0])
    give(injection, injection.targets[0], file)
    yield END


def revoke(injection: Injection) -> Steps:
    """Revoke a member, at the given time or when it enters a phase; a server gets the newer file first."""
    (process,) = injection.targets
    while injection.fault.phase:
        _, effects = yield HANDLED
        if injection.fault.phase in entered(effects):
            break

    def strike() -> None:
        injection.note("is revoked", process)
        give(injection, _server(injection, injection.targets), injection.world.actors.revoke(process.id))

    injection.reached(process, injection.fault.phase)
    injection.simulator.at(injection.simulator.now_ms, strike)
    yield END


def two_files(injection: Injection) -> Steps:
    """Sign two files of one number: the target follows one, another server the other."""
    actors, (process,) = injection.world.actors, injection.targets
    number, spare = actors.newest.number + 1, injection.stream.randbytes(16)
    other = _server(injection, injection.targets)
    injection.reached(process)
    injection.note("follows another file of the same number", process)
    give(injection, other, actors.sign_file(actors.revoked, number))
    give(injection, process, actors.sign_file({*actors.revoked, spare}, number))
    yield END


def wrong_files(injection: Injection) -> Steps:
    """Pass on files that the owner should never have signed; members that know better refuse them."""
    actors = injection.world.actors

    def unfit() -> bytes:
        name, keys = actors.federation.name, [identity.public_key for identity in actors.compute_identities]
        body = FederationFile(actors.newest.number + 1, tuple((name, key, b"") for key in keys), (), (), 0, ())
        return encode(sign(actors.authority, actors.federation.id, encode(body)))

    def forged() -> bytes:
        file = Federation(actors.federation.name, actors.federation.enrolment_key, *_members(actors), _next(actors))
        return encode(sign(Identity(injection.stream.randbytes(KEY_BYTES)), actors.federation.id, file.frame.body))

    def older() -> bytes:
        return injection.stream.choice(list(actors.files))

    def same_number() -> bytes:
        spare = injection.stream.randbytes(16)
        return encode(actors.sign_file({*actors.newest.revoked, spare}, actors.newest.number).frame)

    def taking_back() -> bytes:
        if not actors.revoked:  # first a right one
            return encode(actors.revoke(injection.stream.randbytes(16)).frame)
        file = actors.sign_file(actors.revoked - set(injection.stream.sample(sorted(actors.revoked), 1)), _next(actors))
        return encode(file.frame)

    def send(draw: Callable[[], bytes]) -> None:
        injection.world.router.inject_message(
            Packet(injection.world.trainer.id, Address(Channel.FEDERATION), b"", draw())
        )
        injection.reached(injection.world.trainer)

    kinds = [unfit, forged, older, same_number, taking_back, taking_back]
    count = int(injection.amount) or _FILES
    for number in range(count):
        injection.simulator.after(number * _WAIT_MS, send, injection.stream.choice(kinds))
    injection.stop_after(count * _WAIT_MS)
    yield END


def _members(actors: TrialFederation) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    return actors.federation.computes, actors.federation.trainers


def _next(actors: TrialFederation) -> int:
    return actors.newest.number + 1


def withhold_files(injection: Injection) -> Steps:
    """A server gets a newer file, and the broker drops all federation files."""

    def tamper(packet: Packet) -> Sequence[Packet]:
        if packet.to.channel is not Channel.FEDERATION:
            return (packet,)
        injection.reached(injection.world.trainer)
        return ()

    injection.world.router.tampers.append(tamper)
    give(injection, _server(injection, ()), injection.world.actors.revoke())
    yield END
    injection.world.router.tampers.remove(tamper)


# --- limits of single actors ------------------------------------------------------------------------------------------


def _stricter(injection: Injection) -> dict[str, Changes]:
    """Return changes of a client's policy, each of which forbids the scenario's rounds, by name."""
    actors, scenario = injection.world.actors, injection.world.scenario
    rounds, columns = scenario.rounds, actors.statistic.columns
    changes: dict[str, Changes] = {
        "trainers": {"trainers": (bytes(16).hex(),)},
        "statistics": {"statistics": ("weights",)},
        "epsilon": {"epsilon_per_round_max": rounds.epsilon / 2},
        "period": {"epsilon_per_period_max": rounds.epsilon / 2, "period_days": 0.01},
        "bounds": {"bounds": {columns[0]: (-0.5, 0.5)}},
    }
    if actors.statistic.dimension > 1:
        changes["dimension"] = {"dimension_max": actors.statistic.dimension - 1}
    if rounds.announced_delta:
        changes["delta"] = {"delta_max": rounds.announced_delta / 2}
    if rounds.is_summed:
        everybody = scenario.population.clients
        changes["clients"] = {"clients_min": everybody + 1}
        changes["honest"] = {"honest_min": everybody}
        changes["colluders"] = {"colluders_min": everybody}
        changes["part of colluders"] = {"colluders_part_min": 0.999}
        changes["computes"] = {"computes_min": scenario.population.computes + 1}
        changes["trusted"] = {"trusted_computes": ("compute-0", "a node of another file")}
    if actors.policy.rows_of_many:
        changes["rows of many"] = {"rows_of_many": False}
    return changes


def _policy(injection: Injection, process: Process) -> Policy:
    changes = _stricter(injection)
    if "rows of many" in changes and injection.stream.random() < 0.3:  # only node releases have this limit
        return msgspec.structs.replace(injection.world.actors.policy, **changes["rows of many"])
    changed = msgspec.structs.replace(injection.world.actors.policy, **changes[injection.stream.choice(list(changes))])
    is_careful = not injection.world.scenario.rounds.is_summed and process.id[-1] < _CAREFUL
    return msgspec.structs.replace(changed, sums_only=True) if is_careful else changed


def strict_policy(injection: Injection) -> Steps:
    """Give clients policies that forbid the rounds, each in one of its limits; all of them, or each by chance."""
    chance = injection.amount or 1.0
    chosen = [process for process in injection.targets if injection.stream.random() < chance]
    policies, given = injection.world.actors.policies, dict[bytes, Policy]()
    for process in chosen:
        injection.reached(process)
        policies[process.id] = given[process.id] = _policy(injection, process)
        process.restart()
    yield END
    for process in chosen:
        if policies.get(process.id) is given[process.id]:  # else a later fault of this kind has replaced it
            del policies[process.id]
        process.restart()


def strict_floors(injection: Injection) -> Steps:
    """Give Compute nodes floors that no round meets: too many clients, too many honest ones, or another trainer."""
    unreachable = len(injection.world.actors.clients) + 1
    floors = (
        Floors(clients_min=unreachable, honest_min=1),
        Floors(clients_min=1, honest_min=unreachable),
        Floors(clients_min=1, honest_min=1, trainers=(bytes(16).hex(),)),
    )
    for process in injection.targets:
        injection.reached(process)
        injection.world.actors.floors_by[process.id] = injection.stream.choice(floors)
        process.restart()
    yield END
    for process in injection.targets:
        injection.world.actors.floors_by.pop(process.id, None)
        process.restart()
