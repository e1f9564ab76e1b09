"""LDP reports: clients that each report by a local mechanism, and their rounds advanced to a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hospitals import released
from round_helpers import begin, unsealed

from dca_proto.privacy.mechanism import PURE_MECHANISMS, RANDOMISED_RESPONSE, UNARY_ENCODING
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.protocol.wire.messages import Release
from dca_proto.testing import Network, TestFederation

SCALED = {"columns": ["x"], "centre": [2.0], "scale": [2.0], "bound": [1.0]}
"""Parameters of a sum, which map the values 0 to 4 to -1 to 1."""


def edges(categories: int) -> dict[str, Any]:
    """Return the parameters of a histogram of the categories 0 to k - 1."""
    return {"columns": ["x"], "edges": [place - 0.5 for place in range(categories + 1)]}


class Reporters(TestFederation):
    """Clients under the default policy, floors and all, without any Compute node.

    Args:
        by: the mechanism of their reports. values: each client's value; None for a client without a row.
        categories: k, for a categorical mechanism. changes: as for `TestFederation`.
    """

    def __init__(self, by: str, values: Sequence[float | None], categories: int = 5, **changes: Any) -> None:
        rows = [np.zeros((0, 1)) if value is None else np.array([[float(value)]]) for value in values]
        super().__init__(len(values), 0, **{"rows": rows, "policy": Policy(), **changes})
        self.reports_by, self.categories = by, categories

    def request(self, **changes: Any) -> OpenRound:
        plain = {"kind": LdpReport(self.reports_by), "parameters": SCALED}
        if self.reports_by in PURE_MECHANISMS:
            plain["delta"] = 0.0
        if self.reports_by in (RANDOMISED_RESPONSE, UNARY_ENCODING):
            plain |= {"statistic": "histogram", "parameters": edges(self.categories), "rows_max": 1}
        return super().request(**{**plain, **changes})


def reported(actors: Reporters, **changes: Any) -> Network:
    """Run one completed round."""
    return begin(actors, **changes)[0]


def report_of(actors: TestFederation, network: Network, index: int, **changes: Any) -> Release:
    """Return the report of client `index` in the newest round, with some fields changed."""
    body = unsealed(network, actors, released(network, actors.clients[index])[-1].payload)
    assert isinstance(body, Release)
    return msgspec.structs.replace(body, **changes)
