"""Named statistics that a client computes from its own rows. A round names one; it never carries code.

Importing this package registers the built-in ones; `registered` lists them. `ModelGradient` is the base class for
gradients of your own models. `dca_proto.statistics.contribution` turns a client's rows into its contribution.
"""

from dca_proto.statistics.averaged_regression import AveragedRegression
from dca_proto.statistics.base import Statistic, register, registered, resolve
from dca_proto.statistics.gradient import Gradient
from dca_proto.statistics.histogram import Histogram
from dca_proto.statistics.marginals import Marginals
from dca_proto.statistics.mixture import Mixture
from dca_proto.statistics.model_gradient import ModelGradient
from dca_proto.statistics.moments import Moments, SecondMoments
from dca_proto.statistics.nested import NestedCounts
from dca_proto.statistics.phases import Phases
from dca_proto.statistics.regression import Regression
from dca_proto.statistics.sensitivity import ADD_OR_REMOVE_ONE_CLIENT, REPLACE_ONE_CLIENT, REPLACE_ONE_ROW, Sensitivity
from dca_proto.statistics.sum import Mean, Sum
from dca_proto.statistics.survival import Survival
from dca_proto.statistics.survival_score import SurvivalScore
from dca_proto.statistics.table import Table

__all__ = [
    "ADD_OR_REMOVE_ONE_CLIENT",
    "REPLACE_ONE_CLIENT",
    "REPLACE_ONE_ROW",
    "AveragedRegression",
    "Gradient",
    "Histogram",
    "Marginals",
    "Mean",
    "Mixture",
    "ModelGradient",
    "Moments",
    "NestedCounts",
    "Phases",
    "Regression",
    "SecondMoments",
    "Sensitivity",
    "Statistic",
    "Sum",
    "Survival",
    "SurvivalScore",
    "Table",
    "register",
    "registered",
    "resolve",
]
