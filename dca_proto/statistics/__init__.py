"""Named statistics that a client computes from its own rows. A round names one; it never carries code.

Importing this package registers the built-in ones; `registered` lists them. `ModelGradient` is the base class for
gradients of your own models. `dca_proto.statistics.contribution` turns a client's rows into its contribution.

"X as X" exports a name: one line for each statistic, and no list of names beside it.
"""

from dca_proto.statistics.averaged_regression import AveragedRegression as AveragedRegression
from dca_proto.statistics.base import Statistic as Statistic
from dca_proto.statistics.base import register as register
from dca_proto.statistics.base import registered as registered
from dca_proto.statistics.base import resolve as resolve
from dca_proto.statistics.category_score import CategoryScore as CategoryScore
from dca_proto.statistics.gradient import Gradient as Gradient
from dca_proto.statistics.histogram import Histogram as Histogram
from dca_proto.statistics.marginals import Marginals as Marginals
from dca_proto.statistics.mixture import Mixture as Mixture
from dca_proto.statistics.model_gradient import ModelGradient as ModelGradient
from dca_proto.statistics.moments import Moments as Moments
from dca_proto.statistics.moments import SecondMoments as SecondMoments
from dca_proto.statistics.nested import NestedCounts as NestedCounts
from dca_proto.statistics.phases import Phases as Phases
from dca_proto.statistics.regression import Regression as Regression
from dca_proto.statistics.sensitivity import ADD_OR_REMOVE_ONE_CLIENT as ADD_OR_REMOVE_ONE_CLIENT
from dca_proto.statistics.sensitivity import REPLACE_ONE_CLIENT as REPLACE_ONE_CLIENT
from dca_proto.statistics.sensitivity import REPLACE_ONE_ROW as REPLACE_ONE_ROW
from dca_proto.statistics.sensitivity import Sensitivity as Sensitivity
from dca_proto.statistics.sum import Mean as Mean
from dca_proto.statistics.sum import Sum as Sum
from dca_proto.statistics.survival import Survival as Survival
from dca_proto.statistics.survival_score import SurvivalScore as SurvivalScore
from dca_proto.statistics.table import Table as Table
