"""Recipes: a fine-tuning run as a TOML file. Every key is checked before anything is loaded."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import pydantic
from pydantic import ConfigDict, Field

from ...accounting import ADD_OR_REMOVE_ONE
from ..models import LoraSettings
from ..settings import PrivacySettings
from ..tasks import DataSource


class Section(pydantic.BaseModel):
    """A table of a recipe: unknown keys and wrong types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class PrivacySection(Section):
    """The guarantee that the run is held to."""

    epsilon: float = Field(gt=0)
    """Target ε: the noise is calibrated to it; a given noise whose proven ε exceeds it is refused."""
    delta: float = Field(gt=0, lt=1)
    """Probability δ of the guarantee; below 1/n by custom."""
    clipping_norm: float = Field(gt=0)
    """C: L2 bound on one example's gradient; zeroth order: bound on one example's slope."""
    adjacency: Literal["add_or_remove_one"] = ADD_OR_REMOVE_ONE  # type: ignore[assignment]
    """Neighbouring data sets differ by one training row more or less."""


class TableSection(Section):
    """The columns of a table of one's own, for `task.name = "table"`: texts and labels, or sources and targets."""

    text_columns: tuple[str, ...] | None = None
    """One text column, or two for pairs; with `label_column` and `labels`."""
    label_column: str | None = None
    labels: tuple[str, ...] | None = None
    """As the file spells them; their order numbers the classes."""
    ignored_labels: tuple[str, ...] = ()
    template: str | None = None
    """Prompt with {0}, for pairs {1}, and {mask}, for `model.kind = "masked_word"`; with `label_words`."""
    label_words: tuple[str, ...] | None = None
    source_column: str | None = None
    """For generation, with `target_column`."""
    target_column: str | None = None
    delimiter: str | None = None
    quoted: bool | None = None

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Self:
        labelled = (self.text_columns, self.label_column, self.labels)
        paired = (self.source_column, self.target_column)
        both = any(value is not None for value in labelled) and any(value is not None for value in paired)
        if both or (None in labelled and None in paired):
            raise ValueError("give text_columns, label_column and labels; or source_column and target_column")
        if (self.template is None) != (self.label_words is None) or (self.template and self.labels is None):
            raise ValueError("template and label_words go together, with labels")
        return self


class TaskSection(Section):
    """Which task, and where its data are."""

    name: str
    """A task (`optnoise finetune --list` names them), or "table" for a file of one's own."""
    path: str | None = None
    """Folder of its files, or a table: relative to the working directory, or `package:relative/path`; or `hub`."""
    hub: str | None = None
    """Hub data set; "default" is the task's own."""
    config: str | None = None
    revision: str | None = None
    encoding: str = "utf-8"
    dev_share: float | None = Field(default=None, gt=0, lt=1)
    """Where there is no dev file: the share of rows held out by a hash of their own text."""
    split_seed: int = 0
    empty_texts: Literal["refuse", "keep", "drop"] = "refuse"
    train_share: float = Field(default=1.0, gt=0, le=1)
    """Train on this share of the training rows, chosen by a hash of each row's own text: a smaller, public part."""
    table: TableSection | None = None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.name == "table") != (self.table is not None):
            raise ValueError('[task.table] goes with name = "table"')
        if (self.path is None) == (self.hub is None):
            raise ValueError('give path (a folder with its files), or hub ("default": the task\'s own data set)')
        if self.path is not None and (self.config is not None or self.revision is not None):
            raise ValueError("config and revision belong to hub")
        return self

    def source(self, path: str | None) -> DataSource:
        """Where to read; `path` is `self.path` with packages resolved."""
        return DataSource(
            path=path,
            hub=self.hub,
            config=self.config,
            revision=self.revision,
            encoding=self.encoding,
            dev_share=self.dev_share,
            split_seed=self.split_seed,
            empty_texts=self.empty_texts,
        )


class ModelSection(Section):
    """The pretrained model and the part of it that is trained."""

    source: str
    """Hub name, folder, .gguf file, `package:relative/path`, or "random-gpt2" (with `random`)."""
    kind: Literal["encoder_head", "masked_word", "mean_pooled", "causal_lm", "causal_head"]
    """New head on an encoder; masked word of a prompt; linear head on the mean of an encoder's states, with the frozen
    part computed once per text; text generation; new head on a causal model."""
    trained: Literal["full", "head", "bitfit", "lora", "last_layers"]
    layers: int | None = Field(default=None, ge=1)
    """With last_layers, and if wanted with bitfit: how many of the last layers."""
    lora: LoraSettings | None = None
    max_length: int = Field(ge=4)
    """Tokens of one example, all parts together; what is cut is logged."""
    architecture: Literal["roberta"] | None = None
    """"roberta" turns a BERT encoder into RoBERTa."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Of every dropout layer. The noise regularises already: 0 is the usual choice, and faster."""
    separator: str | None = None
    """Between source and target (causal_lm); None: the tokenizer's start token, or a line break."""
    over_tokens: Literal["mean", "sum"] = "mean"
    """An example's loss over its own target tokens (causal_lm)."""
    long_targets: Literal["refuse", "cut"] = "refuse"
    attention: str | None = None
    """transformers' attn_implementation."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters."""
    head_seed: int = Field(default=0, ge=0, le=2**32 - 1)
    """Public seed of new weights."""
    random: dict[str, int | float] | None = None
    """Sizes of `transformers.GPT2Config` for "random-gpt2"."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.source == "random-gpt2") != (self.random is not None):
            raise ValueError('[model.random] goes with source = "random-gpt2"')
        if (self.layers is not None) > (self.trained in ("last_layers", "bitfit")):
            raise ValueError(f"leave layers out with trained = {self.trained}")
        if self.trained == "last_layers" and self.layers is None:
            raise ValueError("give layers with trained = last_layers")
        if self.lora is not None and self.trained != "lora":
            raise ValueError(f"leave lora out with trained = {self.trained}")
        if self.kind == "mean_pooled" and self.trained == "lora":
            raise ValueError("kind = mean_pooled trains head, last_layers, bitfit or full")
        return self


_MOST = 10**18  # rows and steps: beyond it accounting refuses
_ZEROTH_ORDER = {"smoothing", "directions"}
_FIRST_ORDER = {"optimizer", "head_learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon"}


def foreign_keys(method: str) -> set[str]:
    """Keys of `[training]` that mean nothing to this method."""
    return _ZEROTH_ORDER if method == "first_order" else _FIRST_ORDER


class TrainingSection(Section):
    """Batches, length, optimizer. All of it is chosen before seeing the data."""

    method: Literal["first_order", "zeroth_order"] = "first_order"
    batch_size: float = Field(gt=0)
    """Expected size of a Poisson batch: the constant that divides the noisy sum."""
    dataset_size: int | None = Field(default=None, ge=1, le=_MOST)
    """Public, nominal number of training rows: every row is drawn with probability q = batch_size/dataset_size."""
    sampling_rate: float | None = Field(default=None, gt=0, le=1)
    """q itself, instead of dataset_size."""
    steps: int | None = Field(default=None, ge=1, le=_MOST)
    """T, the number of noisy releases; or `epochs`."""
    epochs: float | None = Field(default=None, gt=0)
    """T = ceil(epochs/q)."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """AdamW with weight_decay = 0 is Adam."""
    learning_rate: float = Field(gt=0)
    head_learning_rate: float | None = Field(default=None, gt=0)
    """Of a new head, if not the same."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """linear and cosine fall to zero over the steps."""
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0)
    smoothing: float = Field(default=1e-3, gt=0)
    """Zeroth order: φ, how far the parameters are moved along the direction."""
    directions: int = Field(default=1, ge=1)
    """Zeroth order: directions of one update, released as one vector."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.dataset_size is None) == (self.sampling_rate is None):
            raise ValueError("give either dataset_size (public) or sampling_rate")
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        if self.dataset_size is not None and self.batch_size > self.dataset_size:
            raise ValueError(
                f"expected batch_size <= dataset_size, got batch_size={self.batch_size:g} and "
                f"dataset_size={self.dataset_size}"
            )
        if not self.rate > 0 or (self.epochs or 0) / self.rate > _MOST:
            raise ValueError(
                f"expected a rate q > 0 and at most {_MOST:.0e} steps, got q={self.rate:g} and epochs={self.epochs}"
            )
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        if foreign := sorted(k for k in foreign_keys(self.method) if getattr(self, k) != defaults[k]):
            raise ValueError(f"leave {', '.join(foreign)} out with method = {self.method}")
        return self

    @property
    def rate(self) -> float:
        """q, the probability of every row to be in a batch."""
        return self.sampling_rate if self.sampling_rate is not None else self.batch_size / (self.dataset_size or 1)

    @property
    def releases(self) -> int:
        """T, the number of noisy releases."""
        return self.steps if self.steps is not None else math.ceil((self.epochs or 0) / self.rate - 1e-9)


class EvaluationSection(Section):
    """Evaluation on held-out rows: without noise, outside the guarantee, which covers the training rows."""

    every: int = Field(default=50, ge=1)
    """Steps between two evaluations on dev rows (loss, accuracy, perplexity; nothing generated)."""
    rows: int | None = Field(default=None, ge=1)
    """Use this many dev rows only, the first ones."""
    batch_size: int = Field(default=32, ge=1)
    generated: bool = True
    """Generation tasks: generate texts at the end and score them."""
    generated_rows: int | None = Field(default=None, ge=1)
    """Generate for this many rows only, the first ones."""
    num_beams: int | None = Field(default=None, ge=1)
    """Instead of the task's own."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Instead of the task's own."""
    test: bool = False
    """Evaluate on the test rows as well, at the end."""


class RuntimeSection(Section):
    """What may be changed without changing ε or the result (up to rounding)."""

    microbatch_size: int = Field(default=16, ge=1)
    """Examples in one forward and backward pass: decides memory."""
    save_every: int = Field(default=50, ge=1)
    """Steps between two checkpoints."""
    log_every: int = Field(default=10, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    bf16: bool | Literal["auto"] = False
    """Autocast to bfloat16, or "auto": if that is faster here. Norms, sums and noise stay float32."""
    gradient_checkpointing: bool = False
    tensorboard: bool = False
    save_model: bool = True
    """Write the trained model into the output folder."""
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    """Of dropout in a seeded run; a private run takes its masks from the operating system."""
    noise_seed: int | None = Field(default=None, ge=-(2**62), lt=2**62)
    """Leave it out. A seed makes noise and samples repeatable, and the run NOT private."""
    secure: bool = False
    """Noise and samples from a cryptographic generator, noisy sums on a grid; needs the extra `secure`."""
    log_training_loss: bool = False
    """Leave it out. The training loss is a number about the private batch without noise."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.secure and self.noise_seed is not None:
            raise ValueError("leave noise_seed out with secure = true: a run with a seed is not private")
        return self


class Recipe(Section):
    """One fine-tuning run."""

    description: str
    """What it is, in a line."""
    origin: str | None = None
    """Whose hyper-parameters: paper and table; None: ours."""
    privacy: PrivacySection
    task: TaskSection
    model: ModelSection
    training: TrainingSection
    evaluation: EvaluationSection = EvaluationSection()
    runtime: RuntimeSection = RuntimeSection()

    def settings(self) -> PrivacySettings:
        """What the guarantee depends on."""
        return PrivacySettings(
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            steps=self.training.releases,
            sampling_rate=self.training.rate,
            clipping_norm=self.privacy.clipping_norm,
            divisor=float(self.training.batch_size),
            adjacency=self.privacy.adjacency,
        )

    def binding(self) -> dict[str, Any]:
        """All that may not change between a run and its continuation: everything but evaluation and runtime."""
        document = self.model_dump(mode="json", exclude={"evaluation", "runtime", "description", "origin"})
        own = {"secure": True} if self.runtime.secure else {}
        return {**document, "noise_seed": self.runtime.noise_seed, **own}
