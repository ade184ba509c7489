"""Ghost clipping with book-keeping: one forward and one backward pass, no per-example gradient is built.

Inside `GhostClipping.record` each trainable layer's parameters do not require a gradient while the layer runs, so
autograd computes no weight-gradient product. A hook keeps the layer's input a; a hook on its output receives the output
gradient g. From these come all per-example norms, then the clip factors, then one weighted product per layer in place
of the gradient that autograd was not asked for (arXiv 2110.05679, 2210.00038). Outside `record` no hook exists.

B: examples of one microbatch. The clipping norm C bounds the L2 norm of one example's whole gradient.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .factored import FactoredGradient, squared_norm, squared_norm_error, sum_error
from .layer_rules import LAYER_RULES, LayerRule
from .noise import ClippedSum
from .support import TrainableLayer, trainable_layers, trainable_parameters

_FACTOR_ROUNDOFFS = 32  # roundings between a norm bound and a clipped term, generously counted


def rounding_margin(dtype: torch.dtype) -> float:
    """η: gradients are clipped to C/(1+η), so that the roundings of the square root, of the division and of the
    product with the clip factor cannot lift a contribution above C. The error of the norm itself is bounded apart,
    by `squared_norm_error`.
    """
    return _FACTOR_ROUNDOFFS * torch.finfo(dtype).eps


def clip_factors(norm_bounds: Tensor, clipping_norm: float) -> Tensor:
    """min(1, C/(1+η)/norm) for norms (B,); 0 where the norm is not finite, 1 where it is 0."""
    limit = clipping_norm / (1 + rounding_margin(norm_bounds.dtype))
    factors = (limit / norm_bounds).clamp(max=1.0)
    return torch.where(torch.isfinite(norm_bounds), factors, torch.zeros_like(factors))


@dataclasses.dataclass
class _Call:
    """One call of a trainable layer: what the rule needs, filled in by the forward and then by the backward pass."""

    layer: TrainableLayer
    inputs: Tensor | None
    inputs_version: int
    output_grads: Tensor | None = None
    output_shape: tuple[int, ...] = ()

    def is_square(self, batch_size: int) -> bool:
        """Whether another axis of the output, the last one aside, is as long as the batch."""
        return batch_size in self.output_shape[1:-1]

    def reaches_other_examples(self) -> bool:
        """Whether any example but the first got a gradient."""
        return self.output_grads is not None and bool((self.output_grads[1:].nan_to_num() != 0).any())

    def gradients(self) -> dict[str, FactoredGradient]:
        """By local parameter name. Raises ValueError naming the layer if its input has been overwritten since."""
        assert self.output_grads is not None
        if self.inputs is not None and self.inputs._version != self.inputs_version:
            raise ValueError(
                f"the input of {self.layer.label} was changed in place after its forward; use the out-of-place form"
            )
        try:
            return self.layer.rule.gradients(
                self.layer.module, self.inputs, self.output_grads, self.layer.parameters.keys()
            )
        except ValueError as error:
            raise ValueError(f"{self.layer.label}: {error}") from error


@final
class Recording:
    """One microbatch between its forward and its backward pass; `GhostClipping.record` yields it.

    After `backward`, `per_example_norms` (B,) holds the gradient norms. They are *private data* without any noise: for
    tests and diagnostics, never to be logged or to decide anything in a private run.
    """

    def __init__(self, clipping: GhostClipping, batch_size: int) -> None:
        self._clipping = clipping
        self.batch_size = batch_size
        self.calls: list[_Call] = []
        self.done = False
        self.closed = False
        self.clipped: tuple[dict[str, list[FactoredGradient]], Tensor] | None = None
        self.per_example_norms: Tensor | None = None

    def backward(self, losses: Tensor) -> None:
        """Back-propagate, clip each example's gradient to C and add the clipped gradients to the running sum.

        `losses` has shape (B,): one loss per example, each a function of that example alone. A token-level loss is
        first reduced over the example's own valid tokens. Raises ValueError for any other shape.
        """
        if self.done or self.closed:
            raise RuntimeError("backward(losses) goes once into each record(), inside it; open one per microbatch")
        self._clipping.check_unchanged()
        self._check_losses(losses)
        self.done = True
        with torch.autocast(losses.device.type, enabled=False):  # half precision would void every rounding bound
            self._clipping._refuse_mixed_examples(self, losses)
            self._clipping._backward(losses.sum())
            self._clip()

    def _clip(self) -> None:
        """Norms and clip factors from what the backward pass left in the calls."""
        gradients = self._by_parameter()
        if not gradients:
            self.per_example_norms = torch.zeros(self.batch_size)
            self.clipped = {}, self.per_example_norms
            return
        squares = {name: squared_norm(parts) for name, parts in gradients.items()}
        errors = {name: squared_norm_error(parts) for name, parts in gradients.items()}
        total, error = _total(squares), _total(errors)
        self.per_example_norms = total.clamp(min=0).sqrt()  # NaN stays NaN
        realised = _total({name: sum_error(parts) for name, parts in gradients.items()})
        bounds = (total.clamp(min=0) + error).sqrt() + realised.to(total.dtype)
        finite = torch.isfinite(bounds)
        if not bool(finite.all()):  # such an example contributes exactly zero
            gradients = {name: [part.keep(finite) for part in parts] for name, parts in gradients.items()}
        self.clipped = gradients, clip_factors(bounds, self._clipping.clipping_norm)

    def _check_losses(self, losses: Tensor) -> None:
        shape = tuple(losses.shape)
        if shape != (self.batch_size,):
            raise ValueError(
                f"expected one loss per example, shape ({self.batch_size},), got shape {shape}: private training clips "
                "each example's own gradient; use reduction='none' and average over an example's own tokens only "
                "(Poisson batches vary in size: take it from the batch, not from a setting)"
            )
        if not losses.requires_grad:
            raise ValueError("expected losses that depend on trainable parameters, got losses without a gradient")

    def _by_parameter(self) -> dict[str, list[FactoredGradient]]:
        """The factored gradients of each parameter, one per call that used it and reached the losses."""
        gradients: dict[str, list[FactoredGradient]] = {}
        for call in self.calls:
            if call.output_grads is None:  # the output did not reach the losses
                continue
            for local_name, part in call.gradients().items():
                name = self._clipping.name_of(call.layer.parameters[local_name])
                gradients.setdefault(name, []).append(part.without_underflow())
        self.calls.clear()
        return gradients


@final
class GhostClipping:
    """Per-example clipping for one model. Accumulates into `clipped_sum` until that is taken by `take`.

    Raises `UnsupportedModelError` naming every module that cannot be trained. The trainable parameters are those with
    requires_grad=True now; a change of this set later is refused by `check_unchanged`.
    """

    def __init__(
        self,
        model: nn.Module,
        clipping_norm: float,
        *,
        rules: Mapping[type[nn.Module], LayerRule] = LAYER_RULES,
    ) -> None:
        self.model = model
        self.clipping_norm = clipping_norm
        self.layers = trainable_layers(model, rules)
        self.parameters = trainable_parameters(model)
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.clipped_sum = ClippedSum(self.parameters)
        self._recording: Recording | None = None
        self._probed: set[bool] = set()

    @property
    def dimension(self) -> int:
        """The number of trainable parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    def name_of(self, parameter: nn.Parameter) -> str:
        """The plain name of a trainable parameter."""
        return self._names[id(parameter)]

    def check_unchanged(self) -> None:
        """Raise RuntimeError if the model's trainable parameters are no longer those that were checked."""
        now = trainable_parameters(self.model)
        changed = {n for n, p in now.items() if id(p) not in self._names} | {
            n for n, p in self.parameters.items() if not p.requires_grad or now.get(n) is not p
        }
        if changed:
            raise RuntimeError(
                f"the trainable parameters changed since make_private: {', '.join(sorted(changed))}; "
                "freeze, add and move parameters before, or detach() and make the model private again"
            )

    def take(self) -> ClippedSum:
        """The sum so far; a new one is begun."""
        taken, self.clipped_sum = self.clipped_sum, ClippedSum(self.parameters)
        return taken

    @contextlib.contextmanager
    def record(self, batch_size: int) -> Iterator[Recording]:
        """Record the forward pass of `batch_size` examples; call `backward(losses)` on the result inside the block.

        The first axis of every tensor that reaches a trainable layer is the batch; size 1 there is broadcast to
        all examples (position ids of shape (1, T)). Raises ValueError naming the layer otherwise.
        """
        if batch_size < 1:
            raise ValueError(f"expected batch_size >= 1, got {batch_size=}; an empty logical batch needs no record()")
        if self._recording is not None:
            raise RuntimeError("record() is already open; close it before the next microbatch")
        self.check_unchanged()
        self._recording = recording = Recording(self, batch_size)
        handles: list[RemovableHandle] = []
        versions = {name: (buffer, buffer._version) for name, buffer in self.model.named_buffers()}
        try:
            for layer in self.layers:
                handles += self._attach(layer, recording)
            yield recording
            if recording.clipped is None:
                raise RuntimeError("record() ended without backward(losses): these examples would be lost")
            _check_buffers(versions, dict(self.model.named_buffers()))
            self.clipped_sum.add(*recording.clipped)  # only now: a block that failed leaves nothing behind
        finally:
            for handle in handles:
                handle.remove()
            for parameter in self.parameters.values():
                parameter.requires_grad_(True)
            recording.calls.clear()
            recording.clipped, recording.closed = None, True
            self._recording = None

    def _attach(self, layer: TrainableLayer, recording: Recording) -> list[RemovableHandle]:
        """Hooks around one layer: its parameters require no gradient while it runs, its call is recorded."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for parameter in layer.parameters.values():
                parameter.requires_grad_(False)

        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
            for parameter in layer.parameters.values():
                parameter.requires_grad_(True)
            if not isinstance(output, Tensor) or not torch.is_grad_enabled():
                return None
            return _record_call(layer, recording, args[0] if args else kwargs["input"], output)

        return [
            layer.module.register_forward_pre_hook(before, with_kwargs=True),
            # Before any hook of the user's: the rule belongs to the layer's own output.
            layer.module.register_forward_hook(after, with_kwargs=True, always_call=True, prepend=True),
        ]

    def _refuse_mixed_examples(self, recording: Recording, losses: Tensor) -> None:
        """Back-propagate one example's loss alone: no other example may get a gradient at any layer.

        Done for the first microbatch of two or more, and once more for the first in which another axis is as long as
        the batch (there a layout with the batch elsewhere passes every check of shapes).
        """
        square = any(call.is_square(recording.batch_size) for call in recording.calls)
        if recording.batch_size < 2 or square in self._probed:
            return
        self._probed.add(square)
        count = len(recording.calls)
        self._backward(losses[0], retain_graph=True)
        mixed = sorted({call.layer.label for call in recording.calls if call.reaches_other_examples()})
        del recording.calls[count:]  # what reentrant checkpointing recomputed; it will do so again
        for call in recording.calls:
            call.output_grads = None
        if mixed:
            raise ValueError(
                f"the loss of one example depends on other examples at {', '.join(mixed)}: its contribution cannot be "
                "bounded; put the batch on the first axis everywhere, and mix no examples (batch statistics, "
                "contrastive losses, a mean over the batch)"
            )

    def _backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Back-propagate; refuse parameters that autograd reached past their layer.

        A parameter requires a gradient everywhere but inside its own layer, so one that receives a gradient here was
        used elsewhere, where no rule sees it.
        """
        before = {name: parameter.grad for name, parameter in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        try:
            loss.backward(retain_graph=retain_graph)
            outside = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        finally:
            for name, parameter in self.parameters.items():
                parameter.grad = before[name]
        if outside:
            raise UnsupportedUseError(outside)


class UnsupportedUseError(ValueError):
    """A trainable parameter was used outside the forward of its own layer, where its gradient cannot be clipped."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"trainable parameters used outside their layer's forward: {', '.join(names)}; "
            "call the layer itself, or freeze them"
        )


def _record_call(layer: TrainableLayer, recording: Recording, inputs: Tensor, output: Tensor) -> Tensor | None:
    """Keep what the rule needs and catch the output's gradient. Returns the output to use instead, if another."""
    call = _Call(layer, inputs.detach() if layer.rule.needs_input(layer.parameters.keys()) else None, inputs._version)
    result = output
    if not result.requires_grad:  # nothing trainable below: let the gradient reach this output
        result = result.detach().requires_grad_(True).clone()  # a clone may be changed in place, a leaf may not
    if result.shape[0] != recording.batch_size:
        result = _one_per_example(layer, inputs, result, recording.batch_size)
        if call.inputs is not None:
            call.inputs = call.inputs.expand(recording.batch_size, *call.inputs.shape[1:])
    result, source = _hookable(result)
    shape = result.shape
    call.output_shape = tuple(shape)

    def catch(gradient: Tensor) -> None:
        call.output_grads = gradient.detach().reshape(shape)

    source.register_hook(catch)
    recording.calls.append(call)
    return None if result is output else result


def _one_per_example(layer: TrainableLayer, inputs: Tensor, output: Tensor, batch_size: int) -> Tensor:
    """Broadcast what all examples share, so that each gets its own gradient; refuse any other size.

    Only integer inputs (position ids) can be shared: a tensor of floats with one row may hold the data of many.
    """
    if output.shape[0] != 1 or output.dim() < 2 or inputs.is_floating_point():
        raise ValueError(
            f"{layer.label}: expected an output with the {batch_size} examples on the first axis (or 1, for ids that "
            "all examples share), got "
            f"shape {tuple(output.shape)}; do not flatten examples and positions into one axis before a layer, and "
            "take the batch size from the microbatch (Poisson batches vary in size)"
        )
    return output.expand(batch_size, *output.shape[1:]).clone()


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


def _check_buffers(versions: Mapping[str, tuple[Tensor, int]], now: Mapping[str, Tensor]) -> None:
    kept = {
        name for name, (buffer, version) in versions.items() if now.get(name) is buffer and buffer._version == version
    }
    changed = sorted((set(versions) | set(now)) - kept)
    if changed:
        raise ValueError(
            f"the forward pass wrote to the buffers {', '.join(changed)}: they carry data that no noise protects; "
            "turn that off (eval mode, momentum 0) or replace the module"
        )


def _total(values: Mapping[str, Tensor]) -> Tensor:
    """Σ over parameters of (B,) tensors, in the widest dtype among them, on the first one's device."""
    parts = list(values.values())
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    return torch.stack([part.to(parts[0].device, dtype) for part in parts]).sum(dim=0)
