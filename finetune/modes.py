"""How clip factors follow from norms, and what L2 sensitivity the clipped sum then has.

A mode splits the trainable parameters into groups. The gradient of group k is clipped to C_k, so one example moves the
whole sum by at most C = √(Σ C_k²). Noise of the mechanism (unit L2 sensitivity) times s_k goes into group k; dividing
group k by s_k shows that the guarantee is the mechanism's own if Σ (C_k/s_k)² <= 1.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, final

import torch
from torch import Tensor

from ..mechanisms import _validate

FACTOR_ROUNDOFFS = 32  # roundings between a norm bound and a clipped term, generously counted

Noise = Literal["global", "equal_budget", "least_energy"]


def rounding_margin(dtype: torch.dtype) -> float:
    """η: gradients are clipped to C/(1+η), so that the roundings of the square root, of the division and of the
    product with the clip factor cannot lift a contribution above C. `dtype` is what the clipped sum is made in
    (float32 under autocast). The error of the norm itself is bounded apart, example by example, in `account.py`.
    """
    return FACTOR_ROUNDOFFS * torch.finfo(dtype).eps


def clip_factors(norm_bounds: Tensor, clipping_norm: float, dtype: torch.dtype | None = None) -> Tensor:
    """min(1, C/(1+η)/norm) for norms (B,); 0 where the norm is not finite, 1 where it is 0. η is `dtype`'s (default:
    that of the norms)."""
    limit = clipping_norm / (1 + rounding_margin(dtype or norm_bounds.dtype))
    factors = (limit / norm_bounds).clamp(max=1.0)
    return torch.where(torch.isfinite(norm_bounds), factors, torch.zeros_like(factors))


@dataclasses.dataclass(frozen=True)
class Group:
    """Parameters that are clipped together to `clipping_norm`; `noise_scale` multiplies the mechanism's noise."""

    names: tuple[str, ...]
    clipping_norm: float
    noise_scale: float


class ClippingMode(abc.ABC):
    """Groups of parameters, and clip factors within each."""

    @abc.abstractmethod
    def groups(self, sizes: Mapping[str, int]) -> list[Group]:
        """Groups that hold every name in `sizes` (elements of each trainable parameter) exactly once."""

    def factors(self, norm_bounds: Tensor, clipping_norm: float, dtype: torch.dtype) -> Tensor:
        """Clip factors (B,) of one group whose norms are at most `norm_bounds`: factor · bound <= C_k/(1+η)."""
        return clip_factors(norm_bounds, clipping_norm, dtype)


def sensitivity(groups: list[Group]) -> float:
    """√(Σ C_k²): by how much one example can move the clipped sum."""
    return math.hypot(*(group.clipping_norm for group in groups))


@final
@dataclasses.dataclass(frozen=True)
class Flat(ClippingMode):
    """One group: the norm of the whole gradient is clipped to C."""

    clipping_norm: float

    def __post_init__(self) -> None:
        _validate.positive("clipping_norm", self.clipping_norm)

    def groups(self, sizes: Mapping[str, int]) -> list[Group]:
        return [Group(tuple(sizes), self.clipping_norm, self.clipping_norm)]


@final
@dataclasses.dataclass(frozen=True)
class Automatic(ClippingMode):
    """Every gradient is scaled to C/(1 + stability/norm): the AUTO-S of arXiv 2206.07136, which needs no tuning of C.

    The factor is C/(norm + stability); with stability 0 every non-zero gradient gets norm C.
    """

    clipping_norm: float
    stability: float = 0.01

    def __post_init__(self) -> None:
        _validate.positive("clipping_norm", self.clipping_norm)
        if not (math.isfinite(self.stability) and self.stability >= 0):
            raise ValueError(f"expected a finite stability >= 0, got stability={self.stability!r}")

    def groups(self, sizes: Mapping[str, int]) -> list[Group]:
        return [Group(tuple(sizes), self.clipping_norm, self.clipping_norm)]

    def factors(self, norm_bounds: Tensor, clipping_norm: float, dtype: torch.dtype) -> Tensor:
        factors = clipping_norm / (1 + rounding_margin(dtype)) / (norm_bounds + self.stability)
        usable = torch.isfinite(norm_bounds) & torch.isfinite(factors)
        return torch.where(usable, factors, torch.zeros_like(factors))


@final
@dataclasses.dataclass(frozen=True)
class GroupWise(ClippingMode):
    """Groups clipped on their own, each as soon as the backward pass has left it (arXiv 2212.01539).

    `clipping_norms` maps a prefix of parameter names to C_k: "transformer.h.0" holds all of that block, "" what is
    left. The longest prefix decides. C = √(Σ C_k²). `noise` shares the noise out:

    - "global": s_k = C, the same noise everywhere;
    - "equal_budget": s_k = √K·C_k, every group the same ratio of sensitivity to noise;
    - "least_energy": s_k² = (C_k/√d_k)·Σ_j C_j·√d_j, the least Σ d_k·s_k² there is (d_k parameters in group k).
    """

    clipping_norms: Mapping[str, float]
    noise: Noise = "global"

    def __post_init__(self) -> None:
        _check_noise(self.noise)
        if not self.clipping_norms:
            raise ValueError("expected at least one group, got clipping_norms={}")
        for prefix, norm in self.clipping_norms.items():
            _validate.positive(f"clipping_norms[{prefix!r}]", norm)

    def groups(self, sizes: Mapping[str, int]) -> list[Group]:
        members: dict[str, list[str]] = {prefix: [] for prefix in self.clipping_norms}
        for name in sizes:
            fitting = [prefix for prefix in members if _is_prefix(prefix, name)]
            if not fitting:
                raise ValueError(f'no group holds the trainable parameter {name}; add its prefix, or "" for the rest')
            members[max(fitting, key=len)].append(name)
        if unused := [prefix for prefix, names in members.items() if not names]:
            raise ValueError(f"the groups {unused!r} hold no trainable parameter; remove them from clipping_norms")
        return _with_noise([(tuple(n), self.clipping_norms[p]) for p, n in members.items()], sizes, self.noise)


@final
@dataclasses.dataclass(frozen=True)
class PerLayer(ClippingMode):
    """One group for each module that owns parameters, on the fly as `GroupWise`; √(Σ C_k²) is `clipping_norm`.

    `allocation`: "uniform" gives every layer C/√K, "dimension" gives layer k C·√(d_k/d).
    """

    clipping_norm: float
    allocation: Literal["uniform", "dimension"] = "uniform"
    noise: Noise = "global"

    def __post_init__(self) -> None:
        _validate.positive("clipping_norm", self.clipping_norm)
        _check_noise(self.noise)
        if self.allocation not in ("uniform", "dimension"):
            raise ValueError(f"expected allocation 'uniform' or 'dimension', got allocation={self.allocation!r}")

    def groups(self, sizes: Mapping[str, int]) -> list[Group]:
        layers: dict[str, list[str]] = {}
        for name in sizes:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        total = sum(sizes.values())
        members = []
        for names in layers.values():
            share = sum(sizes[n] for n in names) / total if self.allocation == "dimension" else 1 / len(layers)
            members.append((tuple(names), self.clipping_norm * math.sqrt(share)))
        return _with_noise(members, sizes, self.noise)


def _with_noise(members: list[tuple[tuple[str, ...], float]], sizes: Mapping[str, int], noise: Noise) -> list[Group]:
    """Noise scales with Σ (C_k/s_k)² <= 1, rounding included."""
    norms = [norm for _, norm in members]
    roots = [math.sqrt(sum(sizes[name] for name in names)) for names, _ in members]
    if noise == "global":
        scales = [math.hypot(*norms)] * len(norms)
    elif noise == "equal_budget":
        scales = [math.sqrt(len(norms)) * norm for norm in norms]
    else:
        energy = sum(norm * root for norm, root in zip(norms, roots, strict=True))
        scales = [math.sqrt(norm / root * energy) for norm, root in zip(norms, roots, strict=True)]
    spent = math.hypot(*(norm / scale for norm, scale in zip(norms, scales, strict=True)))
    correction = max(1.0, spent) * (1 + 1e-14)
    return [Group(names, norm, scale * correction) for (names, norm), scale in zip(members, scales, strict=True)]


def _is_prefix(prefix: str, name: str) -> bool:
    return prefix in ("", name) or name.startswith(f"{prefix}.")


def _check_noise(noise: str) -> None:
    if noise not in ("global", "equal_budget", "least_energy"):
        raise ValueError(f"expected noise 'global', 'equal_budget' or 'least_energy', got noise={noise!r}")
