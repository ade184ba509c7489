"""Which parameters of a model are trained, and whether all of them can be: checked once, before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .layer_rules import LayerRule, find_rule

_ROOT = "(the model itself)"


class UnsupportedModelError(ValueError):
    """The model has modules that cannot be trained privately; `faults` lists every one with its reason."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("the model cannot be trained privately as it is:\n" + "\n".join(f"  - {f}" for f in faults))


@dataclasses.dataclass(frozen=True)
class TrainableLayer:
    """A module with trainable parameters of its own: where it sits, its rule, its parameters by local name."""

    name: str
    module: nn.Module
    rule: LayerRule
    parameters: Mapping[str, nn.Parameter]

    @property
    def label(self) -> str:
        """The name for messages."""
        return self.name or _ROOT


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by their plain name; one that is shared stands under its first name only."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def trainable_layers(model: nn.Module, rules: Mapping[type[nn.Module], LayerRule]) -> list[TrainableLayer]:
    """Every module that owns trainable parameters, with its rule.

    Raises `UnsupportedModelError` that lists all modules at fault, `ValueError` if nothing is trainable.
    """
    layers, faults = [], []
    for name, module in model.named_modules():
        own = {key: p for key, p in module.named_parameters(recurse=False, remove_duplicate=False) if p.requires_grad}
        rule = find_rule(module, rules) if own else None
        reason = _mixes_examples(module) or (_cannot_train(module, own, rule, rules) if own else None)
        if reason is not None:
            faults.append(f"{name or _ROOT} ({type(module).__name__}): {reason}")
        elif rule is not None:
            layers.append(TrainableLayer(name, module, rule, own))
    if faults:
        raise UnsupportedModelError(faults)
    if not layers:
        raise ValueError("expected a model with trainable parameters, got none with requires_grad=True")
    return layers


def _mixes_examples(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return "normalises each example with the others of its batch; use LayerNorm or GroupNorm"
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps statistics of the data that no noise protects; build it with track_running_stats=False"
    return None


def _cannot_train(
    module: nn.Module,
    own: Mapping[str, nn.Parameter],
    rule: LayerRule | None,
    rules: Mapping[type[nn.Module], LayerRule],
) -> str | None:
    if rule is None:
        known = ", ".join(layer.__name__ for layer in rules)
        return f"no clipping rule for its trainable {', '.join(own)} (rules: {known}); freeze it or register a rule"
    return rule.refusal(module)
