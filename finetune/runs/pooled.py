"""A linear head on the mean of an encoder's hidden states; what lies below the trained part is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import safetensors.torch
import torch
from torch import Tensor, nn

from .. import encoder as encoders
from ..encoder import EncoderClassifier, LowerLayers, UpperLayers
from ..features import Features, HiddenFeatures, TokenFeatures, compute_hidden, compute_means, faster_dtype
from ..models.convert import bert_as_roberta
from ..models.objective import evaluating
from ..models.saved import weights_file
from ..models.sources import locate
from ..progress import progress_bar
from ..ragged import Ragged
from ..tasks import ClassificationTask, Splits
from .recipe import ModelSection, Recipe
from .workload import Workload


@final
class FeatureRows:
    """The training rows: an index and a length (positions, by which microbatches are sorted) each."""

    def __init__(self, lengths: Tensor) -> None:
        self._lengths = lengths.tolist()

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"index": index, "length": self._lengths[index]}


@final
class PooledWorkload(Workload):
    """The trained upper part of an `EncoderClassifier`, on cached features of all texts.

    The head starts at zero: all classes alike, and no seed stands between two runs.
    """

    task: ClassificationTask

    def __init__(self, recipe: Recipe, task: ClassificationTask, splits: Splits[Any]) -> None:
        super().__init__(recipe, task, splits)
        self._classifier = _classifier(recipe.model, len(task.labels))
        self.model = _trained_part(self._classifier, recipe.model)
        full = {id(parameter): name for name, parameter in self._classifier.named_parameters()}
        self._full_names = {n: full[id(p)] for n, p in self.model.named_parameters() if p.requires_grad}
        self._places: dict[str, int] = {}

    def prepare(self, *, progress: bool) -> None:
        rows = self._all_rows()
        self.labels = torch.tensor([row.label for row in rows])
        settings = self.recipe.model
        tokens = encoders.tokenize(locate(settings.source).name, _texts(rows), max_length=settings.max_length)
        self.features = _features(self._classifier, settings, tokens, self._dtype(tokens), progress)
        self.rows = FeatureRows(self.features.lengths[: len(self.splits.train)])

    def again(self, recipe: Recipe) -> PooledWorkload:
        self._check_alike(recipe)
        other = PooledWorkload(recipe, self.task, self.splits)
        other.labels, other.features, other.rows, other._places = self.labels, self.features, self.rows, self._places
        return other

    def collate(self, rows: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
        return self._batch(torch.tensor([row["index"] for row in rows]))

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(_logits(model, batch), batch["labels"], reduction="none")

    def row_lengths(self) -> list[int]:
        return self.features.lengths[: len(self.rows)].tolist()

    def indices(self, split: str) -> Tensor:
        """Where the rows of `split` stand in `labels` and in the features, (n,)."""
        return torch.arange(len(self.examples(split))) + self._places[split]

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str, *, final: bool) -> dict[str, float]:
        rows = self.indices(split)
        device, total = next(model.parameters()).device, 0.0
        predictions = torch.zeros(len(rows), dtype=torch.long)
        order = self.features.lengths[rows].argsort(stable=True)
        with evaluating(model):
            for chosen in order.split(4 * self.recipe.evaluation.batch_size):
                batch = {name: value.to(device) for name, value in self._batch(rows[chosen]).items()}
                logits = _logits(model, batch)
                total += float(nn.functional.cross_entropy(logits, batch["labels"], reduction="sum"))
                predictions[chosen] = logits.argmax(dim=1).cpu()
        truth = self.labels[rows].tolist()
        return {**self.task.metrics(predictions.tolist(), truth), "loss": total / len(rows)}

    def save(self, folder: Path) -> None:
        """`trained.safetensors`: the trained parameters by their names in an `EncoderClassifier`."""
        folder.mkdir(parents=True, exist_ok=True)
        trained = {n: p.detach().cpu() for n, p in self.model.named_parameters() if p.requires_grad}
        safetensors.torch.save_file(
            {self._full_names[n]: p.contiguous() for n, p in trained.items()}, folder / "trained.safetensors"
        )

    @torch.no_grad()
    def restore(self, folder: Path) -> None:
        file = weights_file(folder, "trained.safetensors")
        saved = safetensors.torch.load_file(file)
        own = {self._full_names[n]: p for n, p in self.model.named_parameters() if p.requires_grad}
        if {n: t.shape for n, t in saved.items()} != {n: p.shape for n, p in own.items()}:
            raise ValueError(f"{file} holds other parameters than the recipe's model trains")
        for name, parameter in own.items():
            parameter.copy_(saved[name])

    def head_parameters(self) -> list[nn.Parameter]:
        head: Any = self.model.head
        return list(head.parameters())

    def _batch(self, indices: Tensor) -> dict[str, Tensor]:
        return {**self.features.batch(indices), "labels": self.labels[indices]}

    def _all_rows(self) -> list[Any]:
        """All splits in one list; `_places` says where each begins."""
        parts = {"train": self.splits.train, "dev": self.splits.dev, "test": self.splits.test or ()}
        rows: list[Any] = []
        for name, part in {**parts, **self.splits.others}.items():
            self._places[name] = len(rows)
            rows.extend(part)
        return rows

    def _dtype(self, tokens: Ragged) -> torch.dtype:
        """Of the frozen part's forward passes and their results."""
        chosen = self.recipe.runtime.bf16
        if chosen != "auto":
            return torch.bfloat16 if chosen else torch.float32
        ids, mask = tokens.padded(torch.arange(min(64, len(tokens))))
        return faster_dtype(lambda: self._classifier(ids, mask.long()))


def _texts(rows: Sequence[Any]) -> list[str]:
    if any(len(row.texts) != 1 for row in rows):
        raise ValueError("model.kind = mean_pooled takes single texts, not pairs; use encoder_head")
    return [row.texts[0] for row in rows]


def _logits(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(**{name: value for name, value in batch.items() if name != "labels"}).float()


def _classifier(settings: ModelSection, classes: int) -> EncoderClassifier:
    encoder: Any = encoders.load_encoder(locate(settings.source).name)
    if settings.architecture == "roberta":
        encoder = bert_as_roberta(encoder)
    classifier = EncoderClassifier(encoder, classes)
    nn.init.zeros_(classifier.head.weight)
    nn.init.zeros_(classifier.head.bias)
    for module in classifier.modules():
        if isinstance(module, nn.Dropout):
            module.p = settings.dropout
    match settings.trained:
        case "head":
            encoders.train_head(classifier)
        case "last_layers":
            encoders.train_last_layers(classifier, settings.layers or 1)
        case "bitfit":
            encoders.train_biases(classifier, settings.layers)
        case _:
            encoders.train_everything(classifier)
    return classifier


def _is_whole(settings: ModelSection) -> bool:
    """Whether some trained parameter lies below the layers, so that nothing can be cached."""
    return settings.trained == "full" or (settings.trained == "bitfit" and settings.layers is None)


def _trained_part(classifier: EncoderClassifier, settings: ModelSection) -> nn.Module:
    """What is run in training: all, the last layers with the head, the head."""
    if _is_whole(settings):
        return classifier
    if settings.trained == "head":
        return UpperLayers([], classifier.head)
    return encoders.cut(classifier, settings.layers or 1)[1]


def _features(
    classifier: EncoderClassifier, settings: ModelSection, tokens: Ragged, dtype: torch.dtype, progress: bool
) -> Features:
    """Token ids, or cached outputs of the part that stays as it is."""
    if _is_whole(settings):
        config: Any = classifier.encoder.config
        return TokenFeatures(tokens, int(config.pad_token_id or 0))
    lower, upper = encoders.cut(classifier, settings.layers or 1)
    encoders.check_cut(classifier, lower, upper, tokens)
    hidden = _hidden(classifier, lower, tokens, dtype, progress)
    return compute_means(upper, hidden, dtype=dtype) if settings.trained == "head" else hidden


def _hidden(
    classifier: EncoderClassifier, lower: LowerLayers, tokens: Ragged, dtype: torch.dtype, progress: bool
) -> HiddenFeatures:
    config: Any = classifier.encoder.config
    with progress_bar("frozen layers", shown=progress) as update:
        return compute_hidden(
            lower,
            tokens,
            padding_id=int(config.pad_token_id or 0),
            dtype=dtype,
            progress=lambda done, total: update(done, total, "texts"),
        )
