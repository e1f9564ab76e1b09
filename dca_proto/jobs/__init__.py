"""Runs a learning job on a running trainer: one round after another, recorded in a journal that survives a crash.

    with Journal(path, {"job": "regression", ...}) as journal:
        result = await learn(job, trainer, terms, journal)

A job is a generator: it yields a `RoundRequest`, receives the `NoisyAggregate`, and returns its result. `runner`
handles failed rounds, restarts and the choice of clients. Callers without an event loop use `sync.TrainerRounds`.
"""
