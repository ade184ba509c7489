"""What a task is: examples, splits, where the data come from, prompts, generation settings. Text and numbers only."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, final

from . import metrics

DEFAULT_HUB = "default"
"""`DataSource(hub=DEFAULT_HUB)` stands for the hub data set that the task itself names."""


@final
@dataclasses.dataclass(frozen=True)
class ClassificationExample:
    """One labelled row: one text, or a pair; `label` is an index into the task's `labels`."""

    texts: tuple[str, ...]
    label: int


@final
@dataclasses.dataclass(frozen=True)
class GenerationExample:
    """One row of a generation task.

    For training, one row per (source, target) pair, with `references == (target,)`: a source with eight texts is
    eight rows. For evaluation, one row per distinct source with all its references; `target` is the first of them.
    """

    source: str
    target: str
    references: tuple[str, ...]


Example = TypeVar("Example", ClassificationExample, GenerationExample)


@final
@dataclasses.dataclass(frozen=True)
class Splits(Generic[Example]):
    """The rows of a task. `others` holds further evaluation splits by name, such as `dev_mismatched` of MNLI.

    `notices` says in words what was left out while reading, and why; empty if nothing was. They hold counts of the
    data, which are no more public than the data.
    """

    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...] | None = None
    others: Mapping[str, tuple[Example, ...]] = dataclasses.field(default_factory=dict)
    notices: tuple[str, ...] = ()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource:
    """Where a task's data come from: a folder (for a table of one's own also a file), or a hub name.

    Raises ValueError unless exactly one of `path` and `hub` is given, or if another setting is out of range.
    """

    path: str | Path | None = None
    hub: str | None = None
    """Name on the hub, or a local folder that `datasets.load_dataset` reads; "default": the task's own name."""
    config: str | None = None
    """Configuration of the hub data set, if not the task's own."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    encoding: str = "utf-8"
    """Encoding of local files. A byte-order mark is accepted with utf-8."""
    dev_share: float | None = None
    """Where only one of the training and dev files exists: this share of its rows, in expectation, becomes dev.
    A row's side depends on the seed and its own text alone, so that one row more or less moves no other row."""
    split_seed: int = 0
    """Public seed of that split."""
    empty_texts: Literal["refuse", "keep", "drop"] = "refuse"
    """What to do with a row that has an empty text. Dropped rows are counted in `Splits.notices`."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.hub is None):
            raise ValueError(
                f"expected either path (a folder) or hub (a name, or {DEFAULT_HUB!r} for the task's own data set), "
                f"got path={self.path!r} and hub={self.hub!r}"
            )
        if self.path is not None and (self.config is not None or self.revision is not None):
            raise ValueError("config and revision belong to hub data: leave them out with path")
        if self.dev_share is not None and not 0 < self.dev_share < 1:
            raise ValueError(f"expected 0 < dev_share < 1, got dev_share={self.dev_share!r}")
        if self.empty_texts not in ("refuse", "keep", "drop"):
            raise ValueError(f"expected empty_texts to be refuse, keep or drop, got {self.empty_texts!r}")


@final
@dataclasses.dataclass(frozen=True)
class Prompt:
    """A cloze prompt for the masked-word objective: `template` with {0}, for pairs {1}, and {mask}.

    `label_words` holds one word per label. The word follows a space: for a byte-level tokenizer its token is that of
    `" " + word`. Source: the manual prompts of LM-BFF (Gao et al., arXiv 2012.15723), as used by arXiv 2110.05679.

    Raises ValueError if a field is missing, unknown or twice there, or two labels share a word.
    """

    template: str
    label_words: tuple[str, ...]
    _: dataclasses.KW_ONLY
    drop_final_punctuation: bool = False
    """Take one punctuation mark off the end of the first text, as the template brings its own."""
    lower_second: bool = False
    """Write the first letter of the second text small, as it goes on a sentence."""

    def __post_init__(self) -> None:
        fields = [name for _, name, _, _ in string.Formatter().parse(self.template) if name is not None]
        if sorted(fields) not in (["0", "mask"], ["0", "1", "mask"]):
            raise ValueError(
                f"expected a template with {{0}}, {{mask}} and for pairs {{1}}, each once, got {self.template!r}"
            )
        if len(set(self.label_words)) != len(self.label_words) or not all(word.strip() for word in self.label_words):
            raise ValueError(f"expected one distinct label word per label, got {self.label_words!r}")

    @property
    def arity(self) -> int:
        """How many texts the template takes: 1 or 2."""
        return 2 if "{1}" in self.template else 1

    def prepared(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The texts as they stand in the prompt. Raises ValueError if their number is not `arity`."""
        if len(texts) != self.arity:
            raise ValueError(f"expected {self.arity} texts for the template {self.template!r}, got {len(texts)}")
        first, *rest = texts
        if self.drop_final_punctuation and first[-1:] in tuple(string.punctuation):
            first = first[:-1]
        if self.lower_second:
            rest = [text[:1].lower() + text[1:] for text in rest]
        return (first, *rest)

    def fill(self, texts: Sequence[str], mask: str) -> str:
        """The whole prompt, with the tokenizer's `mask` in its place."""
        return self.template.format(*self.prepared(texts), mask=mask)

    def around_mask(self, texts: Sequence[str]) -> tuple[str, str]:
        """The prompt before the mask, without the space at its end, and after it.

        To put the mask in by its number: a text that holds the letters of the mask token adds no second mask.
        """
        before, after = self.template.split("{mask}")
        prepared = self.prepared(texts)
        return before.format(*prepared).rstrip(" "), after.format(*prepared)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How texts are generated, in the names of `transformers.GenerationConfig`.

    The defaults are those of the table-to-text experiments of arXiv 2110.05679 (private-transformers,
    `examples/table2text/decoding_utils.py`): beam search with 5 beams, at most 100 new tokens, no sampling, no line
    breaks. Its `min_length=5` counts the prompt as well and never binds, so it is left out.
    """

    num_beams: int = 5
    max_new_tokens: int = 100
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    forbidden_texts: tuple[str, ...] = ("\n", "\n\n")
    """Texts that are never generated (to be encoded as `bad_words_ids`)."""

    def __post_init__(self) -> None:
        for name, least in (("num_beams", 1), ("max_new_tokens", 1), ("no_repeat_ngram_size", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} >= {least}, got {name}={getattr(self, name)!r}")
        if not self.repetition_penalty > 0:
            raise ValueError(f"expected repetition_penalty > 0, got {self.repetition_penalty!r}")

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `generate`, without `forbidden_texts`, which need a tokenizer."""
        values = dataclasses.asdict(self)
        del values["forbidden_texts"]
        return {**values, "do_sample": False}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationTask:
    """Texts to one of `labels`. `prompt` is None if the masked-word objective has no words to predict."""

    name: str
    labels: tuple[str, ...]
    prompt: Prompt | None
    protected_unit: str
    """What one row is, which is what the guarantee protects."""
    loader: Callable[[DataSource], Splits[ClassificationExample]] = dataclasses.field(repr=False)
    positive_label: int | None = None
    """For tasks that report F1: the label it is about."""

    def __post_init__(self) -> None:
        if self.prompt is not None and len(self.prompt.label_words) != len(self.labels):
            raise ValueError(
                f"expected {len(self.labels)} label words for the labels {', '.join(self.labels)}, "
                f"got {self.prompt.label_words!r}"
            )

    def load(self, source: DataSource) -> Splits[ClassificationExample]:
        """Read and check all splits. Raises ValueError naming the file, the row and the rule."""
        return self.loader(source)

    def metrics(self, predictions: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
        """Accuracy, and F1 if the task has a positive label; shares in [0, 1].

        Raises ValueError if the lengths differ, are zero, or a class index is out of range.
        """
        metrics.check_classes(predictions, labels, len(self.labels))
        found = {"accuracy": metrics.accuracy(predictions, labels)}
        if self.positive_label is not None:
            found["f1"] = metrics.f1(predictions, labels, positive=self.positive_label)
        return found


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationTask:
    """A source text to a target text. Perplexity is the model's to compute; the rest is here."""

    name: str
    protected_unit: str
    """What one row is, which is what the guarantee protects."""
    loader: Callable[[DataSource], Splits[GenerationExample]] = dataclasses.field(repr=False)
    generation: GenerationSettings = GenerationSettings()

    def load(self, source: DataSource) -> Splits[GenerationExample]:
        """Read and check all splits. Raises ValueError naming the file, the row and the rule."""
        return self.loader(source)

    def metrics(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """BLEU, ROUGE-L, NIST and METEOR against all references; see `metrics` for definitions and units.

        A metric that cannot be computed here is left out with a logged notice. Raises ValueError if the lengths
        differ or are zero, or a prediction has no reference; ImportError naming the extra `tasks` if it is missing.
        """
        return metrics.text_metrics(predictions, references)


Task = ClassificationTask | GenerationTask
