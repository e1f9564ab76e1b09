"""What a trainer is asked for: one round, of one of the three kinds (DESIGN §4.1, §5)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import msgspec

from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import LOCAL_MECHANISMS, Mechanism
from dca_proto.protocol.announcement import invitation_root
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.ledger import Charge, Cost
from dca_proto.protocol.params import Limits, Timing
from dca_proto.protocol.validated import ValidatedRound, validate_announcement
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.messages import Announcement, Signed
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW

_EPOCH_KEY_BYTES_MAX = 128


class _Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The base of the three kinds of requests.

    Attributes:
        relation: which replacement of data the noise hides.
    """

    relation: ClassVar[str] = REPLACE_ONE_CLIENT

    @property
    def computes(self) -> tuple[bytes, ...]:
        """Ids of the M Compute nodes; none of a round without any."""
        return ()


class AskSecureSum(_Ask, frozen=True, kw_only=True, tag="secure-sum"):
    """A secure sum.

    Attributes:
        computes: ids of the M Compute nodes.
        tolerated: T, how many of the expected clients may drop out or collude. colluders: c of them may collude.
        most: n_max, how many contributions a sum may hold; 0 for twice as many as are expected.
    """

    computes: tuple[bytes, ...]
    tolerated: int
    colluders: int = 0
    most: int = 0

    def terms(self, epochs: tuple[Signed, ...], expected: int) -> SecureSum:
        """N - T + c contributions at least (DCA, Theorem 1), of `expected` clients. Raises `UsageError`."""
        if self.colluders > self.tolerated:
            raise UsageError(
                f"c = {self.colluders} colluders exceed T = {self.tolerated}; lower c to {self.tolerated}, or raise T "
                f"to {self.colluders}"
            )
        fewest = expected - self.tolerated + self.colluders
        if fewest - 1 - self.colluders < 1:
            raise UsageError(
                f"N - T - 1 = {expected} - {self.tolerated} - 1 is below 1: no honest noise would be left; "
                + (f"lower T to at most {expected - 2}, or find at least" if expected > 1 else "find at least")
                + f" {self.tolerated + 2} clients"
            )
        return SecureSum(fewest, self.most or 2 * expected, self.colluders, epochs)


class AskNodeRelease(_Ask, frozen=True, kw_only=True, tag="node-release"):
    """A release by each data node."""

    relation: ClassVar[str] = REPLACE_ONE_ROW

    def terms(self, epochs: tuple[Signed, ...], expected: int) -> NodeRelease:
        return NodeRelease()


class AskLdpReport(_Ask, frozen=True, kw_only=True, tag="ldp-report"):
    """A report by each client, by a local mechanism."""

    mechanism: str

    def terms(self, epochs: tuple[Signed, ...], expected: int) -> LdpReport:
        if self.mechanism not in LOCAL_MECHANISMS:
            raise UsageError(f"mechanism {self.mechanism!r} makes no reports; use one of {', '.join(LOCAL_MECHANISMS)}")
        return LdpReport()


Ask = AskSecureSum | AskNodeRelease | AskLdpReport


class OpenRound(msgspec.Struct, frozen=True, kw_only=True):
    """Command: hold a round.

    Attributes:
        round_id: 16 fresh random bytes.
        ask: the kind of the round, with its own terms.
        statistic, parameters: a registered statistic and its public parameters.
        epsilon, delta: how the cost is quoted. mu: what is charged and calibrated; 0 for all that they allow.
        rows_max: 0 for the mean of a client's rows, R for the sum of at most R. fraction_bits: f.
        clients_expected: N; of a secure sum 0 asks the Compute nodes how many have a session. Without Compute nodes the
            round ends as soon as so many have answered; 0 waits for its end, or for all invited.
        collect_window_ms: how long clients may contribute. commit_window_ms: how long the nodes may take to agree.
        invited: ids of the only clients that hear of the round and are charged for it; empty: everybody.
    """

    round_id: bytes
    ask: Ask
    statistic: str
    parameters: dict[str, Any]
    epsilon: float
    delta: float
    mu: float = 0.0
    rows_max: int = 0
    fraction_bits: int = 24
    clients_expected: int = 0
    collect_window_ms: int = 60_000
    commit_window_ms: int = 60_000
    invited: tuple[bytes, ...] = ()

    @property
    def answers_expected(self) -> int:
        """How many clients may answer; 0 where nobody knows."""
        return self.clients_expected or len(self.invited)

    @property
    def cost(self) -> Cost:
        """What the round costs, and whom."""
        return Cost(self.price, frozenset(self.invited))

    @property
    def price(self) -> PrivacyCost:
        """What the round costs a client. Raises `UsageError` for values out of range."""
        return PrivacyCost.of_mu(self.mu) if self.mu and self.delta else PrivacyCost.of(self.epsilon, self.delta)

    def charge(self, trainer: bytes, number: int, now_ms: int) -> Charge:
        """The entry of this round in the trainer's account."""
        cost = (self.price.mu, float(self.epsilon), float(self.delta))
        asked = (self.round_id, self.statistic, trainer)
        return Charge(*asked, *cost, now_ms, number, clients=self.invited, relation=self.ask.relation)

    def announcement(
        self,
        trainer: bytes,
        file: tuple[int, bytes],
        mechanism: str,
        epochs: tuple[Signed, ...],
        reply_key: bytes,
        now_ms: int,
    ) -> Announcement:
        """What the trainer signs for this round when it is announced at `now_ms`. Raises `UsageError`.

        Args:
            file: number and hash of the newest federation file that it knows.
            mechanism: the trainer's own, for a round that names none.
        """
        close_by_ms = now_ms + self.collect_window_ms
        return Announcement(
            round_id=self.round_id,
            trainer=trainer,
            federation_number=file[0],
            federation_hash=file[1],
            statistic=self.statistic,
            parameters=self.parameters,
            rows_max=self.rows_max,
            fraction_bits=self.fraction_bits,
            mechanism=self.ask.mechanism if isinstance(self.ask, AskLdpReport) else mechanism,
            mu=self.price.mu,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            terms=self.ask.terms(epochs, self.answers_expected),
            reply_key=reply_key,
            invited=invitation_root(sorted(self.invited)),
            close_by_ms=close_by_ms,
            commit_by_ms=close_by_ms + self.commit_window_ms,
        )

    def draft(self, mechanism: Mechanism, limits: Limits) -> tuple[Announcement, ValidatedRound]:
        """The announcement with keys of nobody, and its numbers, as every participant checks them.

        Raises:
            UsageError: the round cannot be held.
        """
        epochs = tuple(Signed(bytes(_EPOCH_KEY_BYTES_MAX), bytes(64)) for _ in self.ask.computes)
        nobody = (bytes(ID_BYTES), (1, bytes(KEY_BYTES)), mechanism.name, epochs, bytes(KEY_BYTES))
        draft = self.announcement(*nobody, now_ms=0)
        return draft, validate_announcement(draft, mechanism, limits)

    def check(self, federation: Federation, mechanism: Mechanism, limits: Limits, timing: Timing) -> None:
        """What every participant will check, while it is the caller's mistake and not yet a peer's.

        Raises:
            UsageError: the round cannot be held.
        """
        known = {member.id for member in federation.computes}
        unknown = [compute.hex() for compute in self.ask.computes if compute not in known]
        if unknown or len(set(self.ask.computes)) < len(self.ask.computes):
            raise UsageError(
                f"Compute nodes {', '.join(unknown)} are not in the federation file (any more), or one is named twice"
            )
        self._check_invited(limits)
        self._check_windows(timing)
        if isinstance(self.ask, AskSecureSum) and not self.answers_expected:
            return  # checked again when the Compute nodes have said how many clients have a session
        draft, _ = self.draft(mechanism, limits)
        self._check_size(draft, limits)

    def _check_size(self, draft: Announcement, limits: Limits) -> None:
        try:
            encoded = encode(draft)
            decode_body(encoded)
        except (PeerError, TypeError, OverflowError) as error:
            raise UsageError(f"round {self.round_id.hex()} cannot be announced: {error}") from None
        if len(encoded) > limits.announcement_bytes_max:
            raise UsageError(
                f"the announcement would have {len(encoded)} bytes, expected at most {limits.announcement_bytes_max}; "
                "ask for fewer columns or bins"
            )

    def _check_windows(self, timing: Timing) -> None:
        if min(self.collect_window_ms, self.commit_window_ms) < 1:
            raise UsageError("a phase of the round has no time; give every window at least 1 ms")
        longest_ms = timing.epoch_ms + timing.epoch_grace_ms - timing.abort_grace_ms
        if self.collect_window_ms + self.commit_window_ms >= longest_ms and self.ask.computes:
            raise UsageError(
                f"the windows add up to {self.collect_window_ms + self.commit_window_ms} ms, longer than a round may "
                f"use a Compute node's key ({longest_ms} ms); shorten them"
            )

    def _check_invited(self, limits: Limits) -> None:
        invited = set(self.invited)
        if len(invited) < len(self.invited) or any(len(client) != ID_BYTES for client in invited):
            raise UsageError(f"a client is invited twice, or its id has not {ID_BYTES} bytes; give each one's id once")
        if len(invited) > limits.invited_max:
            raise UsageError(
                f"{len(invited)} clients are invited, expected at most {limits.invited_max}; invite fewer, or none"
            )
        if invited and self.clients_expected > len(invited):
            raise UsageError(
                f"{self.clients_expected} clients are expected and {len(invited)} are invited; expect no more"
            )


def tolerated_of(batch: int, clients: int, tolerated: int, colluders: int) -> int:
    """T of a mini-batch's round: as large a part of it may drop as of everybody; colluders may all be in it.

    Args:
        batch: B. clients, tolerated, colluders: N, T and c of a round of everybody.
    """
    return colluders + math.ceil((tolerated - colluders) * batch / clients)
