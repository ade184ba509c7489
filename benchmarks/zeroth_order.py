"""Zeroth-order steps against plain forward passes: time and peak memory.

Models from configurations with random weights; batch, length and losses are the same. A step is two forward passes
without gradients and three walks over the trainable parameters (one direction). Times are ratios to two forward
passes, interleaved in this process, medians. Memory is the peak resident size over that before the model was built,
each in a process of its own, the peak counter reset once the model stands.

    taskset -c 1 python benchmarks/zeroth_order.py [--markdown FILE] [--models NAME …] [--rounds N] [--no-memory]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from optnoise.finetune import ZerothOrderTraining, causal_lm_losses, make_zeroth_order
from optnoise.mechanisms import Laplace
from torch import Tensor, nn

_SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model and its batch."""

    build: Callable[[], nn.Module]
    is_language_model: bool
    batch: int = 16
    length: int = 128
    lora: bool = False
    dtype: torch.dtype = torch.float32


def _roberta() -> nn.Module:
    return hf.RobertaForSequenceClassification(hf.RobertaConfig(vocab_size=50265, num_labels=2, **_SMALL))


def _gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=384, n_layer=6, n_head=6))


def _smollm(**more: Any) -> nn.Module:
    """The sizes of SmolLM2-135M."""
    sizes = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(vocab_size=49152, intermediate_size=1536, tie_word_embeddings=True, **sizes, **more)
    )


SETTINGS = {
    "roberta": Setting(_roberta, is_language_model=False),
    "gpt2": Setting(_gpt2, is_language_model=True),
    "smollm2-135m": Setting(_smollm, is_language_model=True, batch=4),
    "smollm2-135m-bf16": Setting(_smollm, is_language_model=True, batch=4, dtype=torch.bfloat16),
    "smollm2-135m-lora": Setting(_smollm, is_language_model=True, batch=4, lora=True),
}
DEFAULT = ["roberta", "gpt2", "smollm2-135m", "smollm2-135m-lora"]


# ---- the two engines ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A fresh model and its losses."""

    setting: Setting
    model: nn.Module
    inputs: dict[str, Tensor]
    labels: Tensor

    def losses(self, index: Tensor) -> Tensor:
        """One loss per example, (b,)."""
        logits = self.model(**{name: value[index] for name, value in self.inputs.items()}).logits
        if self.setting.is_language_model:
            return causal_lm_losses(logits, self.labels[index])
        return nn.functional.cross_entropy(logits.float(), self.labels[index], reduction="none")


def new_case(setting: Setting) -> Case:
    torch.manual_seed(0)
    model = setting.build().to(setting.dtype)
    model.config.use_cache = False
    if setting.lora:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    ids = torch.randint(5, model.config.vocab_size, (setting.batch, setting.length))
    labels = ids if setting.is_language_model else torch.randint(0, 2, (setting.batch,))
    return Case(setting, model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels)


def forward_of(case: Case) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            case.losses(torch.arange(case.setting.batch))

    return forward


def step_of(case: Case) -> Callable[[], None]:
    training: ZerothOrderTraining = make_zeroth_order(
        case.model,
        mechanism=Laplace(1.0),
        clipping_norm=25.0,
        dataset_size=case.setting.batch,
        sampling_rate=1.0,
        divisor=float(case.setting.batch),
        smoothing=1e-3,
        learning_rate=1e-6,
    )

    def step() -> None:
        training.next_batch()
        training.step(case.losses)

    return step


ENGINES = {"forward pass": forward_of, "zeroth-order step": step_of}


# ---- measuring ------------------------------------------------------------------------------------------------------


def timed(run: Callable[[], None]) -> float:
    """CPU seconds of this process."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def time_of(setting: Setting, rounds: int) -> tuple[float, float]:
    """Median seconds of a step, and of its ratio to two forward passes next to it."""
    case = new_case(setting)
    forward, step = forward_of(case), step_of(case)
    for _ in range(2):  # the losses are probed in the first two steps
        forward()
        step()
    pairs = [(timed(step), timed(forward) + timed(forward)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(a / b for a, b in pairs)


def peak_memory(setting: Setting, engine: str) -> int:
    """Bytes over those after the imports at the peak of three steps. In a process of its own."""
    base = _resident("VmRSS")
    run = ENGINES[engine](new_case(setting))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counter starts at what is in use now
    for _ in range(3):
        run()
    return _resident("VmHWM") - base


def _resident(field: str) -> int:
    """Bytes of this program: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def memory_of(name: str, engine: str) -> int:
    """`peak_memory`, median of three fresh processes: the allocator's holes differ by some percent."""
    command = [sys.executable, __file__, "--memory-of", name, engine]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    return int(statistics.median(int(run.stdout.strip().splitlines()[-1]) for run in runs))


def measure(names: list[str], rounds: int, with_memory: bool) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        seconds, ratio = time_of(SETTINGS[name], rounds)
        row: dict[str, Any] = {"model": name, "seconds": seconds, "time_ratio": ratio}
        if with_memory:
            plain, own = (memory_of(name, engine) for engine in ENGINES)
            row |= {"bytes_forward": plain, "bytes": own, "memory_ratio": own / plain}
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    titles = ["model", "seconds a step", "over two forward passes", "peak of a forward pass", "of a step", "ratio"]
    lines = ["| " + " | ".join(titles) + " |", "| --- " * len(titles) + "|"]
    for row in rows:
        cells = [row["model"], f"{row['seconds']:.2f}", f"{row['time_ratio']:.2f}"]
        if "bytes" in row:
            cells += [f"{row[key] / 2**20:.0f} MiB" for key in ("bytes_forward", "bytes")]
            cells.append(f"{row['memory_ratio']:.3f}")
        lines.append("| " + " | ".join(cells + [""] * (len(titles) - len(cells))) + " |")
    return "\n".join(lines)


def environment() -> str:
    machine = platform.processor() or platform.machine()
    return f"{datetime.date.today().isoformat()}, {machine}, torch {torch.__version__}, transformers {hf.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=sorted(SETTINGS), default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "ENGINE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.memory_of:
        name, engine = arguments.memory_of
        print(peak_memory(SETTINGS[name], engine))
        return
    rows = measure(arguments.models, arguments.rounds, not arguments.no_memory)
    table = f"{environment()}\n\n{markdown(rows)}\n"
    print(table)
    if arguments.markdown:
        arguments.markdown.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
