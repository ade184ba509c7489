"""One microbatch between its forward and its backward pass: norms as gradients arrive, then factors, then sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from .account import Account, norms_and_bounds
from .arithmetic import plain_arithmetic
from .clipped_sum import ClippedSum
from .factored import FactoredGradient
from .modes import Group
from .probe import Probe, bit_splits
from .recorded import Recorded
from .support import TrainableLayer
from .taps import Call

if TYPE_CHECKING:
    from .clipping import GhostClipping


@final
class Recording:
    """One microbatch; `GhostClipping.record` yields it.

    After `backward`, `per_example_norms` (B,) holds the gradient norms. They are *private data* without any noise: for
    tests, never to be logged or to decide anything in a private run. `counts` is False for a microbatch whose result is
    discarded: this process has no examples left, and takes part in the passes of a model in pieces.
    """

    def __init__(self, clipping: GhostClipping, batch_size: int, *, counts: bool) -> None:
        self._clipping = clipping
        self.batch_size = batch_size
        self.counts = counts
        self.per_example_norms: Tensor | None = None
        self.done = self.closed = self._started = False
        self.suspended = False  # the hooks let everything pass: a layer is run again by the fallback
        self._accounts: dict[str, Account] = {}
        self._settled: dict[str, tuple[list[FactoredGradient], Tensor]] = {}
        self._early: ClippedSum | None = None
        self._squares: list[Tensor] = []
        self._expected: Counter[str] = Counter()  # calls of the forward pass, by parameter
        self._ran_without_gradient: set[str] = set()
        self._ran_with_gradient: set[str] = set()
        self._kinds: set[tuple[str, bool]] = set()  # layers that ran, and whether with an axis as long as the batch
        self._stage = clipping.stage
        self._probe: Probe | None = None
        self._last_input: Recorded | None = None

    # ---- what the user calls ------------------------------------------------------------------------------------

    def backward(self, losses: Tensor) -> None:
        """Back-propagate, clip each example's gradient to C; the clipped gradients join the sum when the block ends.

        `losses` has shape (B,): one loss per example, each a function of that example alone. A token-level loss is
        first reduced over the example's own valid tokens. Raises ValueError for any other shape.
        """
        if self._started or self.closed:
            raise RuntimeError("backward(losses) goes once into each record(), inside it; open one per microbatch")
        probes = self._clipping.lockstep.padded(lambda: self._due_probes(losses))
        self._started = True
        self._refuse_mixed_examples(losses, probes)
        self._clipping.run_backward(losses.sum())
        self.done = True
        self._refuse_silent_layers()
        with plain_arithmetic():
            for group in self._clipping.groups:
                self._settle(group)
            self._share_nothing()
            total = torch.stack(self._squares).sum(dim=0) if self._squares else torch.zeros(self.batch_size)
            self.per_example_norms = total.sqrt().to(self._clipping.dtype)

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

    # ---- what the taps call -------------------------------------------------------------------------------------

    def called(self, call: Call) -> None:
        self._ran_with_gradient.add(call.layer.label)
        self._kinds.add((call.layer.label, call.is_square(self.batch_size)))
        if not self._clipping.in_backward:  # else a recomputation of checkpointing
            self._expected.update(self._names(call))

    def ran_without_gradient(self, layer: TrainableLayer) -> None:
        self._ran_without_gradient.add(layer.label)
        self._kinds.add((layer.label, False))

    def arrived(self, call: Call, output_grads: list[Tensor]) -> None:
        if self.closed or not self._clipping.in_backward:
            raise RuntimeError(
                "a backward pass of the user's own reached recorded layers; only recording.backward(losses) may, once"
            )
        if self._probe is not None:
            self._probe.see(call.layer.label, output_grads)
            return
        with plain_arithmetic():
            self._take(call, output_grads)

    def share(self, inputs: Tensor) -> Recorded:
        """Layers that read the same tensor one after another (query, key, value) share what is computed from it."""
        if self._last_input is None or not self._last_input.is_same(inputs):
            self._share_nothing()
            self._last_input = Recorded(inputs)
        return self._last_input

    def _share_nothing(self) -> None:
        if self._last_input is not None:
            self._last_input.forget_gram()
        self._last_input = None

    def _names(self, call: Call) -> list[str]:
        return [self._clipping.name_of(parameter) for parameter in call.layer.parameters.values()]

    def _take(self, call: Call, output_grads: list[Tensor]) -> None:
        """Norms now, while the tensors are at hand; what the clipped sum does not need is free at once."""
        layer = call.layer
        try:
            gradients = call.gradients(self, output_grads)
            if gradients.keys() != layer.parameters.keys():
                raise ValueError(f"the rule gave {sorted(gradients)} for the trainable {sorted(layer.parameters)}")
            for local_name, part in gradients.items():
                name = self._clipping.name_of(layer.parameters[local_name])
                self._accounts.setdefault(name, Account(layer.parameters[local_name].shape, self.batch_size)).add(part)
        except ValueError as error:
            raise ValueError(f"{layer.label}: {error}") from error
        self._settle_early(set(self._names(call)))

    # ---- factors and sums ---------------------------------------------------------------------------------------

    def _settle_early(self, names: set[str]) -> None:
        """In modes with several groups: clip and add a group up as soon as the backward pass has left it."""
        if len(self._clipping.groups) == 1 or self._ran_without_gradient:
            return
        for group in self._clipping.groups:
            if names.isdisjoint(group.names) or not self._is_complete(group):
                continue
            self._settle(group)
            if self._early is None:
                self._early = self._clipping.new_sum()
            for name in group.names:
                if name in self._settled:
                    self._early.add_part(name, *self._settled.pop(name))

    def _is_complete(self, group: Group) -> bool:
        return all(
            self._expected[name] == (self._accounts[name].arrivals if name in self._accounts else 0)
            for name in group.names
        )

    def _settle(self, group: Group) -> None:
        """Clip factors of one group, from all that has arrived for it."""
        accounts = {name: self._accounts.pop(name) for name in group.names if name in self._accounts}
        if not accounts:
            return
        norms, bounds = norms_and_bounds(accounts.values())
        self._squares.append(norms.square().to(self._squares[0].device if self._squares else norms.device))
        if self._clipping.norm_log is not None:
            self._clipping.norm_log.note_group(norms, group.clipping_norm)
        factors = self._clipping.mode.factors(bounds, group.clipping_norm, self._clipping.dtype)
        finite = torch.isfinite(bounds)
        all_finite = bool(finite.all())
        for name, account in accounts.items():
            parts = account.parts
            if not all_finite:  # such an example contributes exactly zero
                parts = [part.keep(finite) for part in parts]
            self._settled[name] = parts, factors

    def add_to(self, clipped_sum: ClippedSum) -> None:
        """Add the clipped gradients up, freeing what is done with."""
        with plain_arithmetic(), clipped_sum.adding(self.batch_size):
            if self._early is not None:
                clipped_sum.absorb(self._early)
            for name in list(self._settled):
                clipped_sum.add_part(name, *self._settled.pop(name))
        if self._clipping.norm_log is not None and self.per_example_norms is not None:
            self._clipping.norm_log.note_whole(self.per_example_norms)

    def close(self) -> None:
        """Let go of everything."""
        self.closed = True
        self._accounts, self._settled = {}, {}
        self._early = self._last_input = None

    @property
    def holds_nothing(self) -> bool:
        """Whether no tensor of the model is held here."""
        return not (self._accounts or self._settled or self._early or self._last_input)

    # ---- refusals -----------------------------------------------------------------------------------------------

    def _due_probes(self, losses: Tensor) -> list[Probe]:
        """The probes for mixed examples that this microbatch must pass; checks the losses first.

        They are due for the first microbatch of two or more in which a layer runs, and once more for the first in which
        another axis of its output is as long as the batch (a layout with the batch there passes every check of shapes).
        All of it again after the first step and in the other of train and eval mode: see `GhostClipping.stage`.
        """
        self._clipping.check_unchanged()
        self._check_losses(losses)
        if self.batch_size < 2 or self._new_kinds() <= self._clipping.probed:
            return []
        return [Probe(chosen.to(losses.device)) for chosen in bit_splits(self.batch_size)]

    def _new_kinds(self) -> set[tuple[str, bool, bool, bool]]:
        return {(*kind, *self._stage) for kind in self._kinds}

    def _refuse_mixed_examples(self, losses: Tensor, probes: Sequence[Probe | None]) -> None:
        """Back-propagate the losses of some examples alone: no other example may get a gradient at any layer.

        The splits tell any two examples apart, in both directions, so every dependence that has a gradient is found.
        None is a pass for nothing: another process needs it.
        """
        for due in probes:
            self._probe = probe = due or Probe(torch.ones_like(losses, dtype=torch.bool))
            try:
                self._clipping.run_backward(losses[probe.chosen].sum(), retain_graph=True)
            finally:
                self._probe = None
        own = [probe for probe in probes if probe is not None]
        if probes:
            self._clipping.lockstep.agreed("looking for mixed examples", lambda: _refuse_mixed(own))
        if own and all(probe.is_conclusive() for probe in own):
            self._clipping.probed |= self._new_kinds()

    def _refuse_silent_layers(self) -> None:
        """Layers that ran, but only with gradients switched off, would be dropped without a word."""
        silent = sorted(self._ran_without_gradient - self._ran_with_gradient)
        if silent:
            raise ValueError(
                f"{', '.join(silent)} ran without gradients only, so their parameters would learn nothing: under "
                "reentrant checkpointing no input of the block requires a gradient; use use_reentrant=False, or call "
                "model.enable_input_require_grads(), or freeze these layers"
            )


def _refuse_mixed(probes: Sequence[Probe]) -> None:
    layers = {layer for probe in probes for layer in probe.mixed()}
    if layers:
        raise ValueError(
            f"the loss of one example depends on other examples at {', '.join(sorted(layers))}: its "
            "contribution cannot be bounded; put the batch on the first axis everywhere, and mix no examples "
            "(batch statistics, contrastive losses, a mean over the batch)"
        )
