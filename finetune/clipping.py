"""Ghost clipping with book-keeping: one forward and one backward pass, no large gradient of one example is built.

Inside `GhostClipping.record` each trainable layer's parameters do not require a gradient while the layer runs, so
autograd computes no weight-gradient product. A hook keeps the layer's input a; a hook on its output receives the output
gradient g. From these come all per-example norms, then the clip factors, then one weighted product per layer in place
of the gradient that autograd was not asked for (arXiv 2110.05679, 2210.00038). Outside `record` no hook exists.

B: examples of one microbatch. The clipping norm C bounds the L2 norm of one example's whole gradient.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .clipped_sum import ClippedSum
from .diagnostics import NonPrivateDiagnostics, NormLog
from .fallback import tap_fallback
from .layer_rules import LAYER_RULES, Rules
from .lockstep import FREE, Lockstep
from .modes import ClippingMode, Flat, sensitivity
from .recorded import wide_dtype
from .recording import Recording
from .support import trainable_layers, trainable_parameters
from .taps import attach, tap_rule

_LOG = logging.getLogger(__name__)
_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)


@final
class GhostClipping:
    """Per-example clipping for one model. Accumulates into `clipped_sum` until that is taken by `take`.

    Args:
        model: its parameters with requires_grad=True now are trained; a change of this set later is refused by
            `check_unchanged`. A model compiled by `torch.compile` runs eagerly inside `record`: its hooks must run.
        clipping_norm: C > 0, or a mode: `Flat`, `Automatic`, `PerLayer`, `GroupWise`.
        rules: layer rules; `LAYER_RULES` extended by your own.
        fallback: whether a module without a rule may have its per-example gradients computed by `torch.func.vmap`,
            exactly but at a high price. A notice in the log names these modules.
        diagnostics: collect norms for `non_private_diagnostics`. Not private: only for public data.
        lockstep: the processes that hold the model in pieces, and so make each pass together; `make_private` finds it.

    Raises:
        UnsupportedModelError: names every module that cannot be trained.
        ValueError: nothing is trainable, or a bad clipping norm.
    """

    def __init__(
        self,
        model: nn.Module,
        clipping_norm: float | ClippingMode,
        *,
        rules: Rules = LAYER_RULES,
        fallback: bool = True,
        diagnostics: bool = False,
        lockstep: Lockstep = FREE,
    ) -> None:
        self.model = _uncompiled(model)
        self.mode = clipping_norm if isinstance(clipping_norm, ClippingMode) else Flat(clipping_norm)
        self.lockstep = lockstep
        self.layers = trainable_layers(self.model, rules, fallback=fallback)
        self.parameters = trainable_parameters(self.model)
        self.groups = self.mode.groups({name: parameter.numel() for name, parameter in self.parameters.items()})
        self.probed: set[tuple[str, bool, bool, bool]] = set()  # layers probed for mixed examples, see Recording
        self.in_backward = False
        self.norm_log = NormLog() if diagnostics else None
        self._versions = {name: parameter._version for name, parameter in self.parameters.items()}
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.clipped_sum = self.new_sum()
        self._recording: Recording | None = None
        if unruled := [f"{layer.label} ({type(layer.module).__name__})" for layer in self.layers if not layer.rule]:
            _LOG.warning(
                "no clipping rule for %s: each example's gradient is computed by torch.func.vmap, exactly but slowly",
                ", ".join(unruled),
            )

    @property
    def clipping_norm(self) -> float:
        """C = √(Σ C_k²), the L2 bound on what one example adds to the clipped sum."""
        return sensitivity(self.groups)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """What multiplies the mechanism's noise, by parameter: C, or the group's own scale."""
        return {name: group.noise_scale for group in self.groups for name in group.names}

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest dtype in which a clipped sum is made: its roundings decide η."""
        wide = {wide_dtype(parameter.dtype) for parameter in self.parameters.values()}
        return torch.float32 if torch.float32 in wide else torch.float64

    @property
    def dimension(self) -> int:
        """The number of trainable parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def stage(self) -> tuple[bool, bool]:
        """Train or eval mode, and whether a parameter was written to since: in another stage the model may mix
        examples where it did not before (mixup in train mode, a gate that starts at zero)."""
        moved = any(parameter._version != self._versions[name] for name, parameter in self.parameters.items())
        return self.model.training, moved

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

    def new_sum(self) -> ClippedSum:
        """An empty sum for these parameters."""
        return ClippedSum(self.parameters)

    def take(self) -> ClippedSum:
        """The sum so far; a new one is begun."""
        taken, self.clipped_sum = self.clipped_sum, self.new_sum()
        return taken

    def non_private_diagnostics(self, levels: tuple[float, ...] = _LEVELS) -> NonPrivateDiagnostics:
        """Clipped fraction and norm quantiles since the last call. *Not private*: released without noise.

        Raises RuntimeError unless built with diagnostics=True.
        """
        if self.norm_log is None:
            raise RuntimeError("diagnostics are off, since they are not private; on public data, pass diagnostics=True")
        return self.norm_log.take(levels)

    @contextlib.contextmanager
    def record(self, batch_size: int, *, counts: bool = True) -> Iterator[Recording]:
        """Record the forward pass of `batch_size` examples; call `backward(losses)` on the result inside the block.

        The first axis of every tensor that reaches a trainable layer is the batch; size 1 there is broadcast to
        all examples (position ids of shape (1, T)). Raises ValueError naming the layer otherwise. Without `counts` all
        is done as ever, and nothing is added to the sum.
        """
        if batch_size < 1:
            raise ValueError(f"expected batch_size >= 1, got {batch_size=}; an empty logical batch needs no record()")
        if self._recording is not None:
            raise RuntimeError("record() is already open; close it before the next microbatch")
        self.check_unchanged()
        self._recording = recording = Recording(self, batch_size, counts=counts)
        handles: list[RemovableHandle] = []
        versions = {name: (buffer, buffer._version) for name, buffer in self.model.named_buffers()}
        try:
            for layer in self.layers:
                handles += attach(layer, recording, tap_rule if layer.rule else tap_fallback)
            with _eager():
                yield recording
            if not recording.done:
                raise RuntimeError("record() ended without backward(losses): these examples would be lost")
            _check_buffers(versions, dict(self.model.named_buffers()))
            if counts:
                recording.add_to(self.clipped_sum)  # only now: a block that failed leaves nothing behind
        except BaseException:
            self.lockstep.recover()
            raise
        finally:
            for handle in handles:
                handle.remove()
            for parameter in self.parameters.values():
                parameter.requires_grad_(True)
            recording.close()
            self._recording = None

    def run_backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Back-propagate; refuse parameters that autograd reached past their layer.

        A parameter requires a gradient everywhere but inside its own layer, so one that receives a gradient here was
        used elsewhere, where no rule sees it.
        """
        before = {name: parameter.grad for name, parameter in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        self.in_backward = True
        try:
            with torch.autocast(loss.device.type, enabled=False):
                loss.backward(retain_graph=retain_graph)
            outside = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        finally:
            self.in_backward = False
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


def _uncompiled(model: nn.Module) -> nn.Module:
    """The module behind `torch.compile`: its parameter names have no prefix."""
    original = getattr(model, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else model


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Compiled code does not see hooks that came after it: it is not used here. (Nothing was compiled: no change.)"""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


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
