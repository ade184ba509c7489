"""What each layer type must record, and which gradients its parameters get from it. One rule per layer type.

To support another layer, write a `LayerRule` and pass `{**LAYER_RULES, MyLayer: MyRule()}` where rules are asked for.
B: examples, T: positions, d and p: input and output width.
"""

from __future__ import annotations

import abc
import types
from collections.abc import Collection, Mapping
from typing import Any, final

from torch import Tensor, nn

from .factored import DenseGradient, FactoredGradient, OuterGradient, RowGradient, at_least_float32

# Rules are typed with `Any` modules: a rule is only ever handed instances of the type it is registered for.


class LayerRule(abc.ABC):
    """The gradients of one layer type, from its input and the gradient of its output."""

    def refusal(self, module: Any) -> str | None:
        """Why this very module cannot be trained privately, or None if it can."""
        return None

    @abc.abstractmethod
    def needs_input(self, trainable: Collection[str]) -> bool:
        """Whether the input must be kept for the gradients of the parameters named in `trainable`."""

    @abc.abstractmethod
    def gradients(
        self, module: Any, inputs: Tensor | None, output_grads: Tensor, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        """Factored gradients by parameter name, for the names in `trainable`.

        `inputs` (B, …) is the layer's input, None if `needs_input` said so; `output_grads` (B, …, p).
        """


@final
class LinearRule(LayerRule):
    """y = x·Wᵀ + b. The weight's gradient is Σ_t g_t a_tᵀ, the bias's Σ_t g_t."""

    def needs_input(self, trainable: Collection[str]) -> bool:
        return "weight" in trainable

    def gradients(
        self, module: nn.Linear, inputs: Tensor | None, output_grads: Tensor, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        grads = with_positions(output_grads)
        result: dict[str, FactoredGradient] = {}
        if "weight" in trainable:
            assert inputs is not None
            result["weight"] = OuterGradient(with_positions(inputs), grads)
        if "bias" in trainable:
            result["bias"] = DenseGradient.from_positions(grads)
        return result


@final
class EmbeddingRule(LayerRule):
    """y_t = W[id_t]. The row `padding_idx` gets no gradient, as in torch."""

    def refusal(self, module: nn.Embedding) -> str | None:
        if module.max_norm is not None:
            return "max_norm rewrites the table in the forward pass, from the batch; build it with max_norm=None"
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq mixes the examples of a batch; build it with scale_grad_by_freq=False"
        if module.sparse:
            return "its noisy gradient is dense; build it with sparse=False"
        return None

    def needs_input(self, trainable: Collection[str]) -> bool:
        return "weight" in trainable

    def gradients(
        self, module: nn.Embedding, inputs: Tensor | None, output_grads: Tensor, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        assert inputs is not None
        if inputs.dim() < 2:
            raise ValueError(
                f"expected ids of shape (examples, positions), got shape {tuple(inputs.shape)}: one axis does not tell "
                "examples from positions; pass ids[:, None] (one id per example) or ids[None] (positions for all)"
            )
        ids, grads = inputs.flatten(1), with_positions(output_grads)
        if module.padding_idx is not None:
            grads = grads.masked_fill((ids == module.padding_idx)[:, :, None], 0)
        return {"weight": RowGradient(ids, grads, module.num_embeddings)}


@final
class LayerNormRule(LayerRule):
    """y = x̂·w + b with x̂ the normalised input. The weight's gradient is Σ_t g_t·x̂_t, the bias's Σ_t g_t."""

    def needs_input(self, trainable: Collection[str]) -> bool:
        return "weight" in trainable

    def gradients(
        self, module: nn.LayerNorm, inputs: Tensor | None, output_grads: Tensor, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        shape = tuple(module.normalized_shape)
        grads = at_least_float32(output_grads)
        result: dict[str, FactoredGradient] = {}
        if "weight" in trainable:
            assert inputs is not None
            normalised = nn.functional.layer_norm(at_least_float32(inputs), shape, eps=module.eps)
            result["weight"] = self._dense(grads * normalised, shape)
        if "bias" in trainable:
            result["bias"] = self._dense(grads, shape)
        return result

    @staticmethod
    def _dense(terms: Tensor, shape: tuple[int, ...]) -> DenseGradient:
        """Sum (B, …, *shape) over everything between the examples and the normalised axes."""
        width = 1
        for size in shape:
            width *= size
        return DenseGradient.from_positions(terms.reshape(terms.shape[0], -1, width))


def with_positions(tensor: Tensor) -> Tensor:
    """(B, …, width) as (B, T, width); one position where there is no axis between."""
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1])


LAYER_RULES: Mapping[type[nn.Module], LayerRule] = types.MappingProxyType(
    {
        nn.Linear: LinearRule(),
        nn.Embedding: EmbeddingRule(),
        nn.LayerNorm: LayerNormRule(),
    }
)
"""The layer types that can be trained. Read-only: pass an extended copy instead of changing it."""


def find_rule(module: nn.Module, rules: Mapping[type[nn.Module], LayerRule]) -> LayerRule | None:
    """The rule of the module's type, or of a base class whose `forward` it has not changed; None if there is none.

    A subclass with a `forward` of its own computes something else, so the rule of its base class may be wrong for it.
    """
    if "forward" in vars(module):  # replaced on the instance
        return None
    for base in type(module).__mro__:
        if base in rules:
            return rules[base] if type(module).forward is base.forward else None
    return None
