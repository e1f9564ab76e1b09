"""Variational inference over sums of many clients (DCA paper, section 3.2): the trainer keeps the parameters, they are
public.

    schedule                 how many iterations the budget is divided among
    progress                 what a job reports after each iteration
    mean_field               a Gaussian with independent coordinates, by doubly stochastic gradients; its noise
    clipping                 what clipping does to the gradients of a logistic regression
    models                   what is learnt: generalised linear models, and a user's own log density
    mean_field_job           its learning job

Jobs are deterministic: the same settings, random generator and aggregates give the same requests and the same result,
so a trainer that was killed goes on from its record of aggregates.
"""
