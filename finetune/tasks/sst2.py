"""SST-2: is a movie review positive? (Socher et al., EMNLP 2013; GLUE.)

Files: `train.tsv`, `dev.tsv`, `test.tsv` with the columns `sentence` and `label` (0 negative, 1 positive), no quoting;
or the whole sentences alone, `sentences_train.tsv` and so on. Hub: `nyu-mll/glue`, configuration `sst2`, whose test
split has no labels and is left out.

Protected unit: a row. GLUE's train.tsv holds 67,349 *phrases* cut from fewer than 7,000 sentences, so that one
sentence, or its author, stands in many rows: a guarantee for one row is weaker for a sentence. In `sst2_sentences`
a row is a whole sentence.
"""

from __future__ import annotations

from .base import ClassificationTask, Prompt
from .labelled import GlueLoader, Labelled

_LABELLED = Labelled(
    text_columns=("sentence",),
    label_column="label",
    spellings={"0": 0, "1": 1, "negative": 0, "positive": 1},
)
_PROMPT = Prompt("{0} It was {mask}.", ("terrible", "great"))

SST2 = ClassificationTask(
    name="sst2",
    labels=("negative", "positive"),
    prompt=_PROMPT,
    protected_unit="one row of train.tsv: a phrase; one sentence of a review stands in many rows",
    loader=GlueLoader(
        "sst2", _LABELLED, ({"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"},), config="sst2"
    ),
)

SST2_SENTENCES = ClassificationTask(
    name="sst2_sentences",
    labels=("negative", "positive"),
    prompt=_PROMPT,
    protected_unit="one row: a whole sentence of a review",
    loader=GlueLoader(
        "sst2_sentences",
        _LABELLED,
        ({split: f"sentences_{split}.tsv" for split in ("train", "dev", "test")},),
    ),
)
