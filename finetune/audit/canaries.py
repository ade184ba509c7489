"""Canaries: records that are put into a training run by fair coins, so that an audit can ask whether they show.

*Input canaries* are examples like any other, mislabelled: they pass through model, loss, clipping and noise. Each is
scored by how far its loss fell. *Gradient canaries* are contributions of the largest norm that clipping allows, added
to the clipped sum of every batch that draws them: the strongest attack on noise, sampling and scale, but blind to
clipping. They are scored by the log-likelihood ratio of the noisy sums along their direction.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...mechanisms import SphericalGamma, _validate
from ..private import PrivateTraining

KINDS = ("coordinate", "random")
_MOST_NUMBERS = 10**8  # of the table of random directions


def secret_bits(count: int, *, generator: torch.Generator) -> Tensor:
    """`count` fair coins, booleans (count,): which canaries are put into the data. `generator` is on the CPU."""
    count = _validate.integer("count", count, minimum=1)
    return torch.randint(0, 2, (count,), generator=generator).bool()


def mislabelled(labels: Tensor, classes: int, *, generator: torch.Generator) -> Tensor:
    """For each label (m,) of 0 … classes−1 another one, uniformly: labels that only memory can learn."""
    classes = _validate.integer("classes", classes, minimum=2)
    return (labels + torch.randint(1, classes, labels.shape, generator=generator)) % classes


@dataclasses.dataclass(frozen=True)
class GradientCanaries:
    """`count` canaries, each a contribution of the largest norm that clipping allows.

    Attributes:
        count: m; at most the number of trainable parameters for kind "coordinate".
        kind: "coordinate": each has one parameter of its own (a Dirac gradient), drawn without repetition; noise there
            is exactly the mechanism's (spherical noise is scored as if it were Gaussian). "random": directions uniform
            on the sphere of all parameters, which overlap a little, and are scored as if the noise were Gaussian; not
            for clipping in groups.
    """

    count: int
    kind: str = "coordinate"

    def __post_init__(self) -> None:
        _validate.integer("count", self.count, minimum=1)
        _validate.one_of("kind", self.kind, KINDS)

    def place(self, training: PrivateTraining, *, generator: torch.Generator) -> Placed:
        """Their directions in this training, drawn from `generator`. Raises ValueError if they do not fit."""
        return (_Coordinates if self.kind == "coordinate" else _Directions)(training, self.count, generator)


class Placed(Protocol):
    """Canaries with their directions in one training; made by `GradientCanaries.place`."""

    def contribute(self, which: Tensor) -> None:
        """Add the canaries `which` (k,) to the clipped sum of the batch in work."""
        ...

    def losses(self) -> NDArray[np.float64]:
        """Privacy losses (m,), log p(noisy sum | canary in the batch)/p(… | not), after `privatise()`."""
        ...


def sampled_loss(losses: NDArray[np.float64], sampling_rate: float) -> NDArray[np.float64]:
    """log((1−q) + q·e^loss): the loss of a release that includes the record with probability q."""
    if sampling_rate == 1:
        return losses
    return np.logaddexp(math.log1p(-sampling_rate), math.log(sampling_rate) + losses)


@final
class _Coordinates:
    """One parameter for each canary: Σ += C_k there; loss log f(z − C_k/s_k) − log f(z) at z = noisy sum / s_k."""

    def __init__(self, training: PrivateTraining, count: int, generator: torch.Generator) -> None:
        self._training = training
        parameters, groups = training.clipping.parameters, training.clipping.groups
        total = training.dimension
        if count > total:
            raise ValueError(
                f"expected count <= {total}, the number of trainable parameters, got count={count}; use kind='random'"
            )
        chosen = torch.randperm(total, generator=generator)[:count]
        ends = torch.tensor([parameter.numel() for parameter in parameters.values()]).cumsum(0)
        owner = torch.searchsorted(ends, chosen, right=True)
        group_of = {name: group for group in groups for name in group.names}
        self._bounds, self._scales = torch.empty(count), np.empty(count)
        self._places: dict[str, tuple[Tensor, Tensor]] = {}  # name -> (canaries, their places in the flat parameter)
        for i, (name, parameter) in enumerate(parameters.items()):
            mine = (owner == i).nonzero().flatten()
            self._places[name] = mine, chosen[mine] - (ends[i] - parameter.numel())
            self._bounds[mine], self._scales[mine.numpy()] = group_of[name].clipping_norm, group_of[name].noise_scale

    def contribute(self, which: Tensor) -> None:
        drawn = torch.zeros(len(self._bounds), dtype=torch.bool)
        drawn[which] = True
        clipped_sum = self._training.clipping.clipped_sum
        with clipped_sum.adding(len(which)):
            for name, (mine, places) in self._places.items():
                total, now = clipped_sum.of(name).view(-1), drawn[mine]
                total[places[now].to(total.device)] += self._bounds[mine[now]].to(total)

    def losses(self) -> NDArray[np.float64]:
        sums = np.empty(len(self._bounds))
        for name, (mine, places) in self._places.items():
            sums[mine.numpy()] = _noisy_sum(self._training, name).view(-1)[places].numpy()
        z, shift = sums / self._scales, self._bounds.numpy().astype(np.float64) / self._scales
        noise = self._training.mechanism
        if isinstance(noise, SphericalGamma):  # nearly Gaussian in one of many coordinates; any score is allowed
            return (z - shift / 2) * shift / noise.variance
        return np.asarray(noise.log_density(z - shift) - noise.log_density(z))


@final
class _Directions:
    """Unit vectors (m, d) over all parameters: Σ += C·u; loss (z − ½)/variance at z = ⟨noisy sum, u⟩/C."""

    def __init__(self, training: PrivateTraining, count: int, generator: torch.Generator) -> None:
        if len(training.clipping.groups) > 1:
            raise ValueError("expected one clipping norm for all parameters with kind='random'; use kind='coordinate'")
        if count * training.dimension > _MOST_NUMBERS:
            raise ValueError(
                f"expected count · parameters <= {_MOST_NUMBERS:.0e} with kind='random', got {count} · "
                f"{training.dimension}; use fewer canaries, or kind='coordinate'"
            )
        self._training = training
        vectors = torch.randn((count, training.dimension), generator=generator)
        self._units = vectors / vectors.norm(dim=1, keepdim=True)

    def contribute(self, which: Tensor) -> None:
        clipping, start = self._training.clipping, 0
        step = clipping.clipping_norm * self._units[which].sum(dim=0)
        with clipping.clipped_sum.adding(len(which)):
            for name, parameter in clipping.parameters.items():
                total = clipping.clipped_sum.of(name).view(-1)
                total += step[start : start + parameter.numel()].to(total)
                start += parameter.numel()

    def losses(self) -> NDArray[np.float64]:
        clipping = self._training.clipping
        sums = torch.cat([_noisy_sum(self._training, name).flatten() for name in clipping.parameters])
        z = (self._units @ sums.float()).numpy().astype(np.float64) / clipping.clipping_norm
        return (z - 0.5) / self._training.mechanism.variance


def _noisy_sum(training: PrivateTraining, name: str) -> Tensor:
    """What was released for a parameter, times the divisor, on the CPU."""
    gradient = training.clipping.parameters[name].grad
    if gradient is None:
        raise RuntimeError("losses() needs a released gradient: call it between privatise() and the optimizer's step")
    return gradient.detach().cpu().double() * training.divisor
