"""Private training: ghost clipping, noise on updates, Poisson sampling, text classifiers, recipes."""

from .clipping import GhostClipping, Recording, UnsupportedUseError, clip_factors, rounding_margin
from .layer_rules import LAYER_RULES, LayerRule
from .losses import mean_over_own_tokens
from .noise import ClippedSum, release
from .private import PrivateTraining, make_private
from .randomness import Randomness, secret_generator
from .sampling import LogicalBatch, PoissonSampler
from .support import UnsupportedModelError

__all__ = [
    "LAYER_RULES",
    "ClippedSum",
    "GhostClipping",
    "LayerRule",
    "LogicalBatch",
    "PoissonSampler",
    "PrivateTraining",
    "Randomness",
    "Recording",
    "UnsupportedModelError",
    "UnsupportedUseError",
    "clip_factors",
    "make_private",
    "mean_over_own_tokens",
    "release",
    "rounding_margin",
    "secret_generator",
]
