"""Contributions that overtook their announcement: kept for a moment, within bounds (DESIGN §4.5).

Nothing is promised for them: no receipt, no durable write. If the announcement does not come, the client sends again.
"""

from __future__ import annotations

from collections import defaultdict

from dca_proto.protocol.wire.messages import Contribution

MESSAGES_MAX = 4096
BYTES_MAX = 8 << 20
KEPT_MS = 5_000


class Early:
    """What came for rounds that are not known yet."""

    def __init__(self) -> None:
        self._waiting: defaultdict[bytes, dict[bytes, Contribution]] = defaultdict(dict)
        self._bytes = self._messages = 0
        self._since_ms = 0

    def keep(self, sender: bytes, message: Contribution, now_ms: int) -> bool:
        """Keep a message, one of each sender and round, if there is room; whether it is kept."""
        if not self._waiting or now_ms - self._since_ms > KEPT_MS:
            self._waiting.clear()
            self._bytes, self._messages, self._since_ms = 0, 0, now_ms
        size = len(message.ciphertext)
        if self._messages >= MESSAGES_MAX or self._bytes + size > BYTES_MAX:
            return False
        self._bytes, self._messages = self._bytes + size, self._messages + 1
        self._waiting[message.round_id][sender] = message
        return True

    def take(self, round_id: bytes) -> dict[bytes, Contribution]:
        """The messages of a round, by sender; they wait no longer."""
        return self._waiting.pop(round_id, {})
