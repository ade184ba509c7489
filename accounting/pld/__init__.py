"""Privacy loss distributions: proven intervals for scalar releases and Gaussian noise."""

from .accountant import PrivacyLoss

__all__ = ["PrivacyLoss"]
