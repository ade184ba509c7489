"""Audits of private training: lower bounds on ε from one run with canaries, from losses, and a check of batches."""

from .canaries import GradientCanaries, mislabelled, secret_bits
from .contributions import ContributionCheck, check_contributions
from .membership import MembershipResult, membership_inference
from .one_run import OneRunBound, epsilon_from_guesses, epsilon_from_one_run, tail_bound
from .run import AuditResult, audit_run
from .sampling import BatchCheck, check_batches

__all__ = [
    "AuditResult",
    "BatchCheck",
    "ContributionCheck",
    "GradientCanaries",
    "MembershipResult",
    "OneRunBound",
    "audit_run",
    "check_batches",
    "check_contributions",
    "epsilon_from_guesses",
    "epsilon_from_one_run",
    "membership_inference",
    "mislabelled",
    "secret_bits",
    "tail_bound",
]
