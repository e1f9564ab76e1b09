"""Variational inference over sums of many clients (DCA paper, section 3.2): the trainer keeps the parameters, which are
public.

    schedule                 the number of iterations to divide the budget among
    progress                 a job's progress after each iteration
    mean_field               a Gaussian with independent coordinates, by doubly stochastic gradients; its noise
    clipping                 the effect of clipping on the gradients of a logistic regression
    models                   the models: generalised linear models, and a user's own log density
    mean_field_job           the learning job

Jobs are deterministic: the same settings, random generator and aggregates give the same requests and the same result,
so a trainer that was killed continues from its record of aggregates.
"""
