"""Tables, tiny models and recipes for tests of whole runs. Nothing is downloaded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from optnoise.finetune.models import Pretrained
from optnoise.finetune.runs import Recipe, recipe_from
from tiny_language import build, tokenizer_of

WORDS = ["film", "plot", "actors", "idea", "heart", "fun", "warm", "whole", "great", "terrible", "good", "bad"]


def save_model(folder: Path, family: str, kind: str, **sizes: int) -> str:
    """A tiny random model with its tokenizer; `mean_pooled` is a bare encoder, of other `sizes` if wanted."""
    import torch
    import transformers
    from tiny_language import configuration

    if kind == "mean_pooled":
        tokenizer = tokenizer_of(family)
        torch.manual_seed(3)
        config = configuration(family, tokenizer)
        config.update(sizes)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    else:
        model, tokenizer = build(family, kind, words=("Yes", "Maybe", "No"))
        Pretrained(model.float().eval(), tokenizer).save(folder)  # type: ignore[arg-type]
    return str(folder)


def labelled(folder: Path, rows: int = 60) -> str:
    """train.tsv, dev.tsv, test.tsv as SST-2 lays them out; the label is that of the first word."""
    draw = random.Random(0)
    for name, count in (("train", rows), ("dev", 20), ("test", 10)):
        lines = ["sentence\tlabel"]
        for number in range(count):
            label = number % 2
            words = [("terrible", "great")[label], *draw.choices(WORDS[:8], k=draw.randint(1, 6))]
            lines.append(f"{' '.join(words)}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return str(folder)


def paired(folder: Path, rows: int = 60) -> str:
    """The files of E2E; every source has two texts."""
    draw = random.Random(0)
    for name, count in (("train", rows), ("valid", 8), ("test", 8)):
        lines = []
        for number in range(count // 2):
            place, food = f"{draw.choice(WORDS)} {number}", draw.choice(["Indian", "fast food"])
            lines += [f"name : {place} | food : {food}||{verb} {food} ." for verb in ("There is", "It serves")]
        (folder / f"src1_{name}.txt").write_text("\n".join(lines) + "\n")
    return str(folder)


def document(source: str, path: str, kind: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A recipe of four steps on 60 rows, as nested mappings; `sections` are laid over it."""
    generation = kind == "causal_lm"
    found: dict[str, dict[str, Any]] = {
        "privacy": {"epsilon": 20.0, "delta": 1e-3, "clipping_norm": 1.0},
        "task": {"name": "e2e" if generation else "sst2", "path": path},
        "model": {"source": source, "kind": kind, "trained": "full", "max_length": 32},
        "training": {"batch_size": 20, "dataset_size": 60, "steps": 4, "learning_rate": 0.01},
        "evaluation": {"every": 2, "max_new_tokens": 4, "num_beams": 2} if generation else {"every": 2},
        "runtime": {"microbatch_size": 8, "save_every": 2, "log_every": 1, "device": "cpu", "noise_seed": 7},
    }
    for name, section in sections.items():
        found[name] = {**found[name], **section}
        found[name] = {key: value for key, value in found[name].items() if value is not None}
    return {"description": "a test", **found}


def as_toml(found: dict[str, Any]) -> str:
    """Nested mappings of text, numbers and lists as TOML, whose values are written as in JSON."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in found.items() if not isinstance(value, dict)]
    for name, section in found.items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def recipe_of(source: str, path: str, kind: str, **sections: dict[str, Any]) -> Recipe:
    """`document`, checked."""
    return recipe_from(document(source, path, kind, **sections))
