"""MNLI: does the premise entail the hypothesis? (Williams et al., NAACL 2018; GLUE.)

Files: `train.tsv` and `dev.tsv`, or `dev_matched.tsv` and `dev_mismatched.tsv`, with the columns `premise`,
`hypothesis` and `label` (entailment, neutral, contradiction), no quoting. Hub: `nyu-mll/glue`, configuration `mnli`,
whose test splits have no labels and are left out.

`Splits.dev` is the matched part (the genres of the training set), `Splits.others["dev_mismatched"]` the other one;
the accuracy of each is reported on its own.

Protected unit: a row, which is one pair. A premise stands in about three rows, one for each label.
"""

from __future__ import annotations

from .base import ClassificationTask, Prompt
from .labelled import GlueLoader, Labelled

LABELS = ("entailment", "neutral", "contradiction")

MNLI = ClassificationTask(
    name="mnli",
    labels=LABELS,
    prompt=Prompt("{0}? {mask}, {1}", ("Yes", "Maybe", "No"), drop_final_punctuation=True, lower_second=True),
    protected_unit="one row of train.tsv: a pair of premise and hypothesis; a premise stands in about three rows",
    loader=GlueLoader(
        "mnli",
        Labelled(
            text_columns=("premise", "hypothesis"),
            label_column="label",
            spellings={label: number for number, label in enumerate(LABELS)},
        ),
        (
            {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"},
            {"train": "train.tsv", "dev": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"},
        ),
        config="mnli",
        hub_splits={
            "train": "train",
            "dev": "validation_matched",
            "dev_mismatched": "validation_mismatched",
            "test": "test_matched",
            "test_mismatched": "test_mismatched",
        },
    ),
)
