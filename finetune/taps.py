"""Hooks around the trainable layers, for the time of one `record`: what a layer read, what gradient its output got.

While a layer runs, its parameters do not require a gradient, so autograd computes no weight-gradient product for it.
The input is kept in a node beside the graph, in autograd's own way: version-checked, and recomputed or fetched like
any other saved tensor under activation checkpointing or offloading.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .factored import FactoredGradient
from .recorded import Recorded
from .support import TrainableLayer


class Call(abc.ABC):
    """One call of a trainable layer, between the forward and the backward pass."""

    def __init__(self, layer: TrainableLayer, output_shapes: list[tuple[int, ...]]) -> None:
        self.layer = layer
        self.output_shapes = output_shapes

    def is_square(self, batch_size: int) -> bool:
        """Whether another axis of an output, the last one aside, is as long as the batch."""
        return any(batch_size in shape[1:-1] for shape in self.output_shapes)

    @abc.abstractmethod
    def gradients(self, listener: Listener, output_grads: list[Tensor]) -> Mapping[str, FactoredGradient]:
        """Factored gradients by local parameter name; asked for once. ValueError names what makes it impossible."""


class Listener(Protocol):
    """What receives the calls of one microbatch."""

    batch_size: int
    suspended: bool
    """While True, the hooks let everything pass."""

    def called(self, call: Call) -> None:
        """A layer ran."""

    def ran_without_gradient(self, layer: TrainableLayer) -> None:
        """A layer ran where gradients are switched off."""

    def arrived(self, call: Call, output_grads: list[Tensor]) -> None:
        """The gradients of a call's outputs are complete."""

    def share(self, inputs: Tensor) -> Recorded:
        """The recorded input, the same object for layers that read the same tensor one after another."""
        ...


class _Keep(torch.autograd.Function):
    """A node that saves tensors as autograd does and is part of no backward pass."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("not part of any graph")


@final
class Kept:
    """Tensors saved beside the graph."""

    def __init__(self, *tensors: Tensor) -> None:
        anchor = torch.zeros((), requires_grad=True)
        self._node: Any = _Keep.apply(anchor, *tensors).grad_fn

    def take(self) -> list[Tensor]:
        """The tensors, given out once. Raises ValueError if one was changed in place since."""
        try:
            tensors = self._node.saved_tensors
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            raise ValueError("its input was changed in place after its forward; use the out-of-place form") from error
        self._node = None
        return [tensor.detach() for tensor in tensors]


@final
class LayerCall(Call):
    """A call of a layer that has a rule."""

    def __init__(self, layer: TrainableLayer, inputs: Tensor, output: Tensor) -> None:
        super().__init__(layer, [tuple(output.shape)])
        assert layer.rule is not None
        self._rule = layer.rule
        self._kept = Kept(inputs) if self._rule.needs_input(layer.parameters.keys()) else None

    def gradients(self, listener: Listener, output_grads: list[Tensor]) -> Mapping[str, FactoredGradient]:
        (grads,) = output_grads
        inputs = None
        if self._kept is not None:
            (tensor,) = self._kept.take()
            if tensor.shape[0] != listener.batch_size:  # ids that all examples share
                tensor = tensor.expand(listener.batch_size, *tensor.shape[1:])
            inputs = listener.share(tensor)
        return self._rule.gradients(self.layer.module, inputs, Recorded(grads), self.layer.parameters.keys())


Tap = Callable[[TrainableLayer, Listener, tuple[Any, ...], dict[str, Any], Any], Any]
"""From a layer's call (args, kwargs, output) to the output to use instead, None for the same."""


def attach(layer: TrainableLayer, listener: Listener, tap: Tap) -> list[RemovableHandle]:
    """Hooks around one layer; remove the handles in the end."""

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not listener.suspended:
            layer.require_gradients(False)

    def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if listener.suspended:
            return None
        layer.require_gradients(True)
        if output is None:  # the forward failed
            return None
        if not torch.is_grad_enabled():
            return listener.ran_without_gradient(layer)
        return tap(layer, listener, args, kwargs, output)

    return [
        layer.module.register_forward_pre_hook(before, with_kwargs=True),
        # Before any hook of the user's: the rule belongs to the layer's own output.
        layer.module.register_forward_hook(after, with_kwargs=True, always_call=True, prepend=True),
    ]


def tap_rule(
    layer: TrainableLayer, listener: Listener, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Tensor | None:
    """Keep what the rule needs and catch the output's gradient. Returns the output to use instead, if another."""
    if not isinstance(output, Tensor):
        raise ValueError(f"{layer.label}: expected an output that is a tensor, got {type(output).__name__}")
    inputs: Tensor = args[0] if args else next(iter(kwargs.values()))
    result = _reachable(output)
    if result.shape[0] != listener.batch_size:
        result = _one_per_example(layer, inputs, result, listener.batch_size)
    call = LayerCall(layer, inputs, result)
    result, source = _hookable(result)
    shape = result.shape
    source.register_hook(lambda gradient: listener.arrived(call, [gradient.detach().reshape(shape)]))
    listener.called(call)
    return None if result is output else result


def _reachable(output: Tensor) -> Tensor:
    """The output, or a copy that requires a gradient if nothing below it did.

    Then the first layer's gradient arrives too: the input of an adapter in a frozen model needs none.
    """
    if output.requires_grad:
        return output
    return output.detach().requires_grad_(True).clone()  # a clone may be changed in place, a leaf may not


def _one_per_example(layer: TrainableLayer, inputs: Tensor, output: Tensor, batch_size: int) -> Tensor:
    """Broadcast what all examples share, so that each gets its own gradient; refuse any other size.

    Only integer inputs (position ids) can be shared: a tensor of floats with one row may hold the data of many.
    """
    if output.shape[0] != 1 or output.dim() < 2 or inputs.is_floating_point():
        raise ValueError(wrong_batch_axis(layer, output, batch_size))
    return output.expand(batch_size, *output.shape[1:]).clone()


def wrong_batch_axis(layer: TrainableLayer, output: Tensor, batch_size: int) -> str:
    """What to say of an output whose first axis is not the batch."""
    return (
        f"{layer.label}: expected an output with the {batch_size} examples on the first axis (or 1, for ids that "
        f"all examples share), got shape {tuple(output.shape)}; do not flatten examples and positions into one axis "
        "before a layer, and take the batch size from the microbatch (Poisson batches vary in size)"
    )


def _hookable(output: Tensor) -> tuple[Tensor, Tensor]:
    """The output to use, and the tensor to hook for its gradient.

    A view loses its hooks when it is changed in place (a ReLU with inplace=True after a linear layer on sequences);
    the tensor behind it keeps them, and they get the gradient from before the change.
    """
    if not output._is_view():
        return output, output
    base = output._base
    if base is not None and base.numel() == output.numel() and _is_plain(base, output):
        return output, base
    output = output.clone()
    return output, output


def _is_plain(base: Tensor, view: Tensor) -> bool:
    """Whether the view has the base's elements in the base's order."""
    return base.is_contiguous() and view.is_contiguous() and base.data_ptr() == view.data_ptr()
