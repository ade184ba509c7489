"""Shared by the fine-tuning tests: the slow exact reference, and small models that need no download."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterator

import pytest
import torch
from process_pair import Pair
from torch import Tensor, nn

Losses = Callable[[Tensor], Tensor]
"""Indices of examples (b,) to their losses (b,)."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two processes that work together, for the tests of one file."""
    processes = Pair(tmp_path_factory.mktemp("pair"))
    yield processes
    processes.close()


def one_at_a_time(model: nn.Module, losses: Losses, examples: int) -> list[dict[str, Tensor]]:
    """Each example's own gradient of every trainable parameter, by plain autograd; zero where none arrives."""
    gradients = []
    for index in range(examples):
        for parameter in model.parameters():
            parameter.grad = None
        losses(torch.tensor([index])).sum().backward()
        gradients.append(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for name, p in model.named_parameters()
                if p.requires_grad
            }
        )
    for parameter in model.parameters():
        parameter.grad = None
    return gradients


def norms_of(gradients: list[dict[str, Tensor]]) -> Tensor:
    """L2 norm of each example's whole gradient, shape (B,)."""
    return torch.stack([torch.stack([g.square().sum() for g in each.values()]).sum().sqrt() for each in gradients])


def clipped_sum_of(gradients: list[dict[str, Tensor]], clipping_norm: float) -> dict[str, Tensor]:
    """Σ_i min(1, C/‖g_i‖)·g_i for each parameter."""
    factors = (clipping_norm / norms_of(gradients)).clamp(max=1)
    return {name: sum(f * each[name] for f, each in zip(factors, gradients, strict=True)) for name in gradients[0]}


def assert_exact(
    model: nn.Module, losses: Losses, examples: int, *, splits: tuple[int, ...] = (1,), tolerance: float = 1e-10
) -> None:
    """Norms and clipped sums of `GhostClipping` equal the one-at-a-time loop, for every microbatch split.

    The clipping norm is the median norm, so that some examples are clipped and some are not.
    """
    from optnoise.finetune import GhostClipping

    gradients = one_at_a_time(model, losses, examples)
    norms = norms_of(gradients)
    clipping_norm = float(norms.median()) * 1.01
    wanted = clipped_sum_of(gradients, clipping_norm)
    clipping = GhostClipping(model, clipping_norm)
    scale = float(torch.stack([w.norm() for w in wanted.values()]).norm())
    for pieces in splits:
        found_norms = []
        for part in torch.arange(examples).tensor_split(pieces):
            if len(part):
                with clipping.record(len(part)) as recording:
                    recording.backward(losses(part))
                assert recording.per_example_norms is not None
                found_norms.append(recording.per_example_norms)
        torch.testing.assert_close(torch.cat(found_norms), norms, rtol=tolerance, atol=0)
        found = {name: total for name, (_, total) in clipping.take().spend().items()}
        assert found.keys() == wanted.keys()
        for name, total in found.items():
            assert float((total - wanted[name]).norm()) <= tolerance * scale, name


@pytest.fixture(scope="session")
def exact() -> Callable[..., None]:
    """`assert_exact`, as a fixture because test folders are not packages."""
    return assert_exact


@pytest.fixture(scope="session")
def per_example() -> Callable[..., list[dict[str, Tensor]]]:
    return one_at_a_time


@pytest.fixture(scope="session")
def tiny_encoder() -> Callable[[str], nn.Module]:
    """Random two-layer BERT-like encoders in float64, dropout off."""
    import transformers

    def build(family: str) -> nn.Module:
        sizes = {
            "vocab_size": 29,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 20,
            "max_position_embeddings": 24,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "pad_token_id": 1 if family == "roberta" else 0,
        }
        config_type, model_type = {
            "bert": (transformers.BertConfig, transformers.BertModel),
            "roberta": (transformers.RobertaConfig, transformers.RobertaModel),
        }[family]
        torch.manual_seed(3)
        encoder = model_type(config_type(**sizes))
        for parameter in encoder.parameters():  # the library's own start is so small that gradients vanish
            nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else nn.init.normal_(parameter, mean=0.5)
        return encoder.double()

    return build
