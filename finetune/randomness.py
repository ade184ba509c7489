"""Where the randomness of a private run comes from: the operating system's entropy, unless a seed is asked for.

Privacy noise and the Poisson sample must be secret: whoever knows the generator's state can subtract the one and
undo the amplification by the other. A seeded run is reproducible and *not private*.
"""

from __future__ import annotations

import dataclasses
import secrets
import struct
from typing import Any

import torch

from ..mechanisms import _validate
from .checkpoint import check_fields
from .secure import Generator, check_secure, cryptographic_generator

# torch's CPU generator is a Mersenne Twister; `manual_seed` sets 32 bits of it, few enough to try them all. Its state
# as torch stores it: 8 bytes seed, 4 bytes words left, 4 bytes seeded flag, 8 bytes next, then 624 words of 8 bytes.
_WORDS = 624
_WORDS_OFFSET = 24
_CPU_STATE_BYTES = 5056


def secret_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` whose whole state (CPU) or 64-bit key (GPU) comes from the operating system."""
    generator = torch.Generator(device=device)
    generator.manual_seed(secrets.randbits(63))
    if generator.device.type == "cpu":
        generator.set_state(_fill_with_entropy(generator.get_state()))
    return generator


def _fill_with_entropy(state: torch.Tensor) -> torch.Tensor:
    """The state with its 624 words replaced; raises RuntimeError if this torch stores it in another way."""
    raw = bytearray(state.numpy().tobytes())
    words = struct.unpack_from(f"<{_WORDS}Q", raw, _WORDS_OFFSET) if len(raw) == _CPU_STATE_BYTES else ()
    if not words or max(words) >= 2**32:
        raise RuntimeError(f"torch {torch.__version__} stores its CPU generator in an unknown form: cannot fill it")
    fresh = struct.unpack(f"<{_WORDS}I", secrets.token_bytes(4 * _WORDS))
    struct.pack_into(f"<{_WORDS}Q", raw, _WORDS_OFFSET, *fresh)
    return torch.frombuffer(raw, dtype=torch.uint8).clone()


@dataclasses.dataclass(frozen=True)
class Randomness:
    """The two secret generators of a run. `seeded` marks one whose noise can be repeated, so it protects nothing."""

    noise: Generator
    sampling: Generator
    seeded: bool

    @classmethod
    def chosen(cls, *, seed: int | None = None, secure: bool = False, device: torch.device | str = "cpu") -> Randomness:
        """From the seed if there is one, else secret; `secure`: from a cryptographic generator.

        Raises ValueError for a seed with `secure`, ImportError if its package is missing.
        """
        check_secure(secure, seed)
        if secure:
            return cls(cryptographic_generator(), cryptographic_generator(), seeded=False)
        return cls.secret(device) if seed is None else cls.from_seed(seed, device)

    @property
    def secure(self) -> bool:
        """True if noise and samples come from a cryptographic generator."""
        return not isinstance(self.noise, torch.Generator)

    @classmethod
    def secret(cls, device: torch.device | str = "cpu") -> Randomness:
        """From the operating system's entropy; noise is drawn on `device`, samples on the CPU."""
        return cls(secret_generator(device), secret_generator("cpu"), seeded=False)

    @classmethod
    def from_seed(cls, seed: int, device: torch.device | str = "cpu") -> Randomness:
        """Reproducible and NOT private: for tests and debugging. Two independent streams from one seed."""
        if _validate.integer("seed", seed, minimum=-(2**62)) >= 2**62:
            raise ValueError(f"expected seed < 2**62, got {seed=}")
        noise, sampling = torch.Generator(device=device), torch.Generator(device="cpu")
        noise.manual_seed(2 * seed)
        sampling.manual_seed(2 * seed + 1)
        return cls(noise, sampling, seeded=True)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the generator states of a seeded run, nothing of a private one.

        A private run that is taken up again draws fresh entropy. Repeating its noise on anything but the very same
        sum (another learning rate, other weights) would let the noise be subtracted.
        """
        if not self.seeded:
            return {"seeded": False}
        assert isinstance(self.noise, torch.Generator)
        assert isinstance(self.sampling, torch.Generator)
        return {"noise": self.noise.get_state(), "sampling": self.sampling.get_state(), "seeded": True}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. Raises ValueError if it is none, or one is seeded and the other is not."""
        check_fields(state, {"seeded": bool})
        if state["seeded"] != self.seeded:
            raise ValueError(f"expected a state with seeded={self.seeded}, got seeded={state['seeded']}")
        if not self.seeded:
            return
        check_fields(state, {"noise": torch.Tensor, "sampling": torch.Tensor})
        for name, generator in (("noise", self.noise), ("sampling", self.sampling)):
            assert isinstance(generator, torch.Generator)
            try:
                generator.set_state(state[name])
            except (RuntimeError, TypeError) as error:
                raise ValueError(f"expected {name} to be the state of a generator: {error}") from error
