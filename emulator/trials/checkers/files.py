"""Invariant 16: members follow signed files only, forwards only, and a member with a file keeps out whom it revokes.

The checker knows every file that the owner has signed, and reads from the stores which one each member follows. Its
lists of members and of revoked ids are the owner's (`TrialFederation.files`), not the product's reading of a message.
"""

from __future__ import annotations

from collections.abc import Sequence

from dca_proto.protocol.effects import Channel, Persist, Send, Write
from dca_proto.protocol.federation import FILES, Federation
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.records import decoded
from dca_proto.protocol.sessions import SESSIONS, StoredSession
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.messages import Announcement, EpochKey, FileStamp, Hello, SessionsWanted
from emulator.derivations import digest
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, Key, ReleasedVector, RunLog, about
from emulator.trials.checkers.entries import Entry
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, body_of

_SETTLED_MS = 120_000
_STAMPED = {Channel.HELLO: Hello, Channel.EPOCH: EpochKey, Channel.COMPUTE: SessionsWanted}


class Revocation(Checker):
    """Checks files that members store, and whom each lets take part while it follows a file."""

    number, name = 16, "revocation and files"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._held: dict[Process, Federation] = {}
        self._revoked_at_answer: dict[Key, tuple[bytes, ...]] = {}
        self._stamps: dict[bytes, FileStamp] = {}  # by the hash of the Hello
        self._taken: set[tuple[bytes, bytes]] = set()  # sessions seen: node, hash of the Hello
        self._to_publish: set[bytes] = set()  # servers that follow a file which they have not published yet

    def _file(self, process: Process) -> Federation:
        """Return the file that a process durably follows."""
        return self._held.get(process, self.world.actors.federation)

    # --- which file a member follows --------------------------------------------------------------------------------

    def on_restart(self, process: Process) -> None:
        """A member starts with the newer of the given and the stored file."""
        held = self._held[process] = self.world.follows(process)
        if self.is_honest(process) and process.actor is not None:
            same = process.actor.federation.frame == held.frame
            self.expect(same, f"{process.name} starts with another file than the newest that it has")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """A new file is signed by the owner, has a higher number, and takes no revocation back."""
        for write in writes:
            if isinstance(write, Persist) and write.table == FILES and self.is_honest(process):
                self._check_file(process, write.value)

    def _check_file(self, process: Process, payload: bytes) -> None:
        before, file = self._file(process), self.world.actors.files.get(payload)
        if file is None:
            self.fail(f"{process.name} follows a federation file that the owner has not signed")
            return
        newer = file.number > before.number or file.frame == before.frame
        self.expect(newer, f"{process.name} follows file {file.number} after file {before.number}")
        back = set(before.revoked) - set(file.revoked)
        self.expect(not back, f"{process.name} follows a file that takes a revocation back")
        self._held[process] = file
        self._check_sessions(process)
        if file.frame != before.frame and _is_server(file, process.id):
            self._to_publish.add(process.id)

    def _check_sessions(self, node: Process) -> None:
        """With a new file a node ends the sessions of all clients that it revokes."""
        for client in self._file(node).revoked if node.role is Channel.COMPUTE else ():
            record = node.disk.records.get((SESSIONS, client))
            ended = record is None or decoded(SESSIONS, record, StoredSession).current is None
            self.expect(ended, f"{node.name} follows a file that revokes {client.hex()[:8]}, whose session stays")

    def on_kill(self, process: Process) -> None:
        """A start publishes the file again."""
        self._to_publish.discard(process.id)

    def on_send(self, process: Process, send: Send) -> None:
        """A member states the file that it follows; a server passes it on; a revoked trainer gets no sum."""
        channel = send.to.channel
        if not self.is_honest(process):
            return
        if channel is Channel.FEDERATION:
            same = send.payload == encode(self._file(process).frame)
            self.expect(same, f"{process.name} publishes another file than it follows")
            self._to_publish.discard(process.id)
        elif channel in _STAMPED and not send.round_id:
            body = body_of(send.payload)
            if isinstance(body, _STAMPED[channel]):
                self._check_stamp(process, body.file, exact=not isinstance(body, Hello))
                if isinstance(body, Hello):
                    self._stamps[digest("hello", send.payload)] = body.file
        elif channel is Channel.TRAINER and process.role is Channel.COMPUTE and send.round_id:
            is_sum = self.log.is_release(process.id, send.round_id, send.payload)
            sends_sum = is_sum and not _is_server(self._file(process), send.to.id)
            self.expect(not sends_sum, f"{about(process, send.round_id)}: it sends its sum to a revoked trainer")

    def _check_stamp(self, process: Process, stamp: FileStamp, *, exact: bool) -> None:
        held = self._file(process)
        states = (stamp.number, stamp.hash) == (held.number, held.hash) or (not exact and stamp.number < held.number)
        self.expect(states, f"{process.name} states file {stamp.number}, but follows file {held.number}")

    # --- who takes part -----------------------------------------------------------------------------------------------

    def on_session(self, node: Process, client: bytes, stored: StoredSession) -> None:
        """A node has no session of a client that it knows as revoked, and ends no other client's session.

        It begins none with a client that states another file of the same number than its own.
        """
        who = f"{node.name}, {client.hex()[:8]}"
        if stored.current is None:
            self.expect(client in self.world.actors.revoked, f"{who}: a session ends, but nobody revoked the client")
        else:
            file, hello = self._file(node), stored.current.hash
            self.expect(client not in file.revoked, f"{who} has a session, but is revoked")
            stamp = self._stamps.get(hello)
            if stamp is not None and (node.id, hello) not in self._taken:
                other = stamp.number == file.number and stamp.hash != file.hash
                self.expect(not other, f"{who} begins a session, though it states another file {file.number}")
            self._taken.add((node.id, hello))

    def on_kept(self, node: Process, round_id: bytes, client: bytes, kept: object) -> None:
        """A node keeps no contribution of a client that it knows as revoked."""
        if self.is_honest(node):
            out = client in self._file(node).revoked
            self.expect(not out, f"{about(node, round_id)}: it keeps a contribution of the revoked {client.hex()[:8]}")

    def on_answer(self, node: Process, accepted: Accepted, union: list[Entry] | None, objected: list[int]) -> None:
        """A node objects to all clients that it knows as revoked."""
        revoked = self._revoked_at_answer[node.id, accepted.body.round_id] = self._file(node).revoked
        excluded = set(objected)
        admitted = {entry.client for place, entry in enumerate(union or ()) if place not in excluded}
        names = ", ".join(client.hex()[:8] for client in admitted.intersection(revoked))
        self.expect(not names, f"{about(node, accepted.body.round_id)}: it accepts {names}, which it knows as revoked")

    def on_partial_sum(self, release: ReleasedVector) -> None:
        """Nothing is released to a trainer, or with a node, that the file does not name; no revoked client is in A."""
        process = self.world.simulator.processes[release.sender]
        file, accepted = self._file(process), self.log.accepted.get((release.sender, release.round_id))
        if accepted is None:
            return  # invariant 2 reports it
        who = f"compute {release.sender.hex()[:8]} releases round {release.round_id.hex()[:8]}"
        self.expect(_is_server(file, accepted.body.trainer), f"{who} to a revoked trainer")
        named = all(_is_server(file, compute) for compute in accepted.computes)
        self.expect(named, f"{who} with a Compute node that its file does not name")
        known = [self._revoked_at_answer.get((node, release.round_id), ()) for node in accepted.computes]
        out = {client for revoked in known for client in revoked}
        names = ", ".join(entry.client.hex()[:8] for entry in self.log.agreed(release) or () if entry.client in out)
        self.expect(not names, f"{who} over the revoked {names}")

    def on_stored_release(self, trainer: Process, round_id: bytes, client: bytes) -> None:
        """A trainer keeps no release of a client that it knows as revoked."""
        if self.is_honest(trainer):
            out = client in self._file(trainer).revoked
            self.expect(not out, f"round {round_id.hex()[:8]}: the release of the revoked {client.hex()[:8]} is kept")

    def on_begun(self, node: Process, accepted: Accepted) -> None:
        self._check_round(node, accepted.body, accepted.computes)

    def on_charge(self, process: Process, charge: Charge) -> None:
        """A client pays, and a trainer announces, only in a round of members of its file; no revoked client pays."""
        accepted = self.log.accepted.get((process.id, charge.round_id))
        if process.role is Channel.CLIENT and accepted is not None and not charge.returned:
            self._check_round(process, accepted.body, accepted.computes)
            out = process.id in self._file(process).revoked
            self.expect(not out, f"{about(process, charge.round_id)}: it pays, though its file revokes it")

    def _check_round(self, process: Process, body: Announcement, computes: Sequence[bytes]) -> None:
        """A round is announced under a file that is known here, or an older one, and by members of this file."""
        file, who = self._file(process), f"{process.name} takes part in round {body.round_id.hex()[:8]}"
        self.expect(_is_server(file, body.trainer), f"{who} of a trainer that its file does not name")
        named = all(_is_server(file, compute) for compute in computes)
        self.expect(named, f"{who} with a Compute node that its file does not name")
        known = body.federation_number < file.number or body.federation_hash == file.hash
        self.expect(known, f"{who}, which was announced under a file that it does not have")

    def finish(self) -> None:
        """Servers have published new files; some time after mending, everybody follows the newest."""
        names = ", ".join(one.hex()[:8] for one in self._to_publish)
        self.expect(not names, f"{names} follows a new file, but has not published it")
        since_ms, newest = self.world.mended_ms, self.world.actors.newest
        if since_ms is None or self.world.simulator.now_ms < since_ms + _SETTLED_MS:
            return
        for process in self.honest():
            if process.is_up:
                number = self._file(process).number
                self.expect(number == newest.number, f"{process.name} follows file {number}, not {newest.number}")


def _is_server(file: Federation, actor: bytes) -> bool:
    """Return True if a file names a Compute node or trainer, by its lists of members."""
    return any(member.id == actor for member in (*file.computes, *file.trainers))
