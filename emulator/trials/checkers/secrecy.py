"""Invariant 12: secrets are derived as DESIGN §9 specifies, and nobody else can learn one.

The checker observes the random bytes that each actor draws. From these, the seeds of identities, the rows and the
messages, it derives all secrets a second time (`emulator.derivations`): epoch secrets, roots, noise keys, pair keys,
masks, and the keys of sealed messages. Each honest actor must have used exactly these. So a noise key with another
label, without the 32 fresh bytes or without the client's secret is noticed, and so is a key that has two purposes.

Then `emulator.knowledge` looks for each secret, and for each word of it, in all that leaves: messages as the broker
sees them, contents as their receivers read them, and facts. It applies the labels of DESIGN to what others can read. A
secret must be nowhere that a member who does not own it can read or derive.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.local import LocalMechanism
from dca_proto.privacy.mechanism import RANDOMISED_RESPONSE, UNARY_ENCODING, DistributedDiscreteGaussian
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.effects import Channel, Effect, Persist, Send
from dca_proto.protocol.events import Event
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.own_session import HELLO
from dca_proto.protocol.params import Limits
from dca_proto.protocol.records import decoded
from dca_proto.protocol.trainer.round import StoredTrainerRound
from dca_proto.protocol.validation import validate_announcement
from dca_proto.protocol.wire.codec import decode_body, decode_frame
from dca_proto.protocol.wire.messages import Announcement, Contribution, Release, Sealed, Signed
from emulator import derivations as by_design
from emulator import reference, verified
from emulator.knowledge import EVERYBODY, Knowledge, Members
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, RunLog, about
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, body_of, contributions_in, statement_of, words_in

_SEALED = b"\x95\x02"  # the first bytes of a sealed frame
_FIELDS, _SAMPLES = 6, 3  # public values and secrets from which a trial derives others
_FIELD_BYTES = range(16, 65)
_DRAWS, _VALUES, _VARIED = 256, 2_048, 32


class _Own(NamedTuple):
    """An actor. `stream`: the name of its random stream. `hedge`: derived from its identity's `seed`."""

    stream: str
    seed: bytes
    hedge: bytes


class Secrecy(Checker):
    """Derives all secrets of honest actors, and looks for them in all that leaves.

    Args:
        revealed: the bytes in facts, complete when this checker finishes.
    """

    number, name = 12, "secrets stay secret"

    def __init__(self, world: TrialWorld, log: RunLog, revealed: set[bytes]) -> None:
        super().__init__(world, log)
        actors = world.actors
        groups = {
            "client": actors.client_identities,
            "compute": actors.compute_identities,
            "trainer": [actors.trainer_identity],
        }
        self._own: dict[bytes, _Own] = {}
        self._knowledge = Knowledge()
        self._revealed = revealed
        self._trainer = actors.trainer_identity.id
        for role, identities in groups.items():
            for index, identity in enumerate(identities):
                name = role if role == "trainer" else f"{role}{index}"
                own = self._own[identity.id] = _Own(name, identity.seed, by_design.hedge(identity.seed))
                self._keep(own.seed, "an identity's seed", name, identity.id)
                self._keep(own.hedge, "the hedging secret", name, identity.id)
                store_key = by_design.derive(own.seed, "store")
                self._keep(store_key, "the store's key", name, identity.id)
                self.expect(identity.store_key == store_key, f"{name}: the key of its store is not that of DESIGN §9")
        authority, readers = actors.authority, [*actors.compute_identities, actors.trainer_identity]
        name_key = by_design.derive(authority.seed, "names")
        self._keep(authority.seed, "the enrolment key's seed", "the federation", authority.id)
        self._keep(name_key, "the name key", "the federation", authority.id, *(identity.id for identity in readers))
        self.expect(authority.name_key == name_key, "the name key is not that of DESIGN §9")
        self._marks: defaultdict[str, int] = defaultdict(int)  # how many draws of a stream earlier events have made
        self._hellos: dict[bytes, bytes] = {}  # a client's last Hello
        self._reply_secrets: dict[bytes, bytes] = {}  # by round
        self._receipt_keys: dict[tuple[bytes, bytes], bytes] = {}  # by client and release
        self._opened: set[bytes] = set()  # sealed messages
        self._public: list[bytes] = []  # of one contribution
        self._noise: NDArray[np.int64] | None = None  # of the last draw
        self._sampled: set[str] = set()  # mechanisms whose use of the key was tested
        for process in world.simulator.machines:  # they have started and have made their first keys
            self._read_disk(process)
            if process.id in self._own and process.id not in log.dishonest:
                own = self._own[process.id]
                for (table, key), value in process.disk.records.items():
                    if table == EPOCHS:
                        self._check_epoch(process, own, world.actors.drawn[own.stream], Persist(EPOCHS, key, value))

    # --- what actors derive -------------------------------------------------------------------------------------------

    def on_restart(self, process: Process) -> None:
        """Read the Hello from the disk: a write that was lost counts for nothing."""
        self._read_disk(process)

    def _read_disk(self, process: Process) -> None:
        hello = self._hellos[process.id] = process.disk.records.get((HELLO, b""), b"")
        if hello and process.id not in self.log.dishonest:  # it may have left before the trial began
            self._knowledge.hear(hello, EVERYBODY, f"the Hello of {process.name}")

    def on_handled(self, process: Process, event: Event, effects: Sequence[Effect]) -> None:
        """What an honest actor derives while it handles an event follows from DESIGN §2 and its own secrets."""
        own = self._own.get(process.id)
        if own is None or not effects or process.id in self.log.dishonest:
            return
        drawn = self.world.actors.drawn[own.stream]
        fresh = [data for data in drawn[self._marks[own.stream] :] if len(data) == 32]
        self._marks[own.stream] = len(drawn)
        writes = [effect for effect in effects if isinstance(effect, Persist)]
        for write in writes:
            if write.table == EPOCHS:
                self._check_epoch(process, own, fresh, write)
            elif write.table == HELLO:
                self._hellos[process.id] = write.value
        if process.role is Channel.CLIENT:
            charges = [decoded(LEDGER, write.value, Charge) for write in writes if write.table == LEDGER]
            numbers = {charge.round_id: charge.number for charge in charges}
            for round_id, outbound in contributions_in(writes):
                self._check_root(process, own, fresh, round_id, outbound, numbers.get(round_id, 0))
        for effect in effects:
            if isinstance(effect, Send) and effect.payload.startswith(_SEALED) and effect.payload not in self._opened:
                self._opened.add(effect.payload)
                self._check_sealed(process, effect, fresh)

    def on_drawn(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        """Noise depends on every byte of its key. Tested with the first draw of each mechanism."""
        body, draws = self.log.accepted[client.id, round_id].body, self.log.draws
        self._noise = draws.drawn
        if body.kind.mechanism not in self._sampled and self._noise is not None and draws.private:
            self._sampled.add(body.kind.mechanism)
            key, drawn_from = draws.key, _draws(body, validate_announcement(body, draws, Limits()).report)
            drawn = drawn_from(key)
            counts = np.unique(drawn, return_counts=True)[1]
            if drawn.size - max(counts) >= _VARIED:  # enough noise to tell two keys apart
                others = [key[:at] + bytes((key[at] ^ 1,)) + key[at + 1 :] for at in range(len(key))]
                ignored = [at for at, other in enumerate(others) if np.array_equal(drawn_from(other), drawn)]
                self.expect(not ignored, f"{about(client, round_id)}: its noise ignores bytes {ignored} of its key")

    def _check_epoch(self, process: Process, own: _Own, fresh: Iterable[bytes], write: Persist) -> None:
        """An epoch secret is derived from the identity's secret, 32 fresh bytes, the epoch and the time."""
        epoch = int.from_bytes(write.key, "big")
        derived = [by_design.epoch_secret(own.hedge, data, epoch, process.now_ms) for data in fresh]
        self.expect(write.value in derived, f"{process.name}: the secret of epoch {epoch} is not that of DESIGN §2.6")
        self._keep(write.value, "an epoch secret", f"{process.name}, epoch {write.key.hex()}", process.id)
        self.log.pairs.note(process.id, write.key, write.value)  # it may contribute with this key in the same event

    def _check_root(
        self, client: Process, own: _Own, fresh: Iterable[bytes], round_id: bytes, outbound: ClientMessage, charge: int
    ) -> None:
        """The noise key and the id follow from the client's secret, 32 fresh bytes and everything they are used for."""
        who, accepted = about(client, round_id), self.log.accepted[client.id, round_id]
        _, value = self.log.quantised[round_id, client.id, outbound.contribution]
        hello = by_design.digest("hello", self._hellos[client.id]) if accepted.body.kind.is_summed else b""
        about_it = (hello, accepted.hash, charge, value.tobytes())
        roots = [by_design.root(own.hedge, data, *about_it) for data in fresh]
        if accepted.body.kind.is_verified:
            self._check_verified(client, accepted, outbound, charge, roots)
            return
        used = self.log.draws.key
        self._keep(used, "the noise key", who, client.id)
        root = next((root for root in roots if by_design.derive(root, "noise") == used), None)
        self.expect(root is not None, f"{who}: its noise key is not the one that DESIGN §2.6 derives")
        if root is not None:
            self._keep(root, "the root", who, client.id)
            for label in ("noise-chunk", "local-chunk"):
                stream = by_design.derive(used, label, bytes(8))
                self._keep(stream, f"the stream {label}", who, client.id)
            own_id = by_design.derive(root, "contrib-id", size=16)
            self.expect(outbound.contribution == own_id, f"{who}: its id is not the one that DESIGN §2.6 derives")
            receipt_key = by_design.derive(root, "receipt-key")
            self._receipt_keys[client.id, outbound.contribution] = receipt_key
        if accepted.body.kind.is_summed:
            self._check_contribution(client, accepted, outbound, charge, value)
        self._public = [
            client.id, accepted.hash, outbound.contribution, charge.to_bytes(4, "little"), round_id, hello,
        ]  # fmt: skip

    def _check_verified(
        self, client: Process, accepted: Accepted, outbound: ClientMessage, charge: int, roots: Sequence[bytes]
    ) -> None:
        """Rounding, noise bits and blinds of a verified contribution have keys of their own, under a fresh root."""
        who, round_id = about(client, accepted.body.round_id), accepted.body.round_id
        own = [root for root in roots if by_design.derive(root, "contrib-id", size=16) == outbound.contribution]
        self.expect(bool(own), f"{who}: its id is not the one that DESIGN §2.6 derives")
        for root in own:
            self._keep(root, "the root", who, client.id)
            for label, what in (("noise-bits", "the key of noise bits"), ("blinds", "the key of blinds")):
                self._keep(by_design.derive(root, label), what, who, client.id)
        _, value = self.log.quantised[round_id, client.id, outbound.contribution]
        self._check_contribution(client, accepted, outbound, charge, value, own[0] if own else b"")

    def _check_contribution(
        self,
        client: Process,
        accepted: Accepted,
        outbound: ClientMessage,
        charge: int,
        value: NDArray[np.int64],
        root: bytes = b"",
    ) -> None:
        """A contribution is sealed, tagged and acknowledged under the keys of its pairs. `root`: of a verified one."""
        who, frame = about(client, accepted.body.round_id), decode_frame(outbound.payload)
        assert isinstance(frame, Contribution), "a client of a secure sum contributes"
        holder, nodes = accepted.holder(client.id), accepted.computes
        message = (accepted.hash, client.id, holder, outbound.contribution, frame.ciphertext)
        for keys in self.log.pairs.keys(accepted.epochs, client.id):
            content = by_design.opened_contribution(keys[nodes.index(holder)], *message)
            if content is not None:
                break
        else:
            self.fail(f"{who}: its contribution is not sealed under the keys of DESIGN §2.4")
            return
        entry = client.id + outbound.contribution + charge.to_bytes(4, "little")
        statement = statement_of(accepted.body)
        pads = [by_design.tag_and_mask(key, accepted.hash, entry, value.size) for key in keys]
        if statement is not None:
            shares = [verified.share_of(key, accepted.hash, entry, statement.words) for key in keys]
            pads = [pad[:8] + share.astype("<u4").tobytes() for pad, share in zip(pads, shares, strict=True)]
        head = charge.to_bytes(4, "little") + b"".join(pad[:8] for pad in pads)
        self.expect(content.startswith(head), f"{who}: its tags are not those of DESIGN §2.4")
        if statement is not None and root:
            elements = verified.elements_in(content[len(head) :])
            first = verified.first_words(statement, root, value, verified.more_bits(accepted.body.fraction_bits))
            later, at = verified.later_blinds(statement, root), verified.block_words(statement)
            is_whole = elements.size == statement.words
            words = sum(shares, start=elements) % verified.PRIME if is_whole else elements
            found = np.concatenate([words[: first.size], words[at : at + later.size]])
            same = np.array_equal(found, np.concatenate([first, later]))
            self.expect(same, f"{who}: its bits, blinds and shares are not those of DESIGN §12")
        elif self._noise is not None:
            masks = np.sum([words_in(pad[8:]) for pad in pads], axis=0, dtype=np.uint64)
            y = ((value + self._noise).view(np.uint64) - masks).astype("<u8").tobytes()
            self.expect(content[len(head) :] == y, f"{who}: its masks are not those of DESIGN §2.4")
        seal, *answers = by_design.contribution_keys(keys[nodes.index(holder)], accepted.hash, outbound.contribution)
        same = [outbound.receipt, outbound.late] == answers
        self.expect(same, f"{who}: it expects another receipt than that of DESIGN §2.4")
        self._knowledge.hear(content, frozenset((client.id, holder)), f"the contribution of {who}")
        self._keep(seal, "the key of a contribution", who, client.id, holder)
        for node, key, pad in zip(nodes, keys, pads, strict=True):
            self._keep(key, "a pair key", f"{client.name} and {node.hex()[:8]}", client.id, node)
            self._keep(pad[8:24], "a mask", f"{who}, with {node.hex()[:8]}", client.id, node)

    def _check_sealed(self, process: Process, send: Send, fresh: Iterable[bytes]) -> None:
        """A sealed message has a key from 32 fresh bytes, its receiver and its content, under its own label."""
        who, frame = about(process, send.round_id), decode_frame(send.payload)
        accepted = self.log.accepted.get((process.id, send.round_id))
        if accepted is None and self.world.trainer.id not in self.log.dishonest:  # else there may be another one
            accepted = self.log.announced(send.round_id)
        if accepted is None or not isinstance(frame, Sealed) or send.round_id in self.log.stray:
            return
        to_trainer = send.to.channel is Channel.TRAINER
        label = "reply" if to_trainer else "peer-list"
        public = accepted.body.reply_key if to_trainer else accepted.epochs[accepted.computes.index(send.to.id)].public
        if to_trainer and self.world.trainer.id in self.log.dishonest:
            return  # it may have announced the round twice
        secret = self._reply_secrets.get(accepted.hash) if to_trainer else self.log.pairs.secret_of(public)
        if secret is None:
            return
        key = by_design.sealing_key(label, secret, frame.ephemeral, public)
        content = by_design.opened(key, frame.nonce, frame.ciphertext, accepted.hash)
        if content is None:
            self.fail(f"{who}: its message to {send.to.channel.value} is not sealed as DESIGN §2.5 and §4.7 specify")
            return
        ephemeral = by_design.ephemeral_secret(fresh, frame.ephemeral, public, content, accepted.hash)
        self.expect(ephemeral is not None, f"{who}: the key of a sealed message is not that of DESIGN §2.6")
        if ephemeral is not None:
            self._keep(ephemeral, "the secret of a sealed message", who, process.id)
        self._keep(key, "the key of a sealed message", f"{who} {frame.nonce.hex()[:8]}", process.id, send.to.id)
        self._knowledge.hear(content, frozenset((process.id, send.to.id)), f"a sealed message of {who}")
        body = body_of(content)
        if isinstance(body, Release):
            expected = self._receipt_keys.get((process.id, body.contribution))
            same = expected in (None, body.receipt_key)
            self.expect(same, f"{who}: the key of its receipt is not the one that DESIGN §2.6 derives")
            self._keep(body.receipt_key, "the key of a receipt", who, process.id, send.to.id)

    def on_trainer_round(self, trainer: Process, round_id: bytes, stored: StoredTrainerRound) -> None:
        """A reply key is fresh: 32 random bytes that the trainer uses for one announcement."""
        accepted = self.log.announced(round_id)
        assert accepted is not None, "the log has read it"
        if accepted.hash not in self._reply_secrets:
            self._reply_secrets[accepted.hash] = stored.reply_secret
            if self.is_honest(trainer):
                is_fresh = stored.reply_secret in self.world.actors.drawn["trainer"]
                self.expect(is_fresh, f"{about(trainer, round_id)}: its reply key does not come from fresh bytes")
                self._keep(stored.reply_secret, "a reply secret", about(trainer, round_id), trainer.id)

    def _keep(self, value: bytes, what: str, whose: str, *owners: bytes) -> None:
        """Note a secret. No two secrets are equal: a key has one purpose."""
        other = self._knowledge.keep(value, what, whose, *owners)
        if other is not None and not (other.owners | set(owners)) & self.log.dishonest:
            self.fail(f"{what} of {whose} is also {other}")

    # --- what leaves --------------------------------------------------------------------------------------------------

    def on_send(self, process: Process, send: Send) -> None:
        """Note what the broker sees of honest actors."""
        if send.payload not in self._knowledge and process.id not in self.log.dishonest:
            self._knowledge.hear(send.payload, EVERYBODY, f"a message of {process.name} to {send.to.channel.value}")

    def finish(self) -> None:
        """No secret of honest actors can be read in, or derived from, what others can read."""
        knowledge, dishonest = self._knowledge, self.log.dishonest
        self.checked += len(knowledge)
        for data in self._revealed:
            knowledge.hear(data, EVERYBODY, "a fact")
        for leak in knowledge.in_texts():
            if not leak.secret.owners & dishonest:
                self.fail(str(leak))
        messages = [b"".join(self._public[1:3]), b"".join(self._public[1:2])] if self._public else []
        for value, readers, what in self._starting_points():
            for leak in knowledge.derived(value, readers, what, messages):
                if not leak.secret.owners & dishonest:
                    self.fail(str(leak))
        for leak in knowledge.combined(self._public):
            if not leak.secret.owners & dishonest:
                self.fail(str(leak))

    def _starting_points(self) -> Iterator[tuple[bytes, Members, str]]:
        """Yield some of the values that members have, with their readers: another choice with each seed."""
        seed, texts = int.from_bytes(self._trainer[:4], "big"), self._knowledge.texts
        samples = self._knowledge.samples()
        for at in range(min(_SAMPLES, len(samples))):
            value, secret = samples[(seed * _SAMPLES + at) % len(samples)]
            yield value, secret.owners, str(secret)
        step = max(1, len(texts) // _FIELDS)
        for text, readers, what in texts[seed % step :: step][:_FIELDS]:
            values = [value for value in _fields_of(text) if len(value) in _FIELD_BYTES]
            if values:
                yield values[seed % len(values)], readers, what


def _draws(body: Announcement, report: LocalMechanism | None) -> Callable[[bytes], NDArray[np.int64]]:
    """Return what a round's mechanism draws from a key: noise, or reports of the first category, or of none."""
    if report is None:
        return functools.partial(DistributedDiscreteGaussian().sample, 1 << 20, _DRAWS)
    dimension = reference.dimension(body.statistic, body.parameters)
    reports = _DRAWS if body.kind.mechanism == RANDOMISED_RESPONSE else max(2, min(_DRAWS, _VALUES // dimension))
    values = np.zeros((reports, dimension), dtype=np.int64)
    values[:, 0] = body.kind.mechanism == UNARY_ENCODING
    inputs = report.to_inputs(values)
    return lambda key: np.asarray(report.randomise(inputs, key)).astype(np.int64)


def _fields_of(text: bytes) -> Iterator[bytes]:
    """Yield the bytes in a message, also nested ones."""
    waiting: list[object] = [body_of(text)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Signed):
            waiting.append(decode_body(value.body))
        elif isinstance(value, msgspec.Struct):
            waiting += msgspec.structs.astuple(value)
        elif isinstance(value, tuple | list):
            waiting += value
        elif isinstance(value, bytes):
            yield value
