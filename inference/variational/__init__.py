"""Variational inference over sums of many clients (DCA paper, section 3.2): the trainer keeps the parameters, they are
public.

General layout, in reading order:
    schedule                 how many iterations the budget is divided among
    progress                 what a job tells after each iteration
    scores                   what an iteration is worth on rows that the trainer holds

    mean_field               a Gaussian with independent coordinates, fitted by doubly stochastic gradients: state, step
    noise_spread             how far the privacy noise carried the fitted mean
    models                   what is learnt: generalised linear models, and a user's own log density
    mean_field_job           its learning job
    mean_field_fit           its result

Jobs are deterministic: the same settings, random generator and aggregates give the same requests and the same result,
so a trainer that was killed goes on from its record of aggregates.
"""
