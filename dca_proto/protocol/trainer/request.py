"""The command that opens a round (DESIGN §4.1, §5)."""

from __future__ import annotations

import math

import msgspec

from dca_proto.aggregate import PublicParameters
from dca_proto.crypto.masks import ENTRY_BYTES, TAG_BYTES
from dca_proto.crypto.sealing import ID_BYTES, KEY_BYTES
from dca_proto.errors import PeerError, UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.protocol.announcement import invitation_root
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import Charge, CostToClients
from dca_proto.protocol.params import MESSAGE_BYTES_MAX, MIB, Limits, Timing
from dca_proto.protocol.terms import Windows, check_ranges
from dca_proto.protocol.validation import ValidatedRound, relation_of, validate_announcement
from dca_proto.protocol.verified import Work, slack_of, statement_of, with_noise
from dca_proto.protocol.wire.codec import decode_body, encode
from dca_proto.protocol.wire.fields import REPEATS_MAX, WindowSeconds
from dca_proto.protocol.wire.kinds import Kind, VerifiedSum
from dca_proto.protocol.wire.messages import Announcement, Signed
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.reach import require_reach
from dca_proto.wording import duration

_EPOCH_KEY_BYTES_MAX = 128


class OpenRound(Windows, frozen=True, kw_only=True):
    """Command: open a round.

    Attributes:
        round_id: 16 fresh random bytes.
        kind: the kind of the round, with its own terms. Its `clients` is N. For a secure sum, 0 asks the Compute nodes
            how many clients have a session. Without Compute nodes, the round ends once N clients have answered; 0 waits
            for all invited clients, or for `commit_by`.
        computes: ids of the M Compute nodes; empty in a round without them.
        statistic: name of a registered statistic.
        parameters: its public parameters.
        epsilon, delta: quote the cost of the round.
        mu: is charged and determines the noise; 0 for the largest that (epsilon, delta) allows.
        rows_max: 0 for the mean of a client's rows, R for the sum of at most R.
        fraction_bits: f, the number of fraction bits of the fixed-point grid.
        window_s: from how many seconds ago a client's rows have to be; 0 for any.
        invited: ids of the only clients that receive the announcement and are charged; empty for everybody.
        repeats: ids of the cancelled rounds that this one repeats, without the Compute nodes that were silent (§4.8).
    """

    round_id: bytes
    kind: Kind
    computes: tuple[bytes, ...] = ()
    statistic: str
    parameters: PublicParameters
    epsilon: float
    delta: float
    mu: float = 0.0
    rows_max: int = 0
    fraction_bits: int = 24
    window_s: WindowSeconds = 0
    invited: tuple[bytes, ...] = ()
    repeats: tuple[bytes, ...] = ()

    @property
    def answers_expected(self) -> int:
        """Number of clients that may answer; 0 if unknown."""
        return self.kind.clients or len(self.invited)

    @property
    def cost_to_clients(self) -> CostToClients:
        """The round's cost, and the clients that it costs."""
        return CostToClients(self.cost, frozenset(self.invited))

    @property
    def cost(self) -> PrivacyCost:
        """The round's cost to a client. Raises `UsageError` for values out of range."""
        if self.kind.is_verified:
            slack = slack_of(resolve(self.statistic, self.parameters).dimension)
            largest = accounting.mu_of(float(self.epsilon), float(self.delta), slack)
            return PrivacyCost.of_mu(min(self.mu or largest, largest), slack)
        return PrivacyCost.of_mu(self.mu) if self.mu and self.delta else PrivacyCost.of(self.epsilon, self.delta)

    def charge(self, trainer: bytes, number: int, now_ms: int) -> Charge:
        """Return the charge of this round in the trainer's account."""
        cost = (self.cost.mu, float(self.epsilon), float(self.delta))
        identity = (self.round_id, self.statistic, trainer)
        clients, relation = self.invited, relation_of(self.kind)
        return Charge(*identity, *cost, now_ms, number, clients=clients, relation=relation, slack=self.cost.slack)

    def announcement(
        self,
        trainer: bytes,
        file: tuple[int, bytes],
        mechanism: Mechanism,
        epochs: tuple[Signed, ...],
        reply_key: bytes,
        now_ms: int,
        ended: tuple[Signed, ...] = (),
        latest_ms: float = math.inf,
    ) -> Announcement:
        """Return the announcement of this round at `now_ms`. Raises `UsageError`.

        `file` is the number and hash of the trainer's federation file. `mechanism` is the trainer's own, for kinds that
        name none. `ended` are the aborts of the rounds that it repeats. In a verified sum, windows that are too short
        for the proofs grow, until `latest_ms` at most.
        """
        collect_ms, commit_ms = self.collect_ms, self.commit_ms
        kind = msgspec.structs.replace(self.kind, clients=self.answers_expected)
        mu, fraction_bits = self.cost.mu, self.fraction_bits
        if isinstance(kind, VerifiedSum):
            statistic = resolve(self.statistic, self.parameters)
            kind, fraction_bits = with_noise(kind, statistic, self.rows_max, fraction_bits, mu, mechanism)
            statement = statement_of(kind, statistic, self.rows_max, fraction_bits)
            needed_ms = Work(statement.words, kind.clients).window_ms
            windows = max(collect_ms, needed_ms), max(commit_ms, needed_ms)
            collect_ms, commit_ms = windows if now_ms + sum(windows) <= latest_ms else (collect_ms, commit_ms)
        else:
            kind = msgspec.structs.replace(kind, mechanism=kind.mechanism or mechanism.name)
        announced = {
            "fraction_bits": fraction_bits,
            "mu": mu,
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "kind": kind,
            "invited": invitation_root(sorted(self.invited)),
        }
        return Announcement(
            **{**self.shared(Announcement), **announced},
            trainer=trainer,
            federation_number=file[0],
            federation_hash=file[1],
            epochs=epochs,
            reply_key=reply_key,
            close_by_ms=now_ms + collect_ms,
            commit_by_ms=now_ms + collect_ms + commit_ms,
            ended=ended,
        )

    def draft(self, mechanism: Mechanism, limits: Limits) -> tuple[Announcement, ValidatedRound]:
        """Return the announcement with placeholder keys, and its numbers, as every participant checks them.

        Raises `UsageError` if the round is invalid.
        """
        epochs = tuple(Signed(bytes(_EPOCH_KEY_BYTES_MAX), bytes(64)) for _ in self.computes)
        placeholders = (bytes(ID_BYTES), (1, bytes(KEY_BYTES)), mechanism, epochs, bytes(KEY_BYTES))
        draft = self.announcement(*placeholders, now_ms=0)
        validated = validate_announcement(draft, mechanism, limits)
        require_reach(validated.statistic, self.fraction_bits)
        return draft, validated

    def check_statistic(self) -> None:
        """Check what does not depend on the number of clients. Raises `UsageError`."""
        statistic = resolve(self.statistic, self.parameters)
        client_sensitivity(statistic, self.rows_max, self.fraction_bits)
        require_reach(statistic, self.fraction_bits)

    def check(self, federation: Federation, mechanism: Mechanism, limits: Limits, timing: Timing) -> None:
        """Check in advance what every participant will check. Raises `UsageError` if the round is invalid."""
        known = {member.id for member in federation.computes}
        unknown = [compute.hex() for compute in self.computes if compute not in known]
        if unknown:
            raise UsageError(
                f"not in the federation file (any more): Compute node {', '.join(unknown)}; name only nodes of the file"
            )
        if len(self.repeats) > REPEATS_MAX:
            raise UsageError(f"a request is repeated at most {REPEATS_MAX} times, found {len(self.repeats)}")
        if len(set(self.computes)) < len(self.computes):
            raise UsageError("a Compute node is named twice; name each once")
        self._check_invited(limits)
        self._check_windows(timing)
        if self.kind.is_summed and not self.answers_expected:
            self.check_statistic()
            return  # checked again when the Compute nodes have reported how many clients have a session
        self._check_lists()
        draft, _ = self.draft(mechanism, limits)
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

    def _check_lists(self) -> None:
        """Check that each Compute node's list of the clients that it holds fits a message to the others."""
        nodes, clients = len(self.computes), self.answers_expected
        if nodes < 2 or _list_bytes(clients / nodes) <= MESSAGE_BYTES_MAX:
            return
        while _list_bytes(clients / nodes) > MESSAGE_BYTES_MAX:
            nodes += 1
        raise UsageError(
            f"{clients:,} clients at {len(self.computes)} Compute nodes make lists of more than "
            f"{MESSAGE_BYTES_MAX // MIB} MiB, the largest message; name at least {nodes} Compute nodes, or ask for "
            "fewer clients"
        )

    def _check_windows(self, timing: Timing) -> None:
        check_ranges(self)
        self.check_wait()
        longest_ms = timing.epoch_ms + timing.epoch_grace_ms - timing.abort_grace_ms
        if self.collect_ms + self.commit_ms >= longest_ms and self.computes:
            raise UsageError(
                f"the windows add up to {duration(self.collect_ms + self.commit_ms)}, longer than a "
                f"round may use a Compute node's key ({duration(longest_ms)}); shorten them"
            )

    def _check_invited(self, limits: Limits) -> None:
        invited = set(self.invited)
        if len(invited) < len(self.invited) or any(len(client) != ID_BYTES for client in invited):
            raise UsageError(f"a client is invited twice, or an id is not {ID_BYTES} bytes; give each client's id once")
        if len(invited) > limits.invited_max:
            raise UsageError(
                f"{len(invited)} clients are invited, expected at most {limits.invited_max}; invite fewer, or none"
            )
        if self.kind.clients > len(invited) > 0:
            raise UsageError(
                f"{self.kind.clients} clients are expected and {len(invited)} are invited; expect at most "
                f"{len(invited)}, or invite more"
            )


def _list_bytes(clients: float) -> float:
    """Return the most bytes of a node's list that holds so many clients on average, but once in 10⁹ rounds."""
    return (ENTRY_BYTES + TAG_BYTES) * (clients + 6 * math.sqrt(clients)) + 4096
