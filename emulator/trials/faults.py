"""The table of all kinds of faults: what each does, whom it may strike, and whether it ends by itself."""

from __future__ import annotations

from emulator.trials.fault import Kind
from emulator.trials.kills import (
    Crash,
    KillAfter,
    KillBefore,
    KillBetween,
    KillTorn,
    Twin,
    VanishAfterReceipt,
    VanishBeforeSending,
    VanishSending,
)
from emulator.trials.outages import (
    BrokerLoss,
    BrokerRestart,
    ClockBehind,
    Clogged,
    DiskFull,
    EpochTurn,
    Lossy,
    Narrow,
    Overflow,
    Partition,
    PartitionDown,
    PartitionUp,
    ReconnectStorm,
    Slow,
    WrongClock,
)
from emulator.trials.tampering import (
    FlipBits,
    Garbage,
    Misdirect,
    Relay,
    Replay,
    ReplayElsewhere,
    Spoof,
    Swallow,
    Truncate,
)

ACTORS = ("client", "compute", "trainer")
ALL = (*ACTORS, "broker")
_HOUR_MS = 3_600_000.0
_MS, _SHARE, _COUNT = "milliseconds", "a probability", "how many messages"

FAULTS: dict[str, Kind] = {
    "vanish-before-sending": Kind(does="is gone when the announcement comes", make=VanishBeforeSending,
                                  roles=("client",)),
    "vanish-sending": Kind(does="is gone when it has paid, before or after sending", make=VanishSending,
                           roles=("client",)),
    "vanish-after-receipt": Kind(does="is gone when it has its receipt", make=VanishAfterReceipt, roles=("client",)),
    "crash": Kind(does="is killed at a time", make=Crash, roles=ACTORS),
    "kill-before": Kind(does="is killed before a transition is stored", make=KillBefore, roles=ACTORS, heals=True,
                        phases=True),
    "kill-torn": Kind(does="is killed while a transition is stored", make=KillTorn, roles=ACTORS, heals=True,
                      phases=True),
    "kill-after": Kind(does="is killed when a transition is stored", make=KillAfter, roles=ACTORS, heals=True,
                       phases=True),
    "kill-between": Kind(does="is killed between a transition's messages", make=KillBetween, roles=ACTORS, heals=True,
                         phases=True),
    "slow": Kind(does="takes its time over each batch and write", make=Slow, roles=ACTORS, amount=_MS,
                 amounts=(0, 60_000)),
    "clock-ahead": Kind(does="its clock is ahead", make=WrongClock, roles=ACTORS, amount=_MS, amounts=(0, _HOUR_MS)),
    "clock-behind": Kind(does="its clock is behind", make=ClockBehind, roles=ACTORS, amount=_MS, amounts=(0, _HOUR_MS)),
    "disk-full": Kind(does="its disk is full", make=DiskFull, roles=ACTORS, heals=True),
    "partition": Kind(does="is cut off", make=Partition, roles=ACTORS),
    "partition-up": Kind(does="nothing that it sends arrives", make=PartitionUp, roles=ACTORS),
    "partition-down": Kind(does="nothing that is sent to it arrives", make=PartitionDown, roles=ACTORS),
    "clogged": Kind(does="every packet waits", make=Clogged, roles=ACTORS, amount=_MS, amounts=(0, 600_000)),
    "lossy": Kind(does="its link loses, repeats and reorders", make=Lossy, roles=ACTORS, amount=_SHARE,
                  amounts=(0, 0.95)),
    "narrow": Kind(does="its link is narrow", make=Narrow, roles=ACTORS, amount="bytes a second", amounts=(100, 1e9)),
    "broker-restart": Kind(does="goes down and comes back", make=BrokerRestart, roles=("broker",), heals=True),
    "broker-loss": Kind(does="goes down and comes back empty", make=BrokerLoss, roles=("broker",), heals=True),
    "overflow": Kind(does="its session overflows while it is away", make=Overflow, roles=ACTORS, heals=True,
                     amount=_COUNT, amounts=(0, 1e6)),
    "reconnect-storm": Kind(does="half of the swarm reconnects at once", make=ReconnectStorm, roles=("client",),
                            heals=True),
    "twin": Kind(does="a copy of it runs, too", make=Twin, roles=("client", "compute"), is_of_one=True),
    "epoch-turn": Kind(does="an epoch ends", make=EpochTurn, roles=("broker",), heals=True),
    "swallow": Kind(does="its messages are acknowledged and lost", make=Swallow, roles=ACTORS, amount=_SHARE,
                    amounts=(0, 1)),
    "flip-bits": Kind(does="its messages are damaged", make=FlipBits, roles=ACTORS, amount=_SHARE, amounts=(0, 1)),
    "truncate": Kind(does="its messages are cut short", make=Truncate, roles=ACTORS, amount=_SHARE, amounts=(0, 1)),
    "relay": Kind(does="invitations reach everybody", make=Relay, roles=("broker",)),
    "replay": Kind(does="its messages are repeated later", make=Replay, roles=ALL, heals=True, amount=_COUNT,
                   amounts=(0, 1_000)),
    "replay-elsewhere": Kind(does="its messages are repeated in another round", make=ReplayElsewhere, roles=ALL,
                             heals=True, amount=_COUNT, amounts=(0, 1_000)),
    "spoof": Kind(does="its messages come under another's name", make=Spoof, roles=ALL, heals=True, amount=_COUNT,
                  amounts=(0, 1_000)),
    "misdirect": Kind(does="its messages go to others", make=Misdirect, roles=ALL, heals=True, amount=_COUNT,
                      amounts=(0, 1_000)),
    "garbage": Kind(does="meaningless bytes come from nobody", make=Garbage, roles=("broker",), heals=True,
                    amount=_COUNT, amounts=(0, 1_000)),
}  # fmt: skip
"""By name. An epoch turn strikes the broker only in name: it is nobody's own."""
