"""Invariant 3: the combined value is the exact ring sum of what the contributions in A encoded.

For an honest client, the checker recomputes that: the statistic of its rows by `emulator.reference`, plus the recorded
noise. For a hostile client, it takes what the holder keeps and removes all M masks, which it recomputes. Each honest
node's partial sum must equal the sum of the contributions that it durably kept and of its own masks over A. The
trainer's result must be of the set that all honest nodes have summed over, even if other nodes are hostile. Only a node
that alters its sum may spoil the value, and it may spoil nothing else.

In a verified sum, the checker puts all shares of a contribution together, which gives the client's words, and takes
the coins from the lists (`emulator.verified`). As long as all nodes are honest, words in a sum must prove what they
have to, and an honest client's proof must hold. An honest client's numbers must be its value, rounded with one dither.

Without Compute nodes, each release must equal what the data node encoded, with its number of rows, and the result must
match all releases that the trainer durably kept, but for those of hostile clients that are far out of range. Each LDP
report must be the mechanism's draw for the client's own value from the recorded key, and of one row.

The expected value, noise and scale of a result use no arithmetic of the product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from math import isclose, ldexp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.crypto.masks import RingVector
from dca_proto.crypto.sealing import digest
from dca_proto.privacy.mechanism import RANDOMISED_RESPONSE, UNARY_ENCODING
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.effects import Channel
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.protocol.lists import set_hash
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.actor import Trainer
from dca_proto.protocol.validation import validate_announcement
from dca_proto.protocol.wire.codec import encode
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum, VerifiedSum
from dca_proto.protocol.wire.messages import Announcement, Signed
from dca_proto.statistics import REPLACE_ONE_CLIENT, REPLACE_ONE_ROW
from emulator import reference, verified
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, ReleasedVector, RunLog, about, release_in
from emulator.trials.checkers.entries import Entry, share_of
from emulator.trials.scenario import CATEGORICAL
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted, counts_of, ids_in, slack_of, statement_of, words_in

_CLOSE, _WIDER = 1e-9, 1.001  # tolerance of equal floats; factor by which the grid may widen noise
_FAR = 2**60  # grid units: no contribution with noise reaches it


class ExactSum(Checker):
    """Checks each honest node's partial sum and the trainer's result, bit for bit."""

    number, name = 3, "exact sum"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._encoded: dict[tuple[bytes, bytes, bytes], RingVector] = {}  # by round, client and contribution
        self._released: dict[tuple[bytes, bytes, bytes], tuple[int, bytes]] = {}  # rows and vector, by the same
        self._variances: dict[bytes, float] = {}  # of each client's noise, in squared units of the grid, by round
        self._summed: dict[bytes, dict[bytes, list[Entry]]] = defaultdict(dict)  # by round and honest node
        self._failed: dict[tuple[bytes, bytes], tuple[bytes, ...]] = {}  # whose proofs failed, by the same
        self._seeds: dict[bytes, bytes] = {}  # of the coins of verified sums, by round

    def on_drawn(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        """Record what an honest client must have encoded."""
        draws, drawn = self.log.draws, self.log.draws.drawn
        if self.log.accepted[client.id, round_id].body.kind.is_verified:
            return
        if drawn is None:
            self.fail(f"{client.name} contributes to round {round_id.hex()[:8]} without any noise")
            return
        body, key = self.log.accepted[client.id, round_id].body, (round_id, client.id, outbound.contribution)
        rows, value = self.log.quantised[key]
        if isinstance(body.kind, SecureSum | NodeRelease):
            self._variances[round_id] = draws.variance
            noisy = words_in((value + drawn).astype("<i8").tobytes())
            self._encoded[key], self._released[key] = noisy, (rows, noisy.tobytes())
        else:
            report = validate_announcement(body, draws, Limits()).report
            assert report is not None, "the round is of LDP reports"
            held = (np.argmax(value) if value.any() else -1) if body.kind.mechanism in CATEGORICAL else value
            (own_report,) = report.randomise(np.array([held]), draws.key)
            self._released[key] = 1, report.encode(own_report)

    def on_release(self, release: ReleasedVector) -> None:
        """An honest data node releases the number of its rows and their sum with the recorded noise.

        An honest client reports the mechanism's draw for its value from the recorded key.
        """
        body, who = release.body, f"client {release.sender.hex()[:8]} in round {release.round_id.hex()[:8]}"
        expected = self._released.get((release.round_id, release.sender, body.contribution))
        if expected is None:
            self.fail(f"{who} releases a contribution that it never made")
            return
        rows, vector = expected
        self.expect(body.vector == vector, f"{who}: its release does not follow from its rows and its key")
        self.expect(body.rows == rows, f"{who}: it names {body.rows} rows, expected {rows}")

    def _encoded_by(self, accepted: Accepted, entry: Entry) -> RingVector | None:
        """Return what a contribution encoded; None if it cannot be reconstructed."""
        if entry.client not in self.log.dishonest:
            return self._encoded.get((accepted.body.round_id, entry.client, entry.contribution))
        return self.log.unmasked(entry.holder, accepted, entry)

    def on_partial_sum(self, release: ReleasedVector) -> None:
        """A node's first partial sum adds up the contributions that it has kept, and its masks over all of A."""
        key = release.sender, release.round_id
        accepted, chosen = self.log.accepted.get(key), self.log.agreed(release)
        if release.number or accepted is None or chosen is None:
            return  # invariants 1 and 2 report these
        who = f"compute {release.sender.hex()[:8]} in round {release.round_id.hex()[:8]}"
        self._summed[release.round_id][release.sender] = chosen
        self._failed[release.round_id, release.sender] = tuple(ids_in(getattr(release.body, "failed", b"")))
        if accepted.body.kind.is_verified:
            self._seeds[release.round_id] = self.log.challenge(release)
        own = [entry for entry in chosen if entry.holder == release.sender]
        named = release.body.clients == b"".join(entry.client for entry in own)
        self.expect(named, f"{who}: the clients that it names are not those that it holds")
        kept, place = self.log.kept[key], accepted.computes.index(release.sender)
        held = [kept.get((entry.client, entry.contribution)) for entry in own]
        if None in held:
            return  # invariant 8 reports contributions that were never durable
        statement = statement_of(accepted.body)
        if statement is not None:
            self._check_share(release, accepted, chosen, statement)
            return
        masks = [self.log.mask(accepted, place, entry, self.log.tags[key].get(entry.encoded, b"")) for entry in chosen]
        false = sum(mask is None for mask in masks)
        self.expect(not false, f"{who}: {false} entries in A have a tag that no key of their client gives")
        if not false:
            vectors = [words_in(contribution.y) for contribution in held if contribution is not None]
            parts = [*vectors, *(mask for mask in masks if mask is not None)]
            same = np.array_equal(words_in(release.body.vector), _total(parts))
            self.expect(same, f"{who}: its sum is not that of the contributions it kept and its masks")

    def _check_share(
        self, release: ReleasedVector, accepted: Accepted, chosen: list[Entry], statement: verified.Statement
    ) -> None:
        """A node's part of a verified sum is its share of the numbers, with its noise bits flipped by the coins."""
        node, who = release.sender, f"compute {about(release.sender, release.round_id)}"
        self._check_proofs(accepted, chosen, ids_in(release.body.failed), statement, who)
        place, tags = accepted.computes.index(node), self.log.tags[node, release.round_id]
        shares = [share_of(self.log.pairs, accepted, place, entry, tags.get(entry.encoded, b"")) for entry in chosen]
        kept = self.log.kept[node, release.round_id]
        found = []
        for entry, share in zip(chosen, shares, strict=True):
            if share is not None:
                y = verified.elements_in(kept[entry.client, entry.contribution].y) if entry.holder == node else 0
                found.append((share + y) % verified.PRIME)
        self.expect(len(found) == len(chosen), f"{who}: entries in A have a tag that no key of their client gives")
        if found and len(found) == len(chosen):
            coins = verified.coins_of(statement, self.log.challenge(release), [entry.encoded for entry in chosen])
            total = verified.summed(statement, np.array(found), coins, adds_coins=place == 0)
            same = np.array_equal(verified.elements_in(release.body.vector), total)
            self.expect(same, f"{who}: its sum is not its share of the numbers and of the noise that the coins flipped")

    def _check_proofs(
        self, accepted: Accepted, chosen: list[Entry], failed: list[bytes], statement: verified.Statement, who: str
    ) -> None:
        """Honest clients' proofs hold, and what counts is within the bounds: one lying node may pass or fail both."""
        self.expect(failed == sorted(set(failed)), f"{who}: the clients whose proofs failed are not in order")
        if self.all_nodes_are_honest:
            wronged = [client.hex()[:8] for client in failed if client not in self.log.dishonest]
            self.expect(not wronged, f"{who}: the proofs of the honest clients {', '.join(wronged)} failed")
        more = verified.more_bits(accepted.body.fraction_bits)
        for entry in chosen:
            words, name = self.log.words(accepted, entry), entry.client.hex()[:8]
            if words is not None and self.all_nodes_are_honest:
                self.expect(verified.is_proven(statement, words), f"{who}: {name} is outside its bounds, and counts")
            key = accepted.body.round_id, entry.client, entry.contribution
            if words is not None and key in self.log.quantised and entry.client not in self.log.dishonest:
                numbers = verified.numbers_in(statement, words)[: len(statement.sizes)]
                fits = verified.is_rounded(statement, self.log.quantised[key][1], numbers, more)
                self.expect(fits, f"{who}: the numbers of {name} are not its value, rounded with one dither")

    def on_fact(self, process: Process, fact: object) -> None:
        """The trainer's result is the sum over the set A of the honest nodes."""
        if not isinstance(fact, RoundCompleted) or process.role is not Channel.TRAINER:
            return
        if not self.log.is_summed(fact.round_id):
            self._check_without_nodes(fact)
            return
        sets, name = list(self._summed[fact.round_id].items()), fact.round_id.hex()[:8]
        if not sets:
            return  # no honest node has summed, or invariant 2 has reported it
        chosen, accepted = sets[0][1], self.log.accepted[sets[0][0], fact.round_id]
        self.expect(all(entries == chosen for _, entries in sets), f"round {name}: its sums are over different sets")
        statement = statement_of(accepted.body)
        parts: dict[bytes, NDArray[Any] | None] = {
            entry.client: self._encoded_by(accepted, entry) if statement is None else self.log.words(accepted, entry)
            for entry in chosen
        }
        unknown = {client for client, part in parts.items() if part is None}
        secretive = set() if self.all_nodes_are_honest else self.log.dishonest
        self.expect(unknown <= secretive, f"round {name}: {len(unknown)} contributions in its sum cannot be decoded")
        hashes = accepted.hash, set_hash(accepted.hash, b"".join(entry.encoded for entry in chosen))
        clients = max(self.log.requests[fact.round_id].answers_expected, len(chosen))
        known = [part for part in parts.values() if part is not None]
        spoiled = self.world.altering or unknown
        if spoiled:
            total = None
        elif statement is None:
            total = _value_of(accepted.body, _total(known))
        else:
            coins = verified.coins_of(statement, self._seeds[fact.round_id], [entry.encoded for entry in chosen])
            noisy = verified.summed(statement, np.array(known), coins)
            total = verified.value_of(statement, noisy, len(chosen), accepted.body.fraction_bits)
        failed = {self._failed[fact.round_id, node] for node, _ in sets}
        same = {fact.aggregate.unproven} == failed
        self.expect(same, f"round {name}: its result names other clients whose proofs failed than the nodes")
        self._compare(fact.aggregate, accepted.body, hashes, total, len(chosen), clients)
        if isinstance(process.actor, Trainer):
            named = process.actor.contributors(fact.round_id)
            self.expect(named == tuple(sorted(parts)), f"round {name}: the trainer names other contributors than A")

    def _check_without_nodes(self, fact: RoundCompleted) -> None:
        """The result holds each kept release or report that an honest client may make, by client id, and their sum."""
        kept = sorted(self.log.stored_releases[fact.round_id].items())
        body, result = self.log.announcements[fact.round_id], fact.aggregate
        members = [(client, frame) for client, frame in kept if release_in(frame).rows]
        members = [(client, frame) for client, frame in members if not self._is_far(body, client, frame)]
        if not members:
            self.fail(f"round {fact.round_id.hex()[:8]}: a result without durable releases")
            return
        releases, count = [release_in(frame) for _, frame in members], len(members)
        if isinstance(body.kind, NodeRelease):
            values = [_value_of(body, words_in(release.vector)) for release in releases]
            for place, node in enumerate(result.nodes[:count]):
                hashes = self._hashes(fact.round_id, [members[place]])
                where = f" of node {place + 1}"
                self._compare(node, body, hashes, values[place], releases[place].rows, 1, where=where)
            found = f"{len(result.nodes)} entries for {count} nodes"
            self.expect(len(result.nodes) == count, f"round {fact.round_id.hex()[:8]}: {found}")
            contributors, value = sum(release.rows for release in releases), np.sum(values, axis=0)
        else:
            clients = tuple(client for client, _ in members)
            contributors, value = count, self._reported(result, body, clients, [release.vector for release in releases])
        self._compare(result, body, self._hashes(fact.round_id, members), value, contributors, count)

    def _is_far(self, body: Announcement, client: bytes, frame: Signed) -> bool:
        """Return True for a vector of a dishonest client that no bound and no noise reach: the result leaves it out."""
        if client not in self.log.dishonest or body.kind.mechanism in CATEGORICAL:
            return False
        return any(abs(reference.centred(int(word))) >= _FAR for word in words_in(release_in(frame).vector))

    def _hashes(self, round_id: bytes, members: list[tuple[bytes, Signed]]) -> tuple[bytes, bytes]:
        announced = self.log.announced_hash(round_id)
        parts = (part for client, frame in members for part in (client, encode(frame)))
        return announced, digest(b"dca5-releases", announced, *parts)

    def _compare(
        self, found: NoisyAggregate, body: Announcement, hashes: tuple[bytes, bytes], value: NDArray[np.float64] | None,
        contributors: int, clients: int, *, where: str = "",
    ) -> None:  # fmt: skip
        """Compare all fields of a result except its single releases. `value`: None if it may be spoiled."""
        kind, private = body.kind, self.log.draws.private
        fields: dict[str, Any] = {name: getattr(body, name) for name in ("statistic", "parameters")}
        fields |= {name: getattr(body, name) if private else None for name in ("epsilon", "delta", "mu")}
        fields |= {"round_id": body.round_id, "announcement_hash": hashes[0], "contributors_hash": hashes[1]}
        fields |= {"contributors": contributors, "clients": clients, "private": private}
        fields |= {"mechanism": kind.mechanism, "n_min": 0, "colluders": 0}
        fields |= {"verified": kind.is_verified, "slack": slack_of(body)}
        if isinstance(kind, SecureSum):
            fields |= {"n_min": counts_of(kind).n_min, "colluders": kind.colluders}
        fields["relation"] = REPLACE_ONE_ROW if isinstance(kind, NodeRelease) else REPLACE_ONE_CLIENT
        wrong = [name for name, expected in fields.items() if getattr(found, name) != expected]
        l1, l2 = _sensitivity(body)
        d, unit = reference.dimension(body.statistic, body.parameters), ldexp(1.0, -body.fraction_bits)
        rounding = (sqrt(d) + 1) * unit  # of a mean to the grid
        if not l2 * (1 - _CLOSE) <= found.sensitivity <= l2 + rounding:
            wrong.append("sensitivity")
        variance = found.sigma_local**2
        noises = clients if isinstance(kind, NodeRelease) else contributors  # one for each participant
        rounded = unit**2 / 4 if isinstance(kind, VerifiedSum) else 0.0  # the most that rounding to its grid adds
        if not isclose(found.noise_variance, noises * (variance + rounded), rel_tol=_CLOSE):
            wrong.append("noise_variance")
        if not self._is_noise(body, variance, (l1 + d * unit, l2 + rounding)):
            wrong.append("sigma_local")
        if value is not None and not np.array_equal(found.value, value):
            exact = isinstance(kind, SecureSum) or where
            wrong += [] if not exact and np.allclose(found.value, value, _CLOSE, _CLOSE * clients) else ["value"]
        wrong = [name + where for name in wrong]
        self.expect(not wrong, f"round {body.round_id.hex()[:8]}: the result differs in {', '.join(wrong)}")

    def _is_noise(self, body: Announcement, variance: float, largest: tuple[float, float]) -> bool:
        """Return True if one client's noise has that variance, in squared units of the statistic."""
        unit = ldexp(1.0, -body.fraction_bits)
        statement = statement_of(body)
        if statement is not None:
            return isclose(variance, statement.variance * unit**2, rel_tol=_CLOSE, abs_tol=0.0)
        if isinstance(body.kind, SecureSum | NodeRelease):
            drawn = self._variances.get(body.round_id)
            return drawn is None or isclose(variance, drawn * unit**2, rel_tol=_CLOSE, abs_tol=0.0)
        k, named = reference.dimension(body.statistic, body.parameters), body.kind.mechanism in CATEGORICAL
        unit, wider, more = (1.0, 1 + _CLOSE, 0) if named else (unit, _WIDER, 12)
        low, high = (
            reference.report_variance(body.kind.mechanism, body.epsilon, body.delta, (l1 / unit, l2 / unit), k)
            for l1, l2 in (_sensitivity(body), largest)
        )
        return low * (1 - _CLOSE) <= variance / unit**2 <= high * wider + more

    def _reported(
        self, found: NoisyAggregate, body: Announcement, clients: tuple[bytes, ...], vectors: list[bytes]
    ) -> NDArray[np.float64]:
        """Return the sum that reports estimate, and check the reports in the result."""
        k, count, reports = reference.dimension(body.statistic, body.parameters), len(vectors), found.reports
        chances: tuple[float, float] | None = None
        if body.kind.mechanism == RANDOMISED_RESPONSE:
            values = np.array([int.from_bytes(vector, "little") for vector in vectors])
            counts = np.bincount(values, minlength=k).astype(float)
        elif body.kind.mechanism == UNARY_ENCODING:
            octets = np.array([list(vector) for vector in vectors], dtype=np.uint8)
            bits = np.unpackbits(octets, axis=1, bitorder="little")
            values = bits[:, :k].astype(bool)
            counts = values.sum(axis=0).astype(float)
        else:
            values = np.array([_value_of(body, words_in(vector)) for vector in vectors])
        if body.kind.mechanism in CATEGORICAL:
            chances = reference.odds(body.kind.mechanism, body.epsilon, k)[:2]
            value = (counts - count * chances[1]) / (chances[0] - chances[1])
        else:
            value = values.sum(axis=0)
        fields = {"mechanism": body.kind.mechanism, "epsilon": body.epsilon, "delta": body.delta, "clients": clients,
                 "categories": k if chances else 0}  # fmt: skip
        wrong = [name for name, expected in fields.items() if getattr(reports, name, None) != expected]
        if reports is not None:
            same = reports.values.dtype == values.dtype and np.array_equal(reports.values, values)
            near = np.allclose(reports.probabilities or (0, 0), chances or (0, 0), rtol=_CLOSE, atol=0)
            laplace = (
                _sensitivity(body)[0] / body.epsilon if body.kind.mechanism == "grid-laplace" else found.sigma_local
            )
            scale = 0.0 if chances else laplace
            rounding = ldexp(k, -body.fraction_bits) / min(1.0, body.epsilon)  # of a mean, in L1, divided by ε
            wide = scale * (1 - _CLOSE) <= reports.noise_scale <= scale * _WIDER + rounding
            holds = {"values": same, "probabilities": near, "noise_scale": wide}
            wrong += [name for name, ok in holds.items() if not ok]
        differing = ", ".join(f"{name} of the reports" for name in wrong)
        self.expect(not wrong, f"round {body.round_id.hex()[:8]}: the result differs in {differing}")
        return value


def _total(vectors: Sequence[RingVector]) -> RingVector:
    return reduce(np.add, vectors)  # modulo 2^64


def _value_of(body: Announcement, words: Iterable[Any]) -> NDArray[np.float64]:
    """Decode ring elements to the statistic's units."""
    return np.array([ldexp(float(reference.centred(int(word))), -body.fraction_bits) for word in words])


def _sensitivity(body: Announcement) -> tuple[float, float]:
    """Return Δ₁ and Δ₂ of one protected client, or row of a node release, in the statistic's units."""
    rows = 1 if isinstance(body.kind, NodeRelease) else max(1, body.rows_max)
    return reference.sensitivity_of(body.statistic, body.parameters, rows)
