"""Which part of a model is trained: everything, the head, the biases, low-rank adapters, the last layers."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, final

import pydantic
import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from .architectures import Architecture, architecture_of, head_parameters, unwrapped

Trained = Literal["full", "head", "bitfit", "lora", "last_layers"]
TRAINED: tuple[Trained, ...] = ("full", "head", "bitfit", "lora", "last_layers")


@final
class LoraSettings(pydantic.BaseModel):
    """Low-rank adapters (Hu et al., arXiv 2106.09685): W + (alpha / rank)·B·A with only A and B trained."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: tuple[str, ...] | None = None
    """Ends of the names of the modules that get an adapter; None: queries and values."""

    @pydantic.model_validator(mode="after")
    def _some_target(self) -> Self:
        if self.targets == ():
            raise ValueError("give at least one target, or leave targets out")
        return self


def choose_trainable(
    model: nn.Module, what: Trained, *, layers: int | None = None, lora: LoraSettings | None = None
) -> nn.Module:
    """Set requires_grad so that only the chosen part is trained; returns the model, wrapped by peft for `lora`.

    A new classification head is trained in every case. A head that is tied to the input embeddings is trained with
    them in `full` alone.

    Args:
        model: one of the classes in `ARCHITECTURES`.
        what: `full`; `head`: the head's own parameters alone; `bitfit`: every bias, of the last `layers` layers if
            given (arXiv 2106.10199); `lora`: adapters; `last_layers`: the last `layers` layers and what is above.
        layers: how many of the last layers.
        lora: settings of the adapters.

    Raises:
        ValueError: an unsupported model (those supported are named), a part that it has not, bad settings.
    """
    architecture = architecture_of(model)
    _check_settings(model, what, layers, lora)
    name = type(model).__name__
    head = head_parameters(model, architecture)
    if what == "lora":
        return _with_adapters(model, architecture, lora or LoraSettings())
    chosen = {
        "full": lambda: list(model.parameters()),
        "head": lambda: _own_head(name, head),
        "bitfit": lambda: _biases(model, name, architecture, layers) + (head if architecture.new_head else []),
        "last_layers": lambda: _upper_part(model, architecture, layers or 1) + head,
    }[what]()
    model.requires_grad_(False)
    for parameter in chosen:
        parameter.requires_grad_(True)
    return model


def count_trainable(model: nn.Module) -> int:
    """The number of trainable parameters, shared ones once: the dimension of one release."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def freeze_unused(model: nn.Module, losses: Callable[[], Tensor]) -> list[str]:
    """Freeze the trainable parameters that the losses do not depend on, which would receive noise alone.

    `losses` computes losses (B,) on *public* or made-up data. Returns the names that were frozen.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(losses().sum(), [parameter for _, parameter in named], allow_unused=True)
    unused = [entry for entry, gradient in zip(named, gradients, strict=True) if gradient is None]
    for _, parameter in unused:
        parameter.requires_grad_(False)
    return [name for name, _ in unused]


def _check_settings(model: nn.Module, what: str, layers: int | None, lora: LoraSettings | None) -> None:
    if what not in TRAINED:
        raise ValueError(f"expected what to be one of {', '.join(TRAINED)}, got {what=}")
    if hasattr(model, "peft_config"):
        raise ValueError("the model has adapters already; choose what is trained before wrapping it")
    if lora is not None and what != "lora":
        raise ValueError(f"leave lora out with {what=}")
    if what == "last_layers" and layers is None:
        raise ValueError("give layers with what='last_layers'")
    if layers is not None and what not in ("last_layers", "bitfit"):
        raise ValueError(f"leave layers out with {what=}, got {layers=}")
    if layers is not None:
        count = len(_layer_list(model))
        if not 1 <= layers <= count:
            raise ValueError(f"expected 1 <= layers <= {count}, the layers of the model, got {layers=}")


def _layer_list(model: nn.Module) -> nn.ModuleList:
    found = unwrapped(model).get_submodule(architecture_of(model).layers)
    assert isinstance(found, nn.ModuleList)
    return found


def _own_head(name: str, head: list[nn.Parameter]) -> list[nn.Parameter]:
    if not head:
        raise ValueError(
            f"{name} has no head of its own: it is tied to the input embeddings; train lora, bitfit, last_layers or "
            "full instead of head"
        )
    return head


def _biases(model: nn.Module, name: str, architecture: Architecture, layers: int | None) -> list[nn.Parameter]:
    parts: Iterable[nn.Module] = [unwrapped(model)] if layers is None else _layer_list(model)[-layers:]
    found = [p for part in parts for key, p in part.named_parameters() if key.rsplit(".", 1)[-1] == "bias"]
    in_head = {id(parameter) for parameter in head_parameters(model, architecture)}
    if not any(id(parameter) not in in_head for parameter in found):
        raise ValueError(f"{name} has no biases, which bitfit trains; train lora, last_layers or full instead")
    return found


def _upper_part(model: nn.Module, architecture: Architecture, layers: int) -> list[nn.Parameter]:
    inner = unwrapped(model)
    modules = [*_layer_list(model)[-layers:], *(inner.get_submodule(path) for path in architecture.above)]
    return [parameter for module in modules for parameter in module.parameters()]


def _with_adapters(model: Any, architecture: Architecture, settings: LoraSettings) -> nn.Module:
    if importlib.util.find_spec("peft") is None:
        raise ValueError("what='lora' needs the package peft; run: pip install 'optnoise[lora]'")
    import peft

    targets = list(settings.targets or architecture.adapter_targets)
    ends = {name for name, _ in model.named_modules()}
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in ends):
            raise ValueError(f"{type(model).__name__} has no module named {target!r} for an adapter, got {targets=}")
    tasks = {"causal_lm": "CAUSAL_LM", "encoder_head": "SEQ_CLS", "causal_head": "SEQ_CLS"}
    config = peft.LoraConfig(
        task_type=tasks.get(architecture.kind),
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # only divided by the rank
        lora_dropout=settings.dropout,
        target_modules=targets,
        modules_to_save=[path.rsplit(".", 1)[-1] for path in architecture.head] if architecture.new_head else None,
        fan_in_fan_out=architecture.transposed,
    )
    with warnings.catch_warnings():  # peft reads an attribute that transformers has deprecated
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(model, config)
