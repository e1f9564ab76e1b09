"""The warnings of a learning job about its clean designs, each a false alarm."""

from __future__ import annotations

import numpy as np

from dca_proto.cli.job_settings import best_weights
from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease
from emulator.ideal import IdealSwarm
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.jobs.examples import Design
from inference.jobs.settings import settings_from
from inference.rounds import run

CLIENTS, EPSILON, DELTA, COMPUTES = 5_000, 2.0, 1e-5, tuple(bytes([index]) * 16 for index in range(3))
NODES = 10


def warned(name: str, design: Design, seed: int) -> list[str]:
    """Return the warnings of a job's summary on a clean design."""
    rng, job = np.random.default_rng(seed), find(name)
    clean, kind = job.clean, job.kinds[0]
    clients, rows = clean.clients, design(rng, clean.clients)
    own = settings_from(job.settings, clean.settings, name)
    job.check(rows.schema, own)
    local, nodes = kind is LdpReport, kind is NodeRelease
    parts = np.array_split(rows.rows, NODES) if nodes else rows.rows
    budget = Budget(clean.epsilon, DELTA)
    tolerate = 0 if local or nodes else clients // 10
    terms = JobTerms(
        epsilon=budget.epsilon,
        delta=budget.delta,
        clients=len(parts),
        tolerate=tolerate,
        computes=() if local or nodes else COMPUTES,
    )
    known = Conditions(len(parts), tolerate, budget.mu, rng, kind=kind, epsilon=EPSILON, weights=best_weights)
    swarm = IdealSwarm(parts, rows.schema.columns, terms, random=rng.bytes)
    result = job.finish(run(job.make(rows.schema, own, known), swarm), rows.schema, own, known)
    return list(job.summarise(result, None, None, None, rows.schema)["warnings"])
