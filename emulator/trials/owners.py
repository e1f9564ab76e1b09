"""What owners do during a trial: newer federation files, revocations, files that do not fit, and stricter policies.

Each public name is the steps of a kind of fault (`faults.FAULTS`). A newer file reaches one member: at its restart, or
as a message. The members pass it on by themselves. When all faults are mended, one server gets the newest file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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

_WAIT_MS = 1_000
_FILES = 3
_CAREFUL = 40
"""Of 256 clients with a strict policy, how many also want secure sums only."""


def give(it: Injection, process: Process, file: Federation) -> None:
    """Give an actor a newer federation file: at a restart, or as a message while it runs."""
    if process.is_up and it.stream.random() < 0.5:
        process.receive(process.id, encode(file.frame))
    elif it.world.follows(process).number < file.number and set(it.world.follows(process).revoked) <= set(file.revoked):
        it.world.actors.given[process.id] = file
        process.restart()


def _server(it: Injection, besides: Sequence[Process]) -> Process:
    """Choose a trainer or a Compute node other than these processes."""
    servers = [process for process in (it.world.trainer, *it.world.computes) if process not in besides]
    return it.stream.choice(servers)


def new_file(it: Injection) -> Steps:
    """Give one server a newer file with the same members."""
    it.reached(it.targets[0])
    it.note("a newer federation file", it.targets[0])
    give(it, it.targets[0], it.world.actors.revoke())
    yield END


def new_p(it: Injection) -> Steps:
    """Give one server a newer file with another p."""
    actors = it.world.actors
    others = {*range(len(actors.computes))} - {actors.newest.colluding}
    it.reached(it.targets[0])
    file = actors.sign_file(actors.revoked, _next(actors), it.stream.choice(sorted(others)))
    it.note(f"a newer federation file with p = {file.p}", it.targets[0])
    give(it, it.targets[0], file)
    yield END


def revoke(it: Injection) -> Steps:
    """Revoke a member, at the given time or when it enters a phase; a server gets the newer file first."""
    (process,) = it.targets
    while it.fault.phase:
        _, effects = yield HANDLED
        if it.fault.phase in entered(effects):
            break

    def strike() -> None:
        it.note("is revoked", process)
        give(it, _server(it, it.targets), it.world.actors.revoke(process.id))

    it.reached(process, it.fault.phase)
    it.simulator.at(it.simulator.now_ms, strike)
    yield END


def two_files(it: Injection) -> Steps:
    """Sign two files of one number: the target follows one, another server the other."""
    actors, (process,) = it.world.actors, it.targets
    number, spare = actors.newest.number + 1, it.stream.randbytes(16)
    other = _server(it, it.targets)
    it.reached(process)
    it.note("follows another file of the same number", process)
    give(it, other, actors.sign_file(actors.revoked, number))
    give(it, process, actors.sign_file({*actors.revoked, spare}, number))
    yield END


def wrong_files(it: Injection) -> Steps:
    """Pass on files that the owner should never have signed; members that know better refuse them."""
    actors = it.world.actors

    def unfit() -> bytes:
        name, keys = actors.federation.name, [identity.public_key for identity in actors.compute_identities]
        body = FederationFile(actors.newest.number + 1, tuple((name, key, b"") for key in keys), (), (), 0, ())
        return encode(sign(actors.authority, actors.federation.id, encode(body)))

    def forged() -> bytes:
        file = Federation(actors.federation.name, actors.federation.enrolment_key, *_members(actors), _next(actors))
        return encode(sign(Identity(it.stream.randbytes(KEY_BYTES)), actors.federation.id, file.frame.body))

    def older() -> bytes:
        return it.stream.choice(list(actors.files))

    def same_number() -> bytes:
        spare = it.stream.randbytes(16)
        return encode(actors.sign_file({*actors.newest.revoked, spare}, actors.newest.number).frame)

    def taking_back() -> bytes:
        if not actors.revoked:  # first a right one
            return encode(actors.revoke(it.stream.randbytes(16)).frame)
        file = actors.sign_file(actors.revoked - set(it.stream.sample(sorted(actors.revoked), 1)), _next(actors))
        return encode(file.frame)

    def send(draw: Callable[[], bytes]) -> None:
        it.world.router.inject_message(Packet(it.world.trainer.id, Address(Channel.FEDERATION), b"", draw()))
        it.reached(it.world.trainer)

    kinds = [unfit, forged, older, same_number, taking_back, taking_back]
    count = int(it.amount) or _FILES
    for number in range(count):
        it.simulator.after(number * _WAIT_MS, send, it.stream.choice(kinds))
    it.stop_after(count * _WAIT_MS)
    yield END


def _members(actors: TrialFederation) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    return actors.federation.computes, actors.federation.trainers


def _next(actors: TrialFederation) -> int:
    return actors.newest.number + 1


def withhold_files(it: Injection) -> Steps:
    """A server gets a newer file, and the broker drops all federation files."""

    def tamper(packet: Packet) -> Sequence[Packet]:
        if packet.to.channel is not Channel.FEDERATION:
            return (packet,)
        it.reached(it.world.trainer)
        return ()

    it.world.router.tampers.append(tamper)
    give(it, _server(it, ()), it.world.actors.revoke())
    yield END
    it.world.router.tampers.remove(tamper)


# --- limits of single actors ------------------------------------------------------------------------------------------


def _stricter(it: Injection) -> dict[str, dict[str, Any]]:
    """Return changes of a client's policy, each of which forbids the scenario's rounds, by name."""
    actors, scenario = it.world.actors, it.world.scenario
    rounds, columns = scenario.rounds, actors.statistic.columns
    changes: dict[str, dict[str, Any]] = {
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


def _policy(it: Injection, process: Process) -> Policy:
    changes = _stricter(it)
    if "rows of many" in changes and it.stream.random() < 0.3:  # only node releases have this limit
        return msgspec.structs.replace(it.world.actors.policy, **changes["rows of many"])
    changed = msgspec.structs.replace(it.world.actors.policy, **changes[it.stream.choice(list(changes))])
    is_careful = not it.world.scenario.rounds.is_summed and process.id[-1] < _CAREFUL
    return msgspec.structs.replace(changed, sums_only=True) if is_careful else changed


def strict_policy(it: Injection) -> Steps:
    """Give clients policies that forbid the rounds, each in one of its limits; all of them, or each by chance."""
    chance = it.amount or 1.0
    chosen = [process for process in it.targets if it.stream.random() < chance]
    policies, given = it.world.actors.policies, dict[bytes, Policy]()
    for process in chosen:
        it.reached(process)
        policies[process.id] = given[process.id] = _policy(it, process)
        process.restart()
    yield END
    for process in chosen:
        if policies.get(process.id) is given[process.id]:  # else a later fault of this kind has replaced it
            del policies[process.id]
        process.restart()


def strict_floors(it: Injection) -> Steps:
    """Give Compute nodes floors that no round meets: too many clients, too many honest ones, or another trainer."""
    unreachable = len(it.world.actors.clients) + 1
    floors = (
        Floors(clients_min=unreachable, honest_min=1),
        Floors(clients_min=1, honest_min=unreachable),
        Floors(clients_min=1, honest_min=1, trainers=(bytes(16).hex(),)),
    )
    for process in it.targets:
        it.reached(process)
        it.world.actors.floors_by[process.id] = it.stream.choice(floors)
        process.restart()
    yield END
    for process in it.targets:
        it.world.actors.floors_by.pop(process.id, None)
        process.restart()
