"""QQP: do two questions ask the same? (Quora Question Pairs; GLUE.) Accuracy, and F1 of "duplicate".

Files: `train.tsv` and `dev.tsv` with the columns `question1`, `question2` and `label` (0, or 1 for duplicates), no
quoting. Hub: `nyu-mll/glue`, configuration `qqp`, whose test split has no labels and is left out.

Protected unit: a row, which is one pair. A question, and the person who asked it, may stand in many pairs.
"""

from __future__ import annotations

from .base import ClassificationTask, Prompt
from .labelled import GlueLoader, Labelled

QQP = ClassificationTask(
    name="qqp",
    labels=("not_duplicate", "duplicate"),
    prompt=Prompt("{0} {mask}, {1}", ("No", "Yes"), drop_final_punctuation=True, lower_second=True),
    protected_unit="one row of train.tsv: a pair of questions; a question may stand in many rows",
    positive_label=1,
    loader=GlueLoader(
        "qqp",
        Labelled(
            text_columns=("question1", "question2"),
            label_column="label",
            spellings={"0": 0, "1": 1, "not_duplicate": 0, "duplicate": 1},
        ),
        ({"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"},),
        config="qqp",
    ),
)
