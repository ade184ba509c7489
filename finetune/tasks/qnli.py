"""QNLI: does the sentence answer the question? (Made by GLUE from SQuAD 1.1.)

Files: `train.tsv`, `dev.tsv` and, as test split, `glue_dev.tsv`, with the columns `question`, `sentence` and `label`
(entailment, not_entailment), no quoting. Hub: `nyu-mll/glue`, configuration `qnli`, whose test split has no labels
and is left out.

Protected unit: a row, which is one pair. A question stands in several rows, one for each candidate sentence.
"""

from __future__ import annotations

from .base import ClassificationTask, Prompt
from .labelled import GlueLoader, Labelled

LABELS = ("entailment", "not_entailment")

QNLI = ClassificationTask(
    name="qnli",
    labels=LABELS,
    prompt=Prompt("{0}? {mask}, {1}", ("Yes", "No"), drop_final_punctuation=True, lower_second=True),
    protected_unit="one row of train.tsv: a pair of question and sentence; a question may stand in several rows",
    loader=GlueLoader(
        "qnli",
        Labelled(
            text_columns=("question", "sentence"),
            label_column="label",
            spellings={label: number for number, label in enumerate(LABELS)},
        ),
        ({"train": "train.tsv", "dev": "dev.tsv", "test": "glue_dev.tsv"},),
        config="qnli",
    ),
)
