"""Per-example gradients of a module without a rule: its forward is run again for each example, under `torch.func.vmap`.

For parameters that a module's own forward uses directly. Exact, and as dear as one forward and backward pass of the
module with every example's gradient held; a rule is cheaper. The second run must reproduce the first: what draws random
numbers, keeps a state or mixes the examples inside is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .factored import DenseGradient, FactoredGradient, ranges
from .recorded import at_least_float32
from .support import TrainableLayer
from .taps import Call, Kept, Listener, wrong_batch_axis

_TOLERANCE = 2**14  # roundoffs between two runs of a module


class _Gate(torch.autograd.Function):
    """Lets all outputs of a module pass and catches their gradients together."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, receive: Callable[[list[Tensor]], None], *outputs: Tensor) -> Any:
        ctx.receive = receive
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.receive([grad.detach() for grad in grads])
        return None, None, *grads


@final
class FallbackCall(Call):
    """A call of a module whose parameters have no rule."""

    def __init__(
        self, layer: TrainableLayer, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]
    ) -> None:
        super().__init__(layer, [tuple(output.shape) for output in outputs])
        leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self._others = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        self._kept = Kept(*(leaf for leaf in leaves if isinstance(leaf, Tensor)))
        self._prints = [_fingerprint(output.detach()) for output in outputs]
        device = outputs[0].device.type
        self._autocast = {"enabled": torch.is_autocast_enabled(device), "dtype": torch.get_autocast_dtype(device)}

    def gradients(self, listener: Listener, output_grads: list[Tensor]) -> Mapping[str, FactoredGradient]:
        tensors, batch_size = self._kept.take(), listener.batch_size
        parameters = {name: parameter.detach() for name, parameter in self.layer.parameters.items()}
        mapped = [tensor.dim() > 0 and tensor.shape[0] == batch_size for tensor in tensors]
        pairing = torch.func.grad(functools.partial(self._pairing, mapped=mapped), has_aux=True)
        dims = (None, 0, *(0 if each else None for each in mapped))
        run = torch.func.vmap(pairing, in_dims=dims, randomness="error")
        pieces: list[dict[str, Tensor]] = []
        listener.suspended = True
        try:
            for start, stop in ranges(batch_size, sum(parameter.numel() for parameter in parameters.values())):
                inputs = [t[start:stop] if each else t for t, each in zip(tensors, mapped, strict=True)]
                with torch.autocast(output_grads[0].device.type, **self._autocast):
                    gradients, outputs = run(parameters, [grad[start:stop] for grad in output_grads], *inputs)
                self._check_same(outputs, slice(start, stop))
                pieces.append(gradients)
        except RuntimeError as error:
            raise ValueError(
                f"torch.func.vmap cannot run {type(self.layer.module).__name__} for each example "
                f"({str(error).splitlines()[0]}); freeze it, or register a rule"
            ) from error
        finally:
            listener.suspended = False
        return {
            name: DenseGradient(at_least_float32(torch.cat([piece[name] for piece in pieces]))) for name in parameters
        }

    def _pairing(
        self, parameters: dict[str, Tensor], grads: list[Tensor], *tensors: Tensor, mapped: list[bool]
    ) -> tuple[Tensor, list[Tensor]]:
        """⟨outputs, output gradients⟩ of one example, whose gradient is wanted, and the outputs."""
        batch_of_one = iter([t[None] if each else t for t, each in zip(tensors, mapped, strict=True)])
        others = iter(self._others)
        leaves = [next(batch_of_one) if is_tensor else next(others) for is_tensor in self._is_tensor]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        result = torch.func.functional_call(self.layer.module, parameters, args, kwargs)
        outputs = [leaf[0] for leaf in pytree.tree_leaves(result) if is_differentiable(leaf)]
        total = torch.stack([(output * grad).sum() for output, grad in zip(outputs, grads, strict=True)]).sum()
        return total, [output.detach() for output in outputs]

    def _check_same(self, outputs: list[Tensor], span: slice) -> None:
        for found, (wanted, scale) in zip(outputs, self._prints, strict=True):
            value, _ = _fingerprint(found)
            error = (value - wanted[span]).abs()
            unit = torch.finfo(found.dtype).eps
            if bool((error > _TOLERANCE * unit * scale[span] + torch.finfo(found.dtype).tiny).any()):
                raise ValueError(
                    f"run again for each example, {type(self.layer.module).__name__} gives something else: it mixes "
                    "examples, draws random numbers or keeps a state; freeze it, or register a rule"
                )


def is_differentiable(leaf: Any) -> bool:
    """Whether an output may carry a gradient."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def tap_fallback(
    layer: TrainableLayer, listener: Listener, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """The module's output, through a gate that catches its gradients."""
    leaves, spec = pytree.tree_flatten(output)
    places = [place for place, leaf in enumerate(leaves) if is_differentiable(leaf)]
    if not places:
        raise ValueError(f"{layer.label}: expected an output with a tensor of floats, got {type(output).__name__}")
    has_data = any(is_differentiable(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
    outputs = [_per_example(layer, leaves[place], listener.batch_size, has_data) for place in places]
    call = FallbackCall(layer, args, kwargs, outputs)
    anchor = torch.zeros((), requires_grad=True)
    gated = _Gate.apply(anchor, lambda grads: listener.arrived(call, grads), *outputs)
    listener.called(call)
    for place, tensor in zip(places, gated, strict=True):
        leaves[place] = tensor
    return pytree.tree_unflatten(leaves, spec)


def _per_example(layer: TrainableLayer, output: Tensor, batch_size: int, has_data: bool) -> Tensor:
    """The output with the batch first; one row that no data went into is shared by all examples."""
    if any(output is parameter for parameter in layer.parameters.values()):
        output = output.detach()  # returned as it is: autograd must not reach it past the gate
    if output.dim() and output.shape[0] == batch_size:
        return output
    if has_data or output.dim() < 2 or output.shape[0] != 1:
        raise ValueError(wrong_batch_axis(layer, output, batch_size))
    return output.expand(batch_size, *output.shape[1:])


def _fingerprint(output: Tensor) -> tuple[Tensor, Tensor]:
    """A number for each example that tells outputs (B, …) apart, and the size of its terms: float64 (B,), (B,)."""
    flat = output.flatten(1).double() if output.dim() > 1 else output.double()[:, None]
    waves = torch.cos(torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64))
    return flat @ waves, flat.abs().sum(dim=1)
