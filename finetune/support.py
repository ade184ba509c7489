"""Which parameters of a model are trained, and whether all of them can be: checked once, before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .layer_rules import LayerRule, Rules, find_rule, rule_names

_ROOT = "(the model itself)"
_SECOND_NAMES = {
    "transformers.models.bert.modeling_bert.BertLMPredictionHead": ("bias", "decoder"),
    "transformers.models.roberta.modeling_roberta.RobertaLMHead": ("bias", "decoder"),
}
"""Masked-language heads: the parameter that their forward does not read, and the child that holds it too and does."""


class UnsupportedModelError(ValueError):
    """The model has modules that cannot be trained privately; `faults` lists every one with its reason."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("the model cannot be trained privately as it is:\n" + "\n".join(f"  - {f}" for f in faults))


@dataclasses.dataclass(frozen=True)
class TrainableLayer:
    """A module with trainable parameters of its own: where it sits, its rule, its parameters by local name.

    Without a rule its per-example gradients come from the fallback.
    """

    name: str
    module: nn.Module
    rule: LayerRule | None
    parameters: Mapping[str, nn.Parameter]

    @property
    def label(self) -> str:
        """The name for messages."""
        return self.name or _ROOT

    def require_gradients(self, value: bool) -> None:
        """Set requires_grad of the layer's trainable parameters."""
        for parameter in self.parameters.values():
            parameter.requires_grad_(value)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by their plain name; one that is shared stands under its first name only."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def trainable_layers(model: nn.Module, rules: Rules, *, fallback: bool) -> list[TrainableLayer]:
    """Every module that owns trainable parameters, with its rule, or without one if `fallback` is allowed.

    Raises `UnsupportedModelError` that lists all modules at fault, `ValueError` if nothing is trainable.
    """
    layers: list[TrainableLayer] = []
    loose: dict[str, dict[str, nn.Parameter]] = {}  # of modules without a rule, by the module that uses them
    faults: dict[str, str] = {}
    modules = dict(model.named_modules())
    for name, module in modules.items():
        own = _own_parameters(module)
        rule = find_rule(module, rules) if own else None
        if (reason := _mixes_examples(module)) is not None:
            faults[name] = reason
        elif rule is not None:
            if (reason := _rule_refuses(module, rule, own)) is not None:
                faults[name] = reason
            layers.append(TrainableLayer(name, module, rule, own))
        elif own and not fallback:
            known = ", ".join(rule_names(rules))
            faults[name] = (
                f"no clipping rule for its trainable {', '.join(own)} (rules: {known}); freeze it, register a rule, or "
                "pass fallback=True"
            )
        elif own:
            user = _user(name, modules)
            loose.setdefault(user, {}).update({_relative(user, name, key): p for key, p in own.items()})
    unruled = [TrainableLayer(name, modules[name], None, parameters) for name, parameters in loose.items()]
    faults |= _fallback_faults(unruled, layers)
    if faults:
        raise UnsupportedModelError([f"{n or _ROOT} ({type(modules[n]).__name__}): {r}" for n, r in faults.items()])
    if not layers and not unruled:
        raise ValueError("expected a model with trainable parameters, got none with requires_grad=True")
    return layers + unruled


def _own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters that stand in the module itself, without a second name for one of a child's."""
    own = {key: p for key, p in module.named_parameters(recurse=False, remove_duplicate=False) if p.requires_grad}
    kind = type(module)
    second = _SECOND_NAMES.get(f"{kind.__module__}.{kind.__qualname__}")
    if second is not None and "forward" not in vars(module):
        key, child = second
        if key in own and getattr(getattr(module, child, None), key, None) is own[key]:
            del own[key]
    return own


def _mixes_examples(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return "normalises each example with the others of its batch; use LayerNorm or GroupNorm"
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps statistics of the data that no noise protects; build it with track_running_stats=False"
    return None


def _rule_refuses(module: nn.Module, rule: LayerRule, own: Mapping[str, nn.Parameter]) -> str | None:
    if unknown := sorted(own.keys() - set(rule.names)):
        return f"{type(rule).__name__} does not know its trainable {', '.join(unknown)}; freeze or remove them"
    return rule.refusal(module)


def _user(name: str, modules: Mapping[str, nn.Module]) -> str:
    """The module whose forward uses the parameters of the module `name`: itself, or what stands around a container."""
    while name and type(modules[name]).forward is nn.Module.forward:  # ParameterDict and the like are never called
        name = name.rpartition(".")[0]
    return name


def _relative(user: str, name: str, key: str) -> str:
    path = f"{name}.{key}" if name else key
    return path.removeprefix(f"{user}.") if user else path


def _fallback_faults(unruled: list[TrainableLayer], ruled: list[TrainableLayer]) -> dict[str, str]:
    """A parameter that the fallback replaces for one module must not be used by another."""
    faults = {}
    for layer in unruled:
        mine = {id(parameter): name for name, parameter in layer.parameters.items()}
        shared = {
            f"{mine[id(parameter)]} (also {other.label})"
            for other in [*unruled, *ruled]
            if other is not layer
            for parameter in other.parameters.values()
            if id(parameter) in mine
        }
        if shared:
            faults[layer.name] = (
                f"has no clipping rule, and the fallback cannot share parameters: {', '.join(sorted(shared))}; "
                "freeze them or register a rule"
            )
    return faults
