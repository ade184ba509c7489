"""Training steps with ghost clipping against steps without privacy, and against Opacus' ghost and hook modes.

Models from configurations with random weights; batch, length and losses are the same for all; every engine takes whole
steps: forward, backward, clipping and noise where there are any, AdamW. All run with `keep_freed_memory`, so that none
pays for page faults on blocks that it had a step before. Times are ratios to the step without privacy, interleaved in
this process, medians. Memory is the peak resident size less that after the imports, each engine in a process of its own
(on a GPU: the peak of the allocator).

Opacus is optional (`pip install optnoise[bench]`). Run on one core:

    taskset -c 1 python benchmarks/clipping.py [--markdown FILE] [--models NAME …] [--rounds N] [--no-memory]
    python benchmarks/clipping.py --device cuda --models roberta-large gpt2-medium llama-2-7b-lora
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
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
from optnoise.finetune import causal_lm_losses, keep_freed_memory, make_private
from optnoise.mechanisms import Gaussian
from torch import Tensor, nn

try:
    import opacus
except ImportError:
    opacus = None

Step = Callable[[], None]
CLIPPING_NORM = 1.0


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model and its batch."""

    build: Callable[[], nn.Module]
    is_language_model: bool
    batch: int = 16
    length: int = 128
    lora: bool = False
    dtype: torch.dtype = torch.float32


def roberta(**sizes: Any) -> nn.Module:
    return hf.RobertaForSequenceClassification(hf.RobertaConfig(num_labels=2, max_position_embeddings=514, **sizes))


def _gpt2(**sizes: Any) -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes))


def _llama(**sizes: Any) -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes))


def _small(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536, **more}


SMALL_LLAMA = _small(intermediate_size=1024, num_key_value_heads=2, vocab_size=32000)
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

SETTINGS = {
    "roberta": Setting(lambda: roberta(vocab_size=50265, **_small()), is_language_model=False),
    "gpt2": Setting(lambda: _gpt2(n_embd=384, n_layer=6, n_head=6), is_language_model=True),
    "llama": Setting(lambda: _llama(**SMALL_LLAMA), is_language_model=True),
    "llama-lora": Setting(lambda: _llama(**SMALL_LLAMA), is_language_model=True, lora=True),
    "roberta-large": Setting(lambda: roberta(vocab_size=50265, **LARGE), is_language_model=False, batch=32),
    "gpt2-medium": Setting(
        lambda: _gpt2(n_embd=1024, n_layer=24, n_head=16), is_language_model=True, batch=8, length=512
    ),
    "llama-2-7b-lora": Setting(
        lambda: _llama(vocab_size=32000), is_language_model=True, batch=4, length=512, lora=True, dtype=torch.bfloat16
    ),
}
DEFAULT = ["roberta", "gpt2", "llama", "llama-lora"]


# ---- one step of each engine ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A fresh model, its optimizer and its losses."""

    setting: Setting
    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: dict[str, Tensor]
    labels: Tensor

    def losses(self, model: nn.Module) -> Tensor:
        """One loss per example, (B,)."""
        logits = model(**self.inputs).logits
        if self.setting.is_language_model:
            return causal_lm_losses(logits, self.labels)
        return nn.functional.cross_entropy(logits.float(), self.labels, reduction="none")


def new_case(setting: Setting, device: str) -> Case:
    torch.manual_seed(0)
    with torch.device(device):
        model = setting.build().to(setting.dtype)
    model.config.use_cache = False
    if setting.lora:
        model = _with_lora(model)
    model = model.to(device).train()
    vocabulary = model.config.vocab_size
    ids = torch.randint(5, vocabulary, (setting.batch, setting.length), device=device)
    labels = ids if setting.is_language_model else torch.randint(0, 2, (setting.batch,), device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Case(setting, model, torch.optim.AdamW(trained, lr=1e-4, fused=True), inputs, labels)


def _with_lora(model: nn.Module) -> nn.Module:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))


def without_privacy(case: Case) -> Step:
    def step() -> None:
        case.losses(case.model).mean().backward()
        case.optimizer.step()
        case.optimizer.zero_grad(set_to_none=True)

    return step


def optnoise(case: Case) -> Step:
    count = len(case.labels)
    training = make_private(
        case.model,
        case.optimizer,
        mechanism=Gaussian(1.0),
        clipping_norm=CLIPPING_NORM,
        dataset_size=count,
        sampling_rate=1.0,
        divisor=float(count),
    )

    def step() -> None:
        training.next_batch()
        with training.record(count) as recording:
            recording.backward(case.losses(case.model))
        training.step()
        case.optimizer.zero_grad(set_to_none=True)

    return step


def opacus_ghost(case: Case) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        case.model, max_grad_norm=CLIPPING_NORM, use_ghost_clipping=True, strict=False
    )
    optimizer = DPOptimizerFastGradientClipping(
        case.optimizer, noise_multiplier=1.0, max_grad_norm=CLIPPING_NORM, expected_batch_size=len(case.labels)
    )

    def step() -> None:
        DPTensorFastGradientClipping(model, optimizer, case.losses(model)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def opacus_hooks(case: Case) -> Step:
    """Opacus' default: every per-example gradient is stored."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(case.model, loss_reduction="mean", strict=False)
    optimizer = DPOptimizer(
        case.optimizer, noise_multiplier=1.0, max_grad_norm=CLIPPING_NORM, expected_batch_size=len(case.labels)
    )

    def step() -> None:
        case.losses(model).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


BASE = "without privacy"
ENGINES: dict[str, Callable[[Case], Step]] = {
    BASE: without_privacy,
    "optnoise": optnoise,
    "Opacus ghost": opacus_ghost,
    "Opacus hooks": opacus_hooks,
}


# ---- measuring ------------------------------------------------------------------------------------------------------


def timed(step: Step, device: str) -> float:
    """CPU seconds of this process on a CPU; wall-clock seconds on a GPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    begin = clock()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - begin


def step_times(setting: Setting, engines: list[str], rounds: int, device: str) -> dict[str, list[float] | str]:
    """Seconds of `rounds` steps for each engine, in turns after two warm-up steps; a reason for one that fails."""
    steps: dict[str, Step] = {}
    results: dict[str, list[float] | str] = {}
    for engine in engines:
        try:
            step = ENGINES[engine](new_case(setting, device))
            step()
            step()
            steps[engine], results[engine] = step, []
        except Exception as error:  # a peer may refuse the model: that is a result
            results[engine] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    for _ in range(rounds):
        for engine, step in steps.items():
            seconds = results[engine]
            assert isinstance(seconds, list)
            seconds.append(timed(step, device))
    return results


def peak_memory(setting: Setting, engine: str, device: str) -> int:
    """Bytes over those after the imports at the peak of three steps. In a process of its own."""
    base = _resident("VmRSS")
    step = ENGINES[engine](new_case(setting, device))
    for _ in range(3):
        step()
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    return _resident("VmHWM") - base


def _resident(field: str) -> int:
    """Bytes of this program: VmRSS now, VmHWM at the peak (`ru_maxrss` would count the parent's from before exec)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def memory_of(script: str, name: str, engine: str, device: str) -> int | None:
    """What `script --memory-of` prints, `peak_memory` in a fresh process; None if the engine fails there."""
    command = [sys.executable, script, "--memory-of", name, engine, "--device", device]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(run.stdout.strip().splitlines()[-1]) if run.returncode == 0 else None


def measure(
    settings: dict[str, Setting], engines: list[str], rounds: int, device: str, script: str | None
) -> list[dict[str, Any]]:
    """A row for each setting and engine; memory is measured by `script --memory-of`, not at all if that is None."""
    rows = []
    for name, setting in settings.items():
        times = step_times(setting, engines, rounds, device)
        gc.collect()
        memory = {engine: memory_of(script, name, engine, device) for engine in engines} if script else {}
        for engine in engines:
            row = {"model": name, "engine": engine, **_summary(times, memory, engine)}
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def _summary(times: dict[str, list[float] | str], memory: dict[str, int | None], engine: str) -> dict[str, Any]:
    """Median seconds, the ratio to the step without privacy (median, least, largest) and the peak of one engine."""
    found, base = times[engine], times[BASE]
    assert isinstance(base, list), base
    if isinstance(found, str):
        return {"refused": found}
    ratios = [a / b for a, b in zip(found, base, strict=True)]
    summary: dict[str, Any] = {"seconds": statistics.median(found), "time_ratio": statistics.median(ratios)}
    summary["time_ratio_range"] = min(ratios), max(ratios)
    own, plain = memory.get(engine), memory.get(BASE)
    if own and plain:
        summary |= {"bytes": own, "memory_ratio": own / plain}
    return summary


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| model | engine | seconds a step | time ratio | peak memory | memory ratio |", "| --- " * 6 + "|"]
    for row in rows:
        if "refused" in row:
            cells = [f"fails: {row['refused']}", "", "", ""]
        else:
            size = f"{row['bytes'] / 2**20:.0f} MiB" if "bytes" in row else ""
            ratio = f"{row['memory_ratio']:.2f}" if "memory_ratio" in row else ""
            low, high = row["time_ratio_range"]
            cells = [f"{row['seconds']:.3f}", f"{row['time_ratio']:.2f} ({low:.2f} to {high:.2f})", size, ratio]
        lines.append("| " + " | ".join([row["model"], row["engine"], *cells]) + " |")
    return "\n".join(lines)


def environment(device: str) -> str:
    name = platform.processor() or platform.machine() if device == "cpu" else torch.cuda.get_device_name()
    peer = "without Opacus" if opacus is None else f"Opacus {opacus.__version__}"
    today = datetime.date.today().isoformat()
    return f"{today}, {name}, torch {torch.__version__}, transformers {hf.__version__}, {peer}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=sorted(SETTINGS), default=DEFAULT)
    parser.add_argument("--engines", nargs="+", choices=sorted(ENGINES), default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "ENGINE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    keep_freed_memory()
    if arguments.memory_of:
        name, engine = arguments.memory_of
        print(peak_memory(SETTINGS[name], engine, arguments.device))
        return
    engines = [e for e in ENGINES if e in {*arguments.engines, BASE}]
    if opacus is None:
        engines = [engine for engine in engines if not engine.startswith("Opacus")]
    print(environment(arguments.device))
    settings = {name: SETTINGS[name] for name in arguments.models}
    script = None if arguments.no_memory else __file__
    rows = measure(settings, engines, arguments.rounds, arguments.device, script)
    if arguments.markdown:
        arguments.markdown.write_text(f"{environment(arguments.device)}\n\n{markdown(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
