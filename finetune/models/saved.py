"""Trained weights back from a folder that `save_pretrained` wrote, into a model that is built already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .loading import quiet


def load_trained(model: nn.Module, folder: Path) -> None:
    """Copy the saved weights of every trained parameter into `model`, a transformers or peft model.

    Frozen parameters stay as they are: they were not trained. Nothing is unpickled.

    Raises ValueError if there are no weights in `folder`, or a trained parameter is not among them in its shape.
    """
    saved = _adapters(model, folder) if hasattr(model, "peft_config") else _weights(model, folder)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    wrong = [name for name, own in trained.items() if name not in saved or saved[name].shape != own.shape]
    if wrong:
        raise ValueError(
            f"{folder} holds no weights of this shape for what the recipe's model trains, such as {wrong[0]}"
        )
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(saved[name])


def _weights(model: Any, folder: Path) -> dict[str, Tensor]:
    """By name in `model`; tied parameters have every name."""
    weights_file(folder, "model.safetensors", "model.safetensors.index.json")
    with quiet():
        return dict(type(model).from_pretrained(str(folder), use_safetensors=True).state_dict())


def _adapters(model: Any, folder: Path) -> dict[str, Tensor]:
    """By name in `model`: peft's file leaves the name of the adapter out."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    saved = load_file(weights_file(folder, "adapter_model.safetensors"))
    own: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    place = {tensor.data_ptr(): name for name, tensor in model.named_parameters()}
    return {place[own[name].data_ptr()]: tensor for name, tensor in saved.items() if name in own}


def weights_file(folder: Path, *names: str) -> Path:
    """The first of these files that is there. Raises ValueError if none is."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"there are no weights at {folder / names[0]}: the run must have runtime.save_model = true")
