"""Private training without gradients: one noisy scalar per direction and step, from two forward passes."""

from .make import make_zeroth_order
from .training import Estimate, ZerothOrderTraining

__all__ = ["Estimate", "ZerothOrderTraining", "make_zeroth_order"]
