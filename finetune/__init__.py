"""Private training: ghost clipping, zeroth-order estimates, noise, Poisson sampling, models, tasks, recipes."""

from typing import TYPE_CHECKING, Any

from .clipped_sum import ClippedSum
from .clipping import GhostClipping, UnsupportedUseError
from .diagnostics import NonPrivateDiagnostics
from .layer_rules import LAYER_RULES, LayerRule
from .losses import (
    causal_lm_losses,
    check_losses_are_per_example,
    mean_over_own_tokens,
    sum_over_own_tokens,
    token_classification_losses,
)
from .memory import keep_freed_memory
from .modes import Automatic, ClippingMode, Flat, GroupWise, PerLayer, clip_factors, rounding_margin
from .noise import release
from .private import PrivateTraining, make_private
from .processes import ProcessError
from .randomness import Randomness, secret_generator
from .recording import Recording
from .runs import Recipe, RunResult, load_recipe, run_recipe, run_without_privacy
from .sampling import LogicalBatch, PoissonSampler
from .settings import PrivacySettings
from .sharding import shard_frozen
from .support import UnsupportedModelError
from .zeroth_order import ZerothOrderTraining, make_zeroth_order

if TYPE_CHECKING:
    from .trainer import PrivateTrainer

__all__ = [
    "LAYER_RULES",
    "Automatic",
    "ClippedSum",
    "ClippingMode",
    "Flat",
    "GhostClipping",
    "GroupWise",
    "LayerRule",
    "LogicalBatch",
    "NonPrivateDiagnostics",
    "PerLayer",
    "PoissonSampler",
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
    "keep_freed_memory",
    "load_recipe",
    "make_private",
    "make_zeroth_order",
    "mean_over_own_tokens",
    "release",
    "rounding_margin",
    "run_recipe",
    "run_without_privacy",
    "secret_generator",
    "shard_frozen",
    "sum_over_own_tokens",
    "token_classification_losses",
]


def __getattr__(name: str) -> Any:
    """`PrivateTrainer` brings in transformers and accelerate: imported when it is first asked for."""
    if name == "PrivateTrainer":
        from .trainer import PrivateTrainer

        return PrivateTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
