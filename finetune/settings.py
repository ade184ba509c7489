"""What the guarantee of a training run depends on."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from ..accounting import ADD_OR_REMOVE_ONE


class PrivacySettings(pydantic.BaseModel):
    """What the guarantee depends on, and nothing else. All of it is chosen before seeing the data."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    epsilon: float = Field(gt=0)
    """Target ε: the noise is calibrated to it, a given noise that exceeds it is refused."""
    delta: float = Field(gt=0, lt=1)
    """Probability δ of the guarantee; below 1/n by custom."""
    steps: int = Field(ge=1)
    """Number of noisy releases T, one per optimizer update."""
    sampling_rate: float = Field(gt=0, le=1)
    """Poisson inclusion probability q of every record per step."""
    clipping_norm: float = Field(gt=0)
    """L2 bound C on one example's gradient."""
    divisor: float = Field(gt=0)
    """Constant that divides the noisy sum, such as the expected batch size."""
    adjacency: Literal["add_or_remove_one"] = ADD_OR_REMOVE_ONE  # type: ignore[assignment]
    """Neighbouring data sets differ by one record more or less."""

    def question(self, dimension: float) -> dict[str, Any]:
        """What `accounting.epsilon` and `calibrate` ask of all `steps`, beside the noise, for `dimension` numbers."""
        return {
            "delta": self.delta,
            "steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "dimension": dimension,
            "adjacency": self.adjacency,
        }
