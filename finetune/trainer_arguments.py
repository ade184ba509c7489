"""Which `TrainingArguments` private training takes, and what it makes of them. Everything else is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from accelerate import DistributedType
from transformers import Trainer, TrainingArguments

from .settings import PrivacySettings


@dataclasses.dataclass(frozen=True)
class _Refusal:
    """An argument, the values that are refused, and why: what it would do, and the way out."""

    name: str
    refused: Callable[[Any], bool]
    reason: str


def _is_set(value: Any) -> bool:
    return value not in (None, False, "", 0, [], {})


def _steps_in_backward(optim: Any) -> bool:
    name = str(getattr(optim, "value", optim))
    return "layerwise" in name or "lomo" in name


def _publishes_checkpoints(strategy: Any) -> bool:
    return "checkpoint" in str(getattr(strategy, "value", strategy))


_KINDS = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
_WHOLE_COPIES = "train in one process, or in several with a whole copy each (torchrun), without it"
_SHARDED = "leave it out, and give the Trainer a model whose frozen weights optnoise.finetune.shard_frozen has sharded"
_REFUSED = (
    _Refusal(
        "gradient_accumulation_steps",
        lambda value: value != 1,
        "one Trainer step is one logical batch, whose expected size privacy.sampling_rate sets; leave it at 1 and set "
        "per_device_train_batch_size to the microbatch that fits into memory",
    ),
    _Refusal(
        "max_grad_norm",
        lambda value: value not in (None, 0, 1.0),
        "it would act on the noisy gradient of the whole batch; each example's gradient is clipped to "
        "privacy.clipping_norm; leave it out",
    ),
    _Refusal(
        "label_smoothing_factor",
        _is_set,
        "its loss is a mean over the batch; put the smoothing into per_example_loss",
    ),
    _Refusal(
        "neftune_noise_alpha",
        _is_set,
        "its noise depends on the padded length, so on the other examples of the batch; leave it out",
    ),
    _Refusal("use_liger_kernel", _is_set, "its fused layers compute no per-example gradients; leave it out"),
    _Refusal("torch_compile", _is_set, "clipping records layer by layer, which runs uncompiled; leave it out"),
    _Refusal("fp16", _is_set, "its loss scaling skips steps, depending on the data; use bf16=True"),
    _Refusal(
        "auto_find_batch_size",
        _is_set,
        "it starts the training anew after steps were charged; set per_device_train_batch_size, which is memory only",
    ),
    _Refusal(
        "train_sampling_strategy",
        lambda value: value != "random",
        "batches are Poisson samples, sorted by length inside; leave it out",
    ),
    _Refusal("group_by_length", _is_set, "batches are Poisson samples, sorted by length inside; leave it out"),
    _Refusal("dataloader_drop_last", _is_set, "a Poisson batch of any size is a step; leave it out"),
    _Refusal("data_seed", lambda value: value is not None, "who is drawn is secret; noise_seed repeats a test"),
    _Refusal(
        "include_num_input_tokens_seen",
        lambda value: value not in ("no", False),
        "the number of tokens in the batches is private; leave it out",
    ),
    _Refusal(
        "optim",
        _steps_in_backward,
        "it steps inside the backward pass, before the noise; use another, such as adamw_torch",
    ),
    _Refusal(
        "optim_target_modules",
        _is_set,
        "the low-rank optimizers that it is for are not tested under noise; choose what is trained on the model "
        "itself, by LoRA or by freezing",
    ),
    _Refusal("deepspeed", _is_set, f"it owns backward pass and step; {_WHOLE_COPIES}"),
    _Refusal("fsdp", _is_set, f"it shards what is trained too; {_SHARDED}"),
    _Refusal("parallelism_config", _is_set, f"it splits the model over processes; {_WHOLE_COPIES}"),
    _Refusal(
        "n_gpu",
        lambda value: value > 1,
        "DataParallel splits the batch past the clipping; start one process per GPU with torchrun, or let the process "
        "see one of them (CUDA_VISIBLE_DEVICES=0)",
    ),
    _Refusal(
        "hub_strategy",
        _publishes_checkpoints,
        "checkpoints hold the state of random generators and of the optimizer; use 'every_save' or 'end'",
    ),
    _Refusal(
        "enable_jit_checkpoint",
        _is_set,
        "it may save between noise and step; use save_steps",
    ),
)


def check_arguments(args: TrainingArguments) -> None:
    """Raise ValueError naming the first argument that private training does not take, and the way out."""
    for refusal in _REFUSED:
        if not hasattr(args, refusal.name):  # not every version of transformers has each of them
            continue
        value = getattr(args, refusal.name)
        if refusal.refused(value):
            shown = getattr(value, "value", value)
            raise ValueError(f"PrivateTrainer does not take {refusal.name}={shown!r}: {refusal.reason}")


def private_arguments(args: TrainingArguments, privacy: PrivacySettings) -> TrainingArguments:
    """A copy of `args` with the length of the run from `privacy`; the caller's own object stays as it is.

    `max_steps` is `privacy.steps`; `max_grad_norm` is 0, so that nothing clips the noisy gradient; `ignore_data_skip`
    is True: a resumed run draws on, no batch is drawn to be skipped. `average_tokens_across_devices` is False: training
    does not use it, and in evaluation it multiplies a classifier's loss by the number of processes.

    Raises ValueError for arguments that private training does not take, and for another length of the run.
    """
    check_arguments(args)
    if args.max_steps not in (-1, privacy.steps):
        raise ValueError(
            f"expected max_steps={privacy.steps} (privacy.steps) or none, got max_steps={args.max_steps}: the number "
            "of noisy steps decides ε; change privacy.steps and calibrate the noise for it"
        )
    epochs = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}["num_train_epochs"]
    wanted = math.ceil(args.num_train_epochs * steps_per_epoch(privacy))
    if args.num_train_epochs != epochs and wanted != privacy.steps:
        raise ValueError(
            f"PrivateTrainer does not take num_train_epochs={args.num_train_epochs:g}, which would be {wanted} steps: "
            f"the run has privacy.steps={privacy.steps} of them, and their number decides ε; leave it out"
        )
    own = copy.copy(args)
    own.max_steps, own.max_grad_norm, own.ignore_data_skip = privacy.steps, 0.0, True
    own.average_tokens_across_devices = False
    return own


def steps_per_epoch(privacy: PrivacySettings) -> int:
    """Steps in which each example is drawn once on average: what `epoch` counts in logs and strategies."""
    return max(1, round(1 / privacy.sampling_rate))


def check_placement(trainer: Trainer) -> None:
    """Raise ValueError for what only shows once accelerate is set up: its launcher's plugins, a model in pieces."""
    check_arguments(trainer.args)
    for name, found, way_out in (
        ("deepspeed", trainer.is_deepspeed_enabled, _WHOLE_COPIES),
        ("fsdp", trainer.is_fsdp_enabled, _SHARDED),
        ("a model spread over several devices", trainer.is_model_parallel, _WHOLE_COPIES),
    ):
        if found:
            raise ValueError(f"PrivateTrainer does not take {name}: {way_out}")
    kind = trainer.accelerator.distributed_type
    if kind not in _KINDS:
        raise ValueError(f"PrivateTrainer does not take distributed_type={kind.value}: {_WHOLE_COPIES}")
