"""From a recipe to what every run of it shares: the trained part of the model, its inputs, the labels."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from . import encoder as encoders
from .encoder import EncoderClassifier, LowerLayers, UpperLayers
from .features import Features, HiddenFeatures, TokenFeatures, compute_hidden, compute_means, faster_dtype
from .packages import file_in_package
from .progress import progress_bar
from .ragged import Ragged
from .recipe import DataSettings, ModelSettings, Recipe
from .text_data import LabelledTexts, read_table, split


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What runs of one recipe share; each run trains its own `fresh_model`.

    `features` and `labels` hold the training texts first (`train_count` of them), then the test texts.
    """

    model: nn.Module
    features: Features
    labels: Tensor
    train_count: int
    majority_accuracy: float
    dtype: torch.dtype
    seconds: float
    full_names: Mapping[str, str]
    """The model's trainable parameters by name, and what each is called in an `EncoderClassifier`."""
    data_digest: str
    """Of the training texts, to tell other data. Derived from private data without noise: never in a report."""

    def fresh_model(self) -> nn.Module:
        """A copy of the model with its first weights."""
        return copy.deepcopy(self.model)


def prepare(recipe: Recipe, *, progress: bool = True) -> Prepared:
    """Read the data, load the encoder, compute once what the frozen part of the model says about every text.

    Raises ValueError: a missing package or file, bad columns or labels, data too small for the recipe.
    """
    begin = time.perf_counter()
    train, test = split(_read(recipe.data), test_share=recipe.data.test_share, seed=recipe.data.split_seed)
    _check_size(recipe, len(train))
    source = _encoder_source(recipe.model)
    tokens = encoders.tokenize(source, [*train.texts, *test.texts], max_length=recipe.model.max_length)
    classifier = _classifier(recipe, source)
    dtype = _precision(recipe, classifier, tokens)
    model, features = _split_off_frozen_part(classifier, recipe.model, tokens, dtype, progress)
    majority = max(set(train.labels), key=train.labels.count)
    return Prepared(
        model=model,
        features=features,
        labels=torch.tensor([*train.labels, *test.labels]),
        train_count=len(train),
        majority_accuracy=test.labels.count(majority) / len(test),
        dtype=dtype,
        seconds=time.perf_counter() - begin,
        full_names=_full_names(model, classifier),
        data_digest=hashlib.sha256(repr((train.texts, train.labels)).encode()).hexdigest(),
    )


def trainable_dimension(recipe: Recipe) -> int:
    """The number of parameters that the recipe trains: the dimension to calibrate or search a noise for."""
    classifier = _classifier(recipe, _encoder_source(recipe.model))
    return sum(parameter.numel() for parameter in classifier.parameters() if parameter.requires_grad)


def _classifier(recipe: Recipe, source: str | Path) -> EncoderClassifier:
    """The encoder with a head that starts at zero: all classes alike, and no seed stands between two runs."""
    classifier = EncoderClassifier(encoders.load_encoder(source), len(recipe.data.labels))
    nn.init.zeros_(classifier.head.weight)
    nn.init.zeros_(classifier.head.bias)
    for module in classifier.modules():
        if isinstance(module, nn.Dropout):
            module.p = recipe.model.dropout
    _choose_trained_part(classifier, recipe.model)
    return classifier


def _read(data: DataSettings) -> LabelledTexts:
    if data.path is not None:
        path = Path(data.path)
    else:
        assert data.package is not None
        assert data.file is not None
        path = file_in_package(data.package, data.file)
    return read_table(
        path,
        text_column=data.text_column,
        label_column=data.label_column,
        label_names=data.labels,
        encoding=data.encoding,
        delimiter=data.delimiter,
        ignored_labels=data.ignored_labels,
    )


def _check_size(recipe: Recipe, count: int) -> None:
    """A divisor far from the expected batch size is a recipe for other data."""
    expected = recipe.privacy.sampling_rate * count
    if not 0.5 * recipe.privacy.divisor <= expected <= 2 * recipe.privacy.divisor:
        raise ValueError(
            f"expected privacy.divisor near the expected batch size, got divisor={recipe.privacy.divisor:g} and "
            f"{expected:g} = {recipe.privacy.sampling_rate:g} · {count} training texts"
        )


def _encoder_source(model: ModelSettings) -> str | Path:
    if model.name is not None:
        return model.name
    assert model.package is not None
    assert model.folder is not None
    return file_in_package(model.package, model.folder)


def _choose_trained_part(classifier: EncoderClassifier, model: ModelSettings) -> None:
    match model.train:
        case "head":
            encoders.train_head(classifier)
        case "last_layers":
            assert model.layers is not None
            encoders.train_last_layers(classifier, model.layers)
        case "bitfit":
            encoders.train_biases(classifier, model.layers)
        case "full":
            encoders.train_everything(classifier)


def _precision(recipe: Recipe, classifier: EncoderClassifier, tokens: Ragged) -> torch.dtype:
    if recipe.runtime.precision != "auto":
        return torch.float32 if recipe.runtime.precision == "float32" else torch.bfloat16
    ids, mask = tokens.padded(torch.arange(min(64, len(tokens))))
    return faster_dtype(lambda: classifier(ids, mask.long()))


def _split_off_frozen_part(
    classifier: EncoderClassifier, model: ModelSettings, tokens: Ragged, dtype: torch.dtype, progress: bool
) -> tuple[nn.Module, Features]:
    """The model to train and its inputs: token ids, or cached outputs of the part that stays as it is."""
    padding_id = int(getattr(classifier.encoder.config, "pad_token_id", None) or 0)
    if model.train == "full" or (model.train == "bitfit" and model.layers is None):
        return classifier, TokenFeatures(tokens, padding_id)
    lower, upper = encoders.cut(classifier, model.layers or 1)
    encoders.check_cut(classifier, lower, upper, tokens)
    hidden = _hidden(lower, tokens, padding_id, dtype, progress)
    if model.train == "head":
        return UpperLayers([], classifier.head), compute_means(upper, hidden, dtype=dtype)
    return upper, hidden


def _full_names(model: nn.Module, classifier: EncoderClassifier) -> dict[str, str]:
    full = {id(parameter): name for name, parameter in classifier.named_parameters()}
    return {name: full[id(parameter)] for name, parameter in model.named_parameters() if parameter.requires_grad}


def _hidden(lower: LowerLayers, tokens: Ragged, padding_id: int, dtype: torch.dtype, progress: bool) -> HiddenFeatures:
    with progress_bar("frozen layers", shown=progress) as update:
        return compute_hidden(
            lower,
            tokens,
            padding_id=padding_id,
            dtype=dtype,
            progress=lambda done, total: update(done, total, "texts"),
        )
