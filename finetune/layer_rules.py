"""What each layer type must record, and which gradients its parameters get from it. One rule per layer type.

To support another layer, write a `LayerRule` and pass `{**LAYER_RULES, MyLayer: MyRule()}` where rules are asked for.
A type may be named, "package.module.Class", so that a library need not be imported to have a rule for it.
B: examples, T: positions, d and p: input and output width.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import types
from collections.abc import Collection, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from .factored import DenseGradient, FactoredGradient, OuterGradient, RowGradient
from .recorded import Recorded, at_least_float32, wide_dtype

# Rules are typed with `Any` modules: a rule is only ever handed instances of the type it is registered for.

Rules = Mapping[type[nn.Module] | str, "LayerRule"]


class LayerRule(abc.ABC):
    """The gradients of one layer type, from its input and the gradient of its output."""

    names: tuple[str, ...] = ("weight", "bias")
    """The parameters that this rule knows. A trainable one that it does not know is refused."""

    def refusal(self, module: Any) -> str | None:
        """Why this very module cannot be trained privately, or None if it can."""
        return None

    @abc.abstractmethod
    def needs_input(self, trainable: Collection[str]) -> bool:
        """Whether the input must be kept for the gradients of the parameters named in `trainable`."""

    @abc.abstractmethod
    def gradients(
        self, module: Any, inputs: Recorded | None, output_grads: Recorded, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        """Factored gradients by parameter name, for exactly the names in `trainable`.

        `inputs` (B, …) is the layer's input, None if `needs_input` said so; `output_grads` (B, …, p).
        """


@final
class LinearRule(LayerRule):
    """y = x·Wᵀ + b. The weight's gradient is Σ_t g_t a_tᵀ, the bias's Σ_t g_t."""

    def needs_input(self, trainable: Collection[str]) -> bool:
        return "weight" in trainable

    def gradients(
        self, module: nn.Linear, inputs: Recorded | None, output_grads: Recorded, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        result: dict[str, FactoredGradient] = {}
        if "bias" in trainable:
            result["bias"] = DenseGradient.from_positions(output_grads)
        if "weight" in trainable:
            assert inputs is not None
            result["weight"] = OuterGradient(inputs, output_grads)
        return result


@final
class Conv1DRule(LayerRule):
    """GPT-2's y = x·W + b: a linear layer whose weight is d × p."""

    def needs_input(self, trainable: Collection[str]) -> bool:
        return "weight" in trainable

    def gradients(
        self, module: Any, inputs: Recorded | None, output_grads: Recorded, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        result: dict[str, FactoredGradient] = {}
        if "bias" in trainable:
            result["bias"] = DenseGradient.from_positions(output_grads)
        if "weight" in trainable:
            assert inputs is not None
            result["weight"] = OuterGradient(output_grads, inputs)
        return result


@final
@dataclasses.dataclass(frozen=True)
class EmbeddingRule(LayerRule):
    """y_t = W[id_t], or `embed_scale`·W[id_t] if `scaled` (BART, Gemma). The row `padding_idx` gets no gradient."""

    scaled: bool = False
    names = ("weight",)

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
        self, module: Any, inputs: Recorded | None, output_grads: Recorded, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        assert inputs is not None
        ids = inputs.tensor
        if ids.dim() < 2:
            raise ValueError(
                f"expected ids of shape (examples, positions), got shape {tuple(ids.shape)}: one axis does not tell "
                "examples from positions; pass ids[:, None] (one id per example) or ids[None] (positions for all)"
            )
        ids = ids.flatten(1)
        if self.scaled:
            scale = module.embed_scale
            scale = scale.to(module.weight.dtype) if isinstance(scale, Tensor) else scale
            output_grads = Recorded(at_least_float32(output_grads.positions) * scale)
        if module.padding_idx is not None:
            at_padding = (ids == module.padding_idx)[:, :, None]
            output_grads = Recorded(output_grads.positions.masked_fill(at_padding, 0))
        return {"weight": RowGradient(ids, output_grads, module.num_embeddings)}


class _NormalisationRule(LayerRule):
    """y = x̂·w (+ b) with x̂ the normalised input. The weight's gradient is Σ_t g_t·x̂_t, the bias's Σ_t g_t."""

    def needs_input(self, trainable: Collection[str]) -> bool:
        return "weight" in trainable

    @abc.abstractmethod
    def shape(self, module: Any) -> tuple[int, ...]:
        """The axes that are normalised over."""

    @abc.abstractmethod
    def normalised(self, module: Any, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """A new tensor with x̂ as the layer computes it, in float32 at least."""

    def gradients(
        self, module: Any, inputs: Recorded | None, output_grads: Recorded, trainable: Collection[str]
    ) -> dict[str, FactoredGradient]:
        width = math.prod(self.shape(module))
        grads = output_grads
        if len(self.shape(module)) > 1:
            grads = Recorded(output_grads.tensor.reshape(output_grads.batch_size, -1, width))
        result: dict[str, FactoredGradient] = {}
        if "bias" in trainable:
            result["bias"] = DenseGradient.from_positions(grads)
        if "weight" in trainable:
            assert inputs is not None
            dtype = wide_dtype(grads.dtype, inputs.dtype)
            normalised = self.normalised(module, inputs.tensor, dtype).reshape(grads.batch_size, -1, width)
            result["weight"] = DenseGradient(normalised.mul_(grads.positions).sum(dim=1))
        return result


@final
class LayerNormRule(_NormalisationRule):
    """x̂ = (x − mean)/√(variance + ε)."""

    def shape(self, module: nn.LayerNorm) -> tuple[int, ...]:
        return tuple(module.normalized_shape)

    def normalised(self, module: nn.LayerNorm, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        return nn.functional.layer_norm(inputs.to(dtype), self.shape(module), eps=module.eps)


@final
class RMSNormRule(_NormalisationRule):
    """torch's x̂ = x/√(mean x² + ε)."""

    names = ("weight",)

    def shape(self, module: nn.RMSNorm) -> tuple[int, ...]:
        return tuple(module.normalized_shape)

    def normalised(self, module: nn.RMSNorm, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        eps = torch.finfo(inputs.dtype).eps if module.eps is None else module.eps  # of the input's dtype, as torch
        return nn.functional.rms_norm(inputs.to(dtype), self.shape(module), eps=eps)


@final
class LlamaRMSNormRule(_NormalisationRule):
    """Llama's x̂ = x/√(mean x² + ε), made in float32 whatever the input, then brought to the input's dtype."""

    names = ("weight",)

    def shape(self, module: Any) -> tuple[int, ...]:
        return tuple(module.weight.shape)

    def normalised(self, module: Any, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        single = inputs.to(torch.float32)
        variance = single.pow(2).mean(-1, keepdim=True)
        return (single * torch.rsqrt(variance + module.variance_epsilon)).to(inputs.dtype).to(dtype)


_TRANSFORMERS = "transformers.models"
_SCALED_EMBEDDINGS = (
    "bart.modeling_bart.BartScaledWordEmbedding",
    "mbart.modeling_mbart.MBartScaledWordEmbedding",
    "biogpt.modeling_biogpt.BioGptScaledWordEmbedding",
    "gemma.modeling_gemma.GemmaTextScaledWordEmbedding",
    "gemma2.modeling_gemma2.Gemma2TextScaledWordEmbedding",
    "gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding",
)
_LLAMA_NORMS = (
    "llama.modeling_llama.LlamaRMSNorm",
    "mistral.modeling_mistral.MistralRMSNorm",
    "qwen2.modeling_qwen2.Qwen2RMSNorm",
    "qwen3.modeling_qwen3.Qwen3RMSNorm",
)

LAYER_RULES: Rules = types.MappingProxyType(
    {
        nn.Linear: LinearRule(),
        nn.Embedding: EmbeddingRule(),
        nn.LayerNorm: LayerNormRule(),
        nn.RMSNorm: RMSNormRule(),
        "transformers.pytorch_utils.Conv1D": Conv1DRule(),
        **{f"{_TRANSFORMERS}.{name}": LlamaRMSNormRule() for name in _LLAMA_NORMS},
        **{f"{_TRANSFORMERS}.{name}": EmbeddingRule(scaled=True) for name in _SCALED_EMBEDDINGS},
    }
)
"""The layer types that can be trained. Read-only: pass an extended copy instead of changing it. LoRA adapters of peft
are made of `nn.Linear` and need no rule of their own."""


def find_rule(module: nn.Module, rules: Rules) -> LayerRule | None:
    """The rule of the module's type, or of a base class whose `forward` it has not changed; None if there is none.

    A subclass with a `forward` of its own computes something else, so the rule of its base class may be wrong for it.
    """
    if "forward" in vars(module):  # replaced on the instance
        return None
    for base in type(module).__mro__:
        rule = rules.get(base) or rules.get(f"{base.__module__}.{base.__qualname__}")
        if rule is not None:
            return rule if type(module).forward is base.forward else None
    return None


def rule_names(rules: Rules) -> list[str]:
    """The types that have a rule, for messages."""
    return [key.rpartition(".")[2] if isinstance(key, str) else key.__name__ for key in rules]
