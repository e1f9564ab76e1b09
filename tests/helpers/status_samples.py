"""Statuses of running actors, with a value in every figure, and texts that somebody else chose."""

from __future__ import annotations

from typing import Any

from dca_proto.results.status import (
    PHASE_S,
    Durations,
    LastRound,
    RoundStatus,
    ScheduledJob,
    StatedResult,
    StatedValue,
    Status,
)

HOSTILE = "<script>document.title = 'ran'</script>"
PRIVATE = ("ward-3 (0dcbcd97)", "no such column", "contributed to mean", "temperature 21.5", "no number")
"""What a status names, and a metric may not: clients, errors of data, results, messages with data."""


def status_of(role: str = "trainer", **known: Any) -> Status:
    """A status with a value in every figure."""
    usual: dict[str, Any] = {
        "role": role, "name": role, "id": "ab" * 16, "federation": "wards", "file": 2, "at": "2026-11-29T06:00:00Z",
        "running_s": 7200.0, "broker": "mqtt://127.0.0.1", "connected": True, "since_s": 7100.0, "epoch": 20786,
        "sessions": 25, "connections_lost": 1, "contributions": 1204, "epsilon_left": 1.25, "epsilon_allowed": 4.0,
        "delta": 1e-5, "period_days": 365.0, "inbox": 3, "outbox": 2, "store_bytes": 57_344, "log_bytes": 1000,
        "messages_sent": 310, "messages_received": 4021, "bytes_sent": 123_456, "bytes_received": 7_654_321,
        "ended": {"completed": {"all": 40, "quiet": 3}, "failed": {"too few": 2}}, "declines": {"epsilon": 4},
        "dropped": {"malformed": 5, "phase": 1}, "data_dropped": {PRIVATE[4]: 7},
        "clock_offset_s": {"berlin (01020304)": -0.25},
        "phases": {"collect": Durations(counts=[0, 1, *[0] * (len(PHASE_S) - 2), 2], total_s=8000.5)},
        "certificates": {"TLS certificate lab.pem": "2026-12-05T04:37:41Z"}, "data_read": "2026-11-29T05:59:00Z",
        "enrolled": 21, "enrolled_most": 100, "invited": 4, "issued": 2,
        "data_error": PRIVATE[1], "data_source": "readings.csv",
        "warnings": ["the TLS certificate lab.pem ends in 6 days: renew it"],
        "rounds": [RoundStatus(round_id="3f2a91c0" * 4, statistic="mean", phase="collecting", arrived=23, expected=25,
                               until="2026-11-29T06:02:00Z", waits_for=[PRIVATE[0], "ward-9 (91c03b6a)"])],
        "schedule": [ScheduledJob(title="daily mean", next="2026-11-30T06:00:00Z", done=212, gaps=3, of=365,
                                  lasts_to="2027-04-30")],
        "last": LastRound(at="2026-11-29T05:00:09Z", round_id="77" * 16, what=PRIVATE[2], ok=True),
        "results": [StatedResult(at=f"2026-11-{day:02}T06:00:10Z", round_id=f"{day:032x}", statistic="mean",
                                 outcomes=[StatedValue(label=PRIVATE[3], value=20 + day / 10, noise_std=0.4)],
                                 contributors=25, more=2)
                    for day in range(20, 29)],
    }  # fmt: skip
    return Status(**{**usual, **known})
