"""Private training: ghost clipping, zeroth-order estimates, noise, Poisson sampling, text classifiers, recipes."""

from typing import TYPE_CHECKING, Any

from .clipping import GhostClipping, UnsupportedUseError
from .demo import DemoTraining, demo_recipe, run_demo_training
from .diagnostics import NonPrivateDiagnostics
from .layer_rules import LAYER_RULES, LayerRule
from .losses import (
    causal_lm_losses,
    check_losses_are_per_example,
    mean_over_own_tokens,
    sum_over_own_tokens,
    token_classification_losses,
)
from .modes import Automatic, ClippingMode, Flat, GroupWise, PerLayer, clip_factors, rounding_margin
from .noise import ClippedSum, release
from .prepare import Prepared, prepare, trainable_dimension
from .private import PrivateTraining, make_private
from .processes import ProcessError
from .randomness import Randomness, secret_generator
from .recipe import PrivacySettings, Recipe, load_recipe
from .recording import Recording
from .runner import RunResult, run_recipe, run_without_privacy
from .sampling import LogicalBatch, PoissonSampler
from .support import UnsupportedModelError
from .zeroth_order import ZerothOrderTraining, make_zeroth_order

if TYPE_CHECKING:
    from .trainer import PrivateTrainer

__all__ = [
    "LAYER_RULES",
    "Automatic",
    "ClippedSum",
    "ClippingMode",
    "DemoTraining",
    "Flat",
    "GhostClipping",
    "GroupWise",
    "LayerRule",
    "LogicalBatch",
    "NonPrivateDiagnostics",
    "PerLayer",
    "PoissonSampler",
    "Prepared",
    "PrivacySettings",
    "PrivateTrainer",
    "PrivateTraining",
    "ProcessError",
    "Randomness",
    "Recipe",
    "Recording",
    "RunResult",
    "UnsupportedModelError",
    "UnsupportedUseError",
    "ZerothOrderTraining",
    "causal_lm_losses",
    "check_losses_are_per_example",
    "clip_factors",
    "demo_recipe",
    "load_recipe",
    "make_private",
    "make_zeroth_order",
    "mean_over_own_tokens",
    "prepare",
    "release",
    "rounding_margin",
    "run_demo_training",
    "run_recipe",
    "run_without_privacy",
    "secret_generator",
    "sum_over_own_tokens",
    "token_classification_losses",
    "trainable_dimension",
]


def __getattr__(name: str) -> Any:
    """`PrivateTrainer` brings in transformers and accelerate: imported when it is first asked for."""
    if name == "PrivateTrainer":
        from .trainer import PrivateTrainer

        return PrivateTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
