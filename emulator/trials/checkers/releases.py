"""Invariants 1 and 2: what leaves a Compute node as a partial sum, how often, and over whom; what clients release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dca_proto.core.commit import positions_of
from dca_proto.core.effects import Persist, Write
from dca_proto.core.errors import PeerError
from dca_proto.core.sealing import ID_BYTES
from dca_proto.core.trainer_round import RELEASES
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker
from emulator.trials.checkers.witness import Release, Released, Witness

if TYPE_CHECKING:
    from emulator.trials.world import TrialWorld


class OneRelease(Checker):
    """Distinct answers with a partial sum per honest node and round, sent or stored, over all restarts.

    Of a local round: distinct releases of each honest data node; of one of reports, distinct reports of each client.
    """

    number, name = 1, "one partial sum"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        witness.on_release.append(self._released)
        witness.on_local.append(self._released_alone)

    def _released_alone(self, release: Released) -> None:
        who, round_id = release.client.hex()[:8], release.round_id.hex()[:8]
        self.expect(release.number == 0, f"client {who} releases or reports twice in round {round_id}")

    def _released(self, release: Release) -> None:
        node, round_id = release.node.hex()[:8], release.round_id.hex()[:8]
        self.expect(release.number == 0, f"compute {node} releases a second partial sum of round {round_id}")


class EnoughContributors(Checker):
    """The size of S, where its members come from, and that all honest nodes that release know one roster.

    Of a local round or one of reports: where what the trainer keeps comes from.
    """

    number, name = 2, "enough, enrolled, one roster"

    def __init__(self, world: TrialWorld, witness: Witness) -> None:
        super().__init__(world, witness)
        self._hash: dict[bytes, bytes] = {}
        self._kept: set[tuple[bytes, bytes]] = set()  # by round and client
        witness.on_release.append(self._released)

    def _released(self, release: Release) -> None:
        who = f"compute {release.node.hex()[:8]} releases round {release.round_id.hex()[:8]}"
        roster = self.witness.rosters.get((release.node, release.round_id))
        if roster is None:
            self.fail(f"{who} of which it has stored no roster")
            return
        try:
            present = positions_of(release.partial.contributors, len(roster.clients))
        except PeerError as error:
            self.fail(f"{who} over clients beyond its roster: {error}")
            return
        self.expect(
            len(present) >= roster.needed, f"{who} over {len(present)} contributions, where {roster.needed} are needed"
        )
        strangers = [roster.clients[position] for position in present if self._is_strange(roster.clients[position])]
        self.expect(not strangers, f"{who} over clients that are not enrolled: {[one.hex()[:8] for one in strangers]}")
        self.expect(len(set(roster.clients)) == len(roster.clients), f"{who} on a roster that names a client twice")
        first = self._hash.setdefault(release.round_id, roster.hash)
        self.expect(roster.hash == first == roster.terms.roster_hash, f"{who} on another roster than its peers")

    def on_commit(self, process: Process, writes: Sequence[Write]) -> None:
        """Each release or report that the trainer keeps is of an enrolled client, and the only one of it."""
        for write in writes:
            if write.table == RELEASES and isinstance(write, Persist):
                round_id, client = write.key[:ID_BYTES], write.key[ID_BYTES:]
                who = f"round {round_id.hex()[:8]}: what {client.hex()[:8]} releases"
                self.expect(not self._is_strange(client), f"{who} is kept, who is not enrolled")
                again = (round_id, client) in self._kept
                self.expect(not again, f"{who} is stored twice")
                self._kept.add((round_id, client))

    def _is_strange(self, client: bytes) -> bool:
        return client not in self.world.enrolled
