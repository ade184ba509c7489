"""Private training: ghost clipping, noise on updates, Poisson sampling, text classifiers, recipes."""

from .clipping import GhostClipping, Recording, UnsupportedUseError, clip_factors, rounding_margin
from .demo import DemoTraining, demo_recipe, run_demo_training
from .layer_rules import LAYER_RULES, LayerRule
from .losses import mean_over_own_tokens
from .noise import ClippedSum, release
from .prepare import Prepared, prepare, trainable_dimension
from .private import PrivateTraining, make_private
from .randomness import Randomness, secret_generator
from .recipe import Recipe, load_recipe
from .runner import RunResult, run_recipe, run_without_privacy
from .sampling import LogicalBatch, PoissonSampler
from .support import UnsupportedModelError

__all__ = [
    "LAYER_RULES",
    "ClippedSum",
    "DemoTraining",
    "GhostClipping",
    "LayerRule",
    "LogicalBatch",
    "PoissonSampler",
    "Prepared",
    "PrivateTraining",
    "Randomness",
    "Recipe",
    "Recording",
    "RunResult",
    "UnsupportedModelError",
    "UnsupportedUseError",
    "clip_factors",
    "demo_recipe",
    "load_recipe",
    "make_private",
    "mean_over_own_tokens",
    "prepare",
    "release",
    "rounding_margin",
    "run_demo_training",
    "run_recipe",
    "run_without_privacy",
    "secret_generator",
    "trainable_dimension",
]
