"""Metrics on predictions. Classification: shares in [0, 1]. Texts: each with all references of its source.

| name | definition | unit |
|---|---|---|
| accuracy | share of equal labels | [0, 1] |
| f1 | 2TP / (2TP + FP + FN) of the positive label, 0 if there is none | [0, 1] |
| bleu | corpus BLEU of sacrebleu: 4-grams, tokenizer 13a, case kept, exponential smoothing | [0, 100] |
| rouge_l | mean over predictions of the best F1 over the references, by rouge-score without stemmer | [0, 1] |
| nist | corpus NIST of nltk, 5-grams, on the same 13a tokens | >= 0 |
| meteor | mean of nltk's METEOR, the best over the references; only where nltk's WordNet is installed | [0, 1] |

rouge-score compares ASCII letters and digits in small letters, and nothing else: "Café" counts as "caf".
The papers score E2E by the scripts of its challenge, whose BLEU and NIST (mteval-v13a), ROUGE-L (recall weighted
1.2 times) and METEOR (version 1.5) differ somewhat from these.
"""

from __future__ import annotations

import functools
import importlib
import logging
import statistics
from collections.abc import Sequence
from typing import Any

_LOG = logging.getLogger(__name__)


def check_classes(predictions: Sequence[int], labels: Sequence[int], classes: int) -> None:
    """Raises ValueError if the lengths differ or are zero, or an index lies outside 0..classes-1."""
    _check_lengths(len(predictions), len(labels), "labels")
    for name, values in (("prediction", predictions), ("label", labels)):
        for row, value in enumerate(values):
            if not 0 <= value < classes:
                raise ValueError(f"expected every {name} to be a class 0..{classes - 1}, got {value} in row {row}")


def accuracy(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Share of predictions that equal their label."""
    return sum(int(p) == int(y) for p, y in zip(predictions, labels, strict=True)) / len(labels)


def f1(predictions: Sequence[int], labels: Sequence[int], *, positive: int) -> float:
    """Harmonic mean of precision and recall of the `positive` class; 0 if it is neither predicted nor there."""
    pairs = [(int(p) == positive, int(y) == positive) for p, y in zip(predictions, labels, strict=True)]
    hits = sum(p and y for p, y in pairs)
    misses = sum(p != y for p, y in pairs)
    return 2 * hits / (2 * hits + misses) if hits else 0.0


def text_metrics(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """All text metrics that can be computed here. Raises ValueError or ImportError as `GenerationTask.metrics`."""
    _check_lengths(len(predictions), len(references), "reference lists")
    for row, texts in enumerate(references):
        if isinstance(texts, str) or not texts:
            raise ValueError(
                f"expected a non-empty list of references for every prediction, got {texts!r} in row {row}"
            )
    found = {"bleu": bleu(predictions, references), "rouge_l": rouge_l(predictions, references)}
    for name, compute in (("nist", nist), ("meteor", meteor)):
        value = compute(predictions, references)
        if value is not None:
            found[name] = value
    return found


def bleu(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU in [0, 100] by sacrebleu; a prediction may have any number of references."""
    most = max(len(texts) for texts in references)
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    return float(_module("sacrebleu").corpus_bleu(list(predictions), streams, force=True).score)


def rouge_l(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean over predictions of the largest ROUGE-L F1 over the references, in [0, 1], by rouge-score."""
    scorer = _module("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=False)
    return statistics.fmean(
        scorer.score_multi(list(texts), prediction)["rougeL"].fmeasure
        for prediction, texts in zip(predictions, references, strict=True)
    )


def nist(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float | None:
    """Corpus NIST up to 5-grams by nltk; None, with a notice, where all predictions or references are too short."""
    corpus_nist = _module("nltk.translate.nist_score").corpus_nist
    tokens = [_tokens(prediction) for prediction in predictions]
    try:
        return float(corpus_nist([[_tokens(text) for text in texts] for texts in references], tokens, n=5))
    except ZeroDivisionError:  # no prediction has a 5-gram, or no reference a word
        _notice("NIST is left out: no prediction has five words, its longest n-gram, or no reference has any")
        return None


def meteor(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float | None:
    """Mean METEOR by nltk, the best over the references; None, with a notice, without nltk's WordNet data."""
    if (wordnet := _wordnet()) is None:
        _notice("METEOR is left out: nltk has no WordNet data here; get it with `python -m nltk.downloader wordnet`")
        return None
    meteor_score = _module("nltk.translate.meteor_score").meteor_score
    return statistics.fmean(
        meteor_score([_tokens(text) for text in texts], _tokens(prediction), wordnet=wordnet)
        for prediction, texts in zip(predictions, references, strict=True)
    )


def _tokens(text: str) -> list[str]:
    return _tokenizer()(text).split()


@functools.cache
def _tokenizer() -> Any:
    return _module("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()


def _wordnet() -> Any:
    """The WordNet reader of nltk, or None if its data are not installed."""
    wordnet = _module("nltk.corpus").wordnet
    try:
        wordnet.ensure_loaded()
    except LookupError:
        return None
    return wordnet


@functools.cache
def _notice(text: str) -> None:
    """Log once per process."""
    _LOG.warning(text)


def _check_lengths(predictions: int, others: int, name: str) -> None:
    if predictions != others or predictions == 0:
        raise ValueError(f"expected as many predictions as {name}, at least one, got {predictions} and {others}")


def _module(name: str) -> Any:
    """Import a module of the extra `tasks`, or raise ImportError with the pip command."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0].replace("_", "-")
        raise ImportError(f"text metrics need {package}: pip install 'optnoise[tasks]'") from error
