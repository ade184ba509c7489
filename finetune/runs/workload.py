"""What a run trains on: a model with its trained part, rows, one loss per example, evaluation."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..models import (
    CausalLanguageModel,
    MaskedWord,
    Pretrained,
    SequenceClassification,
    choose_trainable,
    freeze_unused,
    load_pretrained,
    load_trained,
    random_gpt2,
)
from ..models.architectures import architecture_of, head_parameters
from ..models.loading import seeded
from ..tasks import ClassificationExample, ClassificationTask, GenerationExample, GenerationTask, Splits, Task
from .recipe import ModelSection, Recipe


class Workload(abc.ABC):
    """Made with its model, so that the dimension is known and the noise can be checked; then `prepare` does what takes
    long. The model is trained in place."""

    model: nn.Module
    rows: Any = None
    """The training rows, once prepared: a length, and rows by index."""

    def __init__(self, recipe: Recipe, task: Task, splits: Splits[Any]) -> None:
        self.recipe, self.task, self.splits = recipe, task, splits

    @abc.abstractmethod
    def prepare(self, *, progress: bool) -> None:
        """Encode all rows; compute what the frozen part says of each."""

    @abc.abstractmethod
    def collate(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        """A batch of rows."""

    @abc.abstractmethod
    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Losses (B,), each of its own example alone."""

    @abc.abstractmethod
    def evaluate(self, model: nn.Module, split: str, *, final: bool) -> dict[str, float]:
        """Metrics on `dev`, `test` or another split; `final`: all of them, with generated texts."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Write the trained model into `folder`."""

    @abc.abstractmethod
    def restore(self, folder: Path) -> None:
        """Take the weights that `save` wrote. Raises ValueError if there are none, or they are of another model."""

    @abc.abstractmethod
    def again(self, recipe: Recipe) -> Self:
        """A prepared workload with untrained weights for another run on the same data and model.

        Raises ValueError if `recipe` differs in task or model.
        """

    @abc.abstractmethod
    def row_lengths(self) -> list[int]:
        """Positions of each training row, to put rows of like length together."""

    @property
    def dimension(self) -> int:
        """The number of trained parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def head_parameters(self) -> list[nn.Parameter]:
        """Trained parameters of a new head, for a learning rate of their own."""
        return []

    def examples(self, split: str) -> tuple[Any, ...]:
        """Rows of an evaluation split; of dev, as many as the recipe says."""
        found = {"dev": self.splits.dev, "test": self.splits.test or (), **self.splits.others}[split]
        return found[: self.recipe.evaluation.rows] if split == "dev" else found

    def evaluation_splits(self) -> list[str]:
        """Splits that the report covers: dev, others of its kind, and test if asked for."""
        test = ["test"] if self.recipe.evaluation.test and self.splits.test else []
        return ["dev", *self.splits.others, *test]

    def _check_alike(self, recipe: Recipe) -> None:
        if (recipe.task, recipe.model) != (self.recipe.task, self.recipe.model):
            raise ValueError("expected a recipe with the same task and model, to use what was prepared again")


class TokenWorkload(Workload):
    """A transformers model on token ids."""

    def __init__(self, recipe: Recipe, task: Task, splits: Splits[Any]) -> None:
        super().__init__(recipe, task, splits)
        self.pretrained = _pretrained(recipe.model, task)
        self.objective = _objective(recipe.model, task, self.pretrained)
        settings = recipe.model
        with seeded(settings.head_seed):  # adapters are drawn
            self.model = choose_trainable(
                self.pretrained.model, settings.trained, layers=settings.layers, lora=settings.lora
            )
        self._freeze_unused()

    def prepare(self, *, progress: bool) -> None:
        self.rows = self.objective.encode(self.splits.train, self.recipe.model.max_length)

    def collate(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        return self.objective.collate(rows)

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return self.objective.per_example_losses(model, batch)

    def evaluate(self, model: nn.Module, split: str, *, final: bool) -> dict[str, float]:
        examples, settings = self.examples(split), self.recipe.evaluation
        size = {"max_length": self.recipe.model.max_length, "batch_size": settings.batch_size}
        if not isinstance(self.objective, CausalLanguageModel):
            return self.objective.evaluate(model, examples, **size)
        found = self.objective.perplexity(model, examples, **size)
        if final and settings.generated:
            some = examples[: settings.generated_rows]
            texts = self.objective.generate(model, [example.source for example in some], **size)
            found.update(self.objective.task.metrics(texts, [example.references for example in some]))
        return found

    def save(self, folder: Path) -> None:
        saved: Any = self.model
        saved.save_pretrained(str(folder))
        self.pretrained.tokenizer.save_pretrained(str(folder))

    def restore(self, folder: Path) -> None:
        load_trained(self.model, folder)

    def again(self, recipe: Recipe) -> Self:
        self._check_alike(recipe)
        other = type(self)(recipe, self.task, self.splits)
        other.rows = self.rows
        return other

    def row_lengths(self) -> list[int]:
        return [len(ids) for ids in self.rows["input_ids"]]

    def head_parameters(self) -> list[nn.Parameter]:
        architecture = architecture_of(self.model)
        found = head_parameters(self.model, architecture) if architecture.new_head else []
        return [parameter for parameter in found if parameter.requires_grad]

    def _freeze_unused(self) -> None:
        """What the loss does not depend on would receive noise alone. Asked with a made-up example."""
        rows: Any = self.objective.encode([_made_up(self.task)], self.recipe.model.max_length)
        batch = self.objective.collate(list(rows))
        freeze_unused(self.model, lambda: self.objective.per_example_losses(self.model, batch))


def _made_up(task: Task) -> Any:
    if isinstance(task, GenerationTask):
        return GenerationExample("a : b", "c", ("c",))
    pair = task.prompt is not None and task.prompt.arity == 2
    return ClassificationExample(("a", "b") if pair else ("a",), 0)


def _pretrained(settings: ModelSection, task: Task) -> Pretrained:
    if settings.kind == "mean_pooled":
        raise ValueError("mean_pooled models are built by PooledWorkload")
    new_head = settings.kind in ("encoder_head", "causal_head")
    labels = len(task.labels) if new_head and isinstance(task, ClassificationTask) else None
    if settings.random is not None:
        if settings.kind not in ("causal_lm", "causal_head"):
            raise ValueError(f"random-gpt2 is for causal_lm or causal_head, got model.kind = {settings.kind}")
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), settings.dropout)
        return random_gpt2(
            kind=settings.kind, num_labels=labels, seed=settings.head_seed, **{**rates, **settings.random}
        )
    return load_pretrained(
        settings.source,
        kind=settings.kind,
        num_labels=labels,
        dtype=torch.float32 if settings.dtype == "float32" else torch.bfloat16,
        architecture=settings.architecture,
        attention=settings.attention,
        dropout=settings.dropout,
        head_seed=settings.head_seed,
    )


def _objective(
    settings: ModelSection, task: Task, pretrained: Pretrained
) -> SequenceClassification | MaskedWord | CausalLanguageModel:
    if isinstance(task, GenerationTask):
        return CausalLanguageModel(
            task,
            pretrained.tokenizer,
            separator=settings.separator,
            over_tokens=settings.over_tokens,
            long_targets=settings.long_targets,
        )
    return (MaskedWord if settings.kind == "masked_word" else SequenceClassification)(task, pretrained.tokenizer)
