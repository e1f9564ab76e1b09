"""Named statistics that a client computes from its own rows. A round names one; it never carries code."""

from dca_proto.statistics.base import Sensitivity, Statistic, register, registered, resolve

__all__ = ["Sensitivity", "Statistic", "register", "registered", "resolve"]
