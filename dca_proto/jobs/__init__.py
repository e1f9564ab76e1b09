"""A learning job over a running trainer: rounds one after the other, and a journal that survives the trainer.

    with Journal(path, {"job": "regression", ...}) as journal:
        result = await learn(job, trainer, terms, journal)

A job is a generator: it yields a `RoundRequest`, is sent the `NoisyAggregate`, and returns its result. It knows nothing
of rounds that fail, of restarts and of who is asked; that is `runner`'s affair. For callers without an event loop there
is `sync.TrainerRounds`.
"""
