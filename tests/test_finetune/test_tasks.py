"""Tasks: every file layout, every refusal, and metrics against known values.

Tests that count real rows need the environment variable OPTNOISE_DATA, a folder with one folder per data set.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from pathlib import Path

import pytest
from optnoise.finetune.tasks import (
    DART,
    DEFAULT_HUB,
    E2E,
    MNLI,
    QNLI,
    QQP,
    SST2,
    SST2_SENTENCES,
    TASKS,
    WEBNLG,
    ClassificationExample,
    ClassificationTask,
    DataSource,
    GenerationExample,
    GenerationSettings,
    GenerationTask,
    Prompt,
    delimited_classification,
    delimited_generation,
    find_task,
    metrics,
)
from optnoise.finetune.tasks.e2e import linearised_attributes
from optnoise.finetune.tasks.loading import is_held_out

GLUE = {
    "sst2": (("sentence",), ("0", "1")),
    "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment")),
    "qqp": (("question1", "question2"), ("0", "1")),
}


def write(folder: Path, **files: str) -> DataSource:
    """Files by name, with `__` for the dot; the source that points at them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_bytes(text.encode())
    return DataSource(path=folder)


def table(columns: tuple[str, ...], *rows: tuple[str, ...], between: str = "\t") -> str:
    return "".join(between.join(row) + "\n" for row in (columns, *rows))


def glue_files(task: str) -> tuple[str, str]:
    """Train and dev tables of one row per label, in the columns of the task."""
    columns, labels = GLUE[task]
    rows = [(*(f'"{c} {i}' for c in columns), label) for i, label in enumerate(labels)]
    return table((*columns, "label"), *rows), table((*columns, "label"), rows[-1])


# -- classification files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GLUE)
def test_glue_files_are_read_by_column_name_without_quoting(tmp_path, name):
    train, dev = glue_files(name)
    task = find_task(name)
    assert isinstance(task, ClassificationTask)
    splits = task.load(write(tmp_path, train__tsv=train, dev__tsv=dev))
    columns, labels = GLUE[name]
    assert [example.label for example in splits.train] == list(range(len(labels))) == list(range(len(task.labels)))
    assert splits.train[1].texts == tuple(f'"{column} 1' for column in columns)
    assert (len(splits.dev), splits.test, splits.others, splits.notices) == (1, None, {}, ())


def test_columns_may_stand_in_any_order_beside_others_with_windows_lines_and_a_byte_order_mark(tmp_path):
    train = "\ufefflabel\tid\tsentence\r\n1\t7\tcafé  \r\n\r\n0\t8\tbad\r\n"
    splits = SST2.load(write(tmp_path, train__tsv=train, dev__tsv=train))
    assert splits.train == (ClassificationExample(("café",), 1), ClassificationExample(("bad",), 0))


def test_sst2_knows_phrases_and_whole_sentences_apart(tmp_path):
    phrases, sentences = (table(("sentence", "label"), (text, "1")) for text in ("a phrase", "a whole sentence ."))
    write(tmp_path, train__tsv=phrases, dev__tsv=phrases, test__tsv=phrases)
    source = write(tmp_path, sentences_train__tsv=sentences, sentences_dev__tsv=sentences)
    assert SST2.load(source).train[0].texts == ("a phrase",)
    assert len(SST2.load(source).test or ()) == 1
    assert SST2_SENTENCES.load(source).train[0].texts == ("a whole sentence .",)
    assert "phrase" in SST2.protected_unit
    assert "whole sentence" in SST2_SENTENCES.protected_unit


def test_mnli_reads_matched_and_mismatched_dev_files(tmp_path):
    train, dev = glue_files("mnli")
    splits = MNLI.load(write(tmp_path, train__tsv=train, dev_matched__tsv=dev, dev_mismatched__tsv=train))
    assert (len(splits.dev), len(splits.others["dev_mismatched"])) == (1, 3)


def test_qnli_tests_on_the_whole_glue_dev_set_if_it_is_there(tmp_path):
    train, dev = glue_files("qnli")
    assert len(QNLI.load(write(tmp_path, train__tsv=train, dev__tsv=dev, glue_dev__tsv=train)).test or ()) == 2


def test_a_missing_folder_or_file_names_the_path_and_the_layout(tmp_path):
    with pytest.raises(ValueError, match=r"mnli: .*train\.tsv and dev_matched\.tsv; got '/nowhere'"):
        MNLI.load(DataSource(path="/nowhere"))
    with pytest.raises(ValueError, match=r"sst2: expected train\.tsv and dev\.tsv in .*found neither"):
        SST2.load(DataSource(path=tmp_path))
    train, _ = glue_files("sst2")
    source = write(tmp_path, train__tsv=train)
    with pytest.raises(ValueError, match=r"has no dev rows .*or give dev_share"):
        SST2.load(source)
    with pytest.raises(ValueError, match="expected path to be a folder with"):
        SST2.load(DataSource(path=tmp_path / "train.tsv"))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("text\tlabel\nfine\t1\n", r"train\.tsv: expected the columns sentence, label, got no column 'sentence'"),
        ("sentence\tlabel\tlabel\na\t1\t1\n", r"got 2 times the column 'label'"),
        ("", r"train\.tsv: .* got no column 'sentence' among: none"),
        ("sentence\tlabel\n", r"train\.tsv' has no rows"),
        ("sentence\tlabel\na\t1\nb\t2\n", r"train\.tsv, line 3: expected label to be one of 0, 1, .*got '2'"),
        ("sentence\tlabel\na\t1\n\t0\n", r"train\.tsv, line 3: sentence is empty; give empty_texts"),
        ("sentence\tlabel\na\t1\nb\n", r"train\.tsv, line 3: expected 2 fields as in the header, got 1"),
        ("sentence\tlabel\na\tb\t1\n", r"train\.tsv, line 2: expected 2 fields as in the header, got 3"),
    ],
)
def test_faulty_tables_are_refused_with_file_and_line(tmp_path, train, message):
    with pytest.raises(ValueError, match=message):
        SST2.load(write(tmp_path, train__tsv=train, dev__tsv=glue_files("sst2")[1]))


def test_empty_texts_are_kept_or_dropped_only_on_demand(tmp_path):
    train = table(("question1", "question2", "label"), ("a?", "", "0"), ("a?", "b?", "1"))
    write(tmp_path, train__tsv=train, dev__tsv=glue_files("qqp")[1])
    kept = QQP.load(DataSource(path=tmp_path, empty_texts="keep"))
    assert [example.texts for example in kept.train] == [("a?", ""), ("a?", "b?")]
    dropped = QQP.load(DataSource(path=tmp_path, empty_texts="drop"))
    assert [example.texts for example in dropped.train] == [("a?", "b?")]
    assert dropped.notices == (f"{tmp_path / 'train.tsv'}: left out 1 rows with an empty text",)


def test_encodings(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_bytes("sentence\tlabel\ncafé\t1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"train\.tsv' is not in encoding='utf-8' .* give its encoding"):
        SST2.load(DataSource(path=tmp_path))
    with pytest.raises(ValueError, match="unknown encoding='latin-x'"):
        SST2.load(DataSource(path=tmp_path, encoding="latin-x"))
    assert SST2.load(DataSource(path=tmp_path, encoding="latin-1")).dev[0].texts == ("café",)


# -- generation files -------------------------------------------------------------------------------------------

BLUE = "name : Blue Spice | Type : coffee shop"


def test_e2e_training_rows_are_pairs_and_evaluation_rows_are_meanings(tmp_path):
    lines = f"{BLUE}||One . \n{BLUE}||Two . \nname : X||Three . \n"
    splits = E2E.load(write(tmp_path, src1_train__txt=lines, src1_valid__txt=lines, src1_test__txt=lines))
    assert splits.train == (
        GenerationExample(BLUE, "One .", ("One .",)),
        GenerationExample(BLUE, "Two .", ("Two .",)),
        GenerationExample("name : X", "Three .", ("Three .",)),
    )
    assert splits.dev == splits.test
    assert splits.dev == (
        GenerationExample(BLUE, "One .", ("One .", "Two .")),
        GenerationExample("name : X", "Three .", ("Three .",)),
    )


def test_e2e_reads_the_original_csv_into_the_same_form(tmp_path):
    csv = 'mr,ref\n"name[Blue Spice], eatType[coffee shop]","A ""fine"" shop,\nby the river."\n'
    splits = E2E.load(write(tmp_path, trainset__csv=csv, devset__csv=csv, testset_w_refs__csv=csv))
    text = 'A "fine" shop,\nby the river.'
    assert splits.train == (GenerationExample(BLUE, text, (text,)),)
    assert splits.train == splits.dev == splits.test


def test_e2e_prefers_the_form_of_which_the_training_file_is_there(tmp_path):
    csv = "mr,ref\nname[A],text\n"
    source = write(tmp_path, trainset__csv=csv, devset__csv=csv, src1_valid__txt="name : B||text\n")
    assert E2E.load(source).dev[0].source == "name : A"


def test_e2e_attribute_names_become_those_of_the_papers():
    meaning = "name[A, B], priceRange[£20-25], customer rating[5 out of 5], familyFriendly[no], near[C]"
    assert linearised_attributes("here", meaning) == (
        "name : A, B | price : £20-25 | customer rating : 5 out of 5 | family friendly : no | near : C"
    )
    with pytest.raises(ValueError, match="here: expected a meaning representation"):
        linearised_attributes("here", "name[A, food")
    for fault in ("name, food[x]", "name[A] food[B]", " [A]", "name[A]]", "name"):
        with pytest.raises(ValueError, match="here: expected a meaning representation"):
            linearised_attributes("here", fault)


def test_faulty_e2e_lines_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"src1_train\.txt, line 2: expected 'attributes\|\|text', got 1 parts"):
        E2E.load(write(tmp_path, src1_train__txt="a : b||c\na : b c\n", src1_valid__txt="a : b||c\n"))
    with pytest.raises(ValueError, match=r"line 1: the target is empty"):
        E2E.load(write(tmp_path, src1_train__txt="a : b|| \n", src1_valid__txt="a : b||c\n"))


def dart_entry(subject: str, *texts: str) -> dict:
    return {"tripleset": [[subject, "JOINED", "1973"]], "annotations": [{"source": "s", "text": t} for t in texts]}


def test_dart_files(tmp_path):
    entries = json.dumps([dart_entry("A", "x", "y"), dart_entry("B", "z", " "), dart_entry("A", "w"), dart_entry("C")])
    names = {f"dart-v1.1.1-full-{split}__json": entries for split in ("train", "dev")}
    splits = DART.load(write(tmp_path, **names))
    assert [(row.source, row.target) for row in splits.train] == [
        ("A : joined : 1973", "x"),
        ("A : joined : 1973", "y"),
        ("B : joined : 1973", "z"),
        ("A : joined : 1973", "w"),
    ]
    assert [row.references for row in splits.dev] == [("x", "y", "w"), ("z",)]
    assert [notice.partition(": ")[2] for notice in splits.notices[:2]] == [
        "left out 1 empty texts",
        "left out 1 entries without a text",
    ]


def test_dart_without_its_training_file_splits_the_dev_file_by_triple_set(tmp_path):
    entries = json.dumps([dart_entry(f"S{i}", "x", "y", "z") for i in range(40)])
    source = write(tmp_path, **{"dart-v1.1.1-full-dev__json": entries})
    with pytest.raises(ValueError, match=r"has no train rows .*dart-v1\.1\.1-full-train\.json"):
        DART.load(source)
    splits = DART.load(DataSource(path=tmp_path, dev_share=0.25))
    assert len(splits.train) % 3 == 0
    assert {len(row.references) for row in splits.dev} == {3}
    assert len(splits.train) + 3 * len(splits.dev) == 120
    assert not {row.source for row in splits.train} & {row.source for row in splits.dev}
    assert "no train rows" in splits.notices[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"dev\.json: not JSON"),
        ("{}", r"expected a JSON list of objects, got dict"),
        ("[1]", r"entry 1: expected a JSON object, got int"),
        ('[{"tripleset": []}]', r"entry 1: .*got no column 'annotations'"),
        ('[{"tripleset": [], "annotations": []}]', r"entry 1: expected a non-empty list of triples"),
        ('[{"tripleset": [["a", "b"]], "annotations": []}]', r"entry 1: expected triples of three texts"),
        ('[{"tripleset": [["a", "b", "c"]], "annotations": ["x"]}]', r"entry 1: expected annotations to be a list of"),
        ('[{"tripleset": [["a", "b", "c"]], "annotations": [{"text": 1}]}]', r"entry 1: expected a list of texts"),
    ],
)
def test_faulty_dart_files_are_refused_with_the_entry(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        DART.load(write(tmp_path, **{"dart-v1.1.1-full-dev__json": content}))


def webnlg_line(subject: str, *texts: str) -> str:
    return json.dumps({"category": "c", "triples": [[subject, "cityServed", "B_C"]], "texts": texts}) + "\n"


def test_webnlg_files_with_the_unseen_part_of_the_test_set(tmp_path):
    lines = webnlg_line("A", "x", "y") + webnlg_line("D") + webnlg_line("E", "z")
    source = write(
        tmp_path, train__jsonl=lines, dev__jsonl=lines, test__jsonl=lines, test_unseen__jsonl=webnlg_line("E", "z")
    )
    splits = WEBNLG.load(source)
    assert [row.target for row in splits.train] == ["x", "y", "z"]
    assert splits.dev[0] == GenerationExample("A : cityServed : B_C", "x", ("x", "y"))
    assert [len(rows) for rows in (splits.dev, splits.test or (), splits.others["test_unseen"])] == [2, 2, 1]
    assert splits.notices[0] == f"{tmp_path / 'train.jsonl'}: left out 1 entries without a text"


def test_faulty_webnlg_lines_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train\.jsonl, line 2: not a JSON object"):
        WEBNLG.load(write(tmp_path, train__jsonl=webnlg_line("A", "x") + "nonsense\n", dev__jsonl=webnlg_line("A")))
    with pytest.raises(ValueError, match=r"train\.jsonl, line 1: expected texts to be a list"):
        WEBNLG.load(write(tmp_path, train__jsonl='{"triples": [["a", "b", "c"]], "texts": "x"}\n'))


# -- tables of one's own ----------------------------------------------------------------------------------------


def spam(**changes) -> ClassificationTask:
    settings = {"text_columns": ["text"], "label_column": "kind", "labels": ["ham", "spam"]}
    return delimited_classification(**{**settings, **changes})


def test_a_single_table_is_split_by_text_and_ignored_labels_are_counted(tmp_path):
    rows = [(f"text {i // 2}", ("ham", "spam", "unsure")[i % 3]) for i in range(120)]
    path = tmp_path / "mine.csv"
    path.write_text(table(("text", "kind"), *rows, between=","), encoding="utf-8")
    splits = spam(ignored_labels=["unsure"]).load(DataSource(path=path, dev_share=0.3))
    assert len(splits.train) + len(splits.dev) == 80
    assert not {row.texts for row in splits.train} & {row.texts for row in splits.dev}
    assert splits.notices[0] == f"{path}: left out 40 rows with the label unsure"
    with pytest.raises(ValueError, match="give dev_share"):
        spam(ignored_labels=["unsure"]).load(DataSource(path=path))
    with pytest.raises(ValueError, match=r"line 4: expected kind to be one of ham, spam, got 'unsure'"):
        spam().load(DataSource(path=path, dev_share=0.3))


def test_one_row_more_moves_no_other_row_to_the_other_side(tmp_path):
    """Else neighbouring data sets would give training sets that differ in many rows."""
    rows = [(f"text {i}", "ham") for i in range(200)]
    sides = []
    for some in (rows, rows[1:]):
        path = tmp_path / "mine.tsv"
        path.write_text(table(("text", "kind"), *some), encoding="utf-8")
        sides.append(spam().load(DataSource(path=path, dev_share=0.2, split_seed=5)))
    more, fewer = sides
    changed = set(more.train) ^ set(fewer.train) | set(more.dev) ^ set(fewer.dev)
    assert changed == {ClassificationExample(("text 0",), 0)}
    assert 20 <= len(more.dev) <= 60


def test_the_held_out_share_is_as_asked_for():
    held_out = sum(is_held_out(str(i), share=0.1, seed=1) for i in range(20_000))
    assert abs(held_out - 2000) < 5 * math.sqrt(20_000 * 0.09)
    assert any(is_held_out(str(i), share=0.1, seed=1) != is_held_out(str(i), share=0.1, seed=2) for i in range(50))


def test_a_folder_of_tables_in_each_format(tmp_path):
    rows = ('say "hi", you', "there"), ("b", "c")
    tsv = table(("a", "b", "kind"), *((*pair, label) for pair, label in zip(rows, ("spam", "ham"), strict=True)))
    csv = 'a,b,kind\n"say ""hi"", you",there,spam\nb,c,ham\n'
    jsonl = "".join(
        json.dumps({"a": a, "b": b, "kind": label}) + "\n" for (a, b), label in zip(rows, ("spam", "ham"), strict=True)
    )
    task = spam(text_columns=["a", "b"], prompt=Prompt("{0} {mask} {1}", ("no", "yes")), positive_label="spam")
    for suffix, content in (("tsv", tsv), ("csv", csv), ("jsonl", jsonl)):
        files = {f"{split}__{suffix}": content for split in ("train", "dev", "test")}
        splits = task.load(write(tmp_path / suffix, **files))
        assert splits.train == splits.dev == splits.test
        assert splits.train == tuple(ClassificationExample(r, c) for r, c in zip(rows, (1, 0), strict=True))
    assert task.metrics([1, 0], [1, 1]) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}


def test_labels_of_json_lines_may_be_numbers(tmp_path):
    lines = '{"text": "a", "kind": 1}\n{"text": "b", "kind": 0}\n'
    splits = spam(labels=["0", "1"]).load(write(tmp_path, train__jsonl=lines, dev__jsonl=lines))
    assert [row.label for row in splits.train] == [1, 0]
    with pytest.raises(ValueError, match="line 1: expected text to be a text, got 3"):
        spam(labels=["0", "1"]).load(write(tmp_path, train__jsonl='{"text": 3, "kind": 1}\n', dev__jsonl=lines))


def test_other_delimiters_and_broken_quotes(tmp_path):
    content = "text;kind\n'a;spam\nb;ham\n"
    splits = spam(delimiter=";").load(write(tmp_path, train__csv=content, dev__csv=content))
    assert splits.train[0].texts == ("'a",)
    with pytest.raises(ValueError, match=r"train\.csv, line \d: not a delimited table"):
        spam().load(write(tmp_path, train__csv='text,kind\n"a"b,spam\n', dev__csv=content))
    path = tmp_path / "mine.xlsx"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"expected '.*mine\.xlsx' to end in \.csv, \.tsv, \.txt or \.jsonl"):
        spam().load(DataSource(path=path, dev_share=0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["ham"]}, "at least two labels"),
        ({"labels": ["ham", "ham"]}, "labels and ignored_labels to be distinct"),
        ({"ignored_labels": ["ham"]}, "labels and ignored_labels to be distinct"),
        ({"text_columns": ["kind"]}, "text_columns and label_column to be distinct"),
        ({"text_columns": []}, "one text column, or two"),
        ({"text_columns": ["a", "b", "c"]}, "one text column, or two"),
        ({"positive_label": "eggs"}, "positive_label to be one of ham, spam, got 'eggs'"),
        ({"prompt": Prompt("{0} {mask} {1}", ("no", "yes"))}, "a template for 1 texts"),
        ({"prompt": Prompt("{0} {mask}", ("no", "yes", "so"))}, "expected 2 label words"),
        ({"delimiter": "||"}, "a delimiter of one character"),
    ],
)
def test_faulty_settings_of_a_table_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        spam(**changes)


def test_a_table_of_sources_and_targets(tmp_path):
    content = "from\tto\nA\tx\nA\ty\nB\tz\n"
    task = delimited_generation(source_column="from", target_column="to", generation=GenerationSettings(num_beams=2))
    splits = task.load(write(tmp_path, train__tsv=content, dev__tsv=content))
    assert [row.target for row in splits.train] == ["x", "y", "z"]
    assert [row.references for row in splits.dev] == [("x", "y"), ("z",)]
    assert task.generation.num_beams == 2
    with pytest.raises(ValueError, match="expected source_column and target_column to be distinct"):
        delimited_generation(source_column="a", target_column="a")
    with pytest.raises(ValueError, match=r"no hub data set"):
        task.load(DataSource(hub=DEFAULT_HUB))


# -- sources, registry, prompts, settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected either path .* or hub"),
        ({"path": "a", "hub": "b"}, "expected either path .* or hub"),
        ({"path": "a", "config": "b"}, "config and revision belong to hub data"),
        ({"path": "a", "dev_share": 1.0}, "expected 0 < dev_share < 1"),
        ({"path": "a", "empty_texts": "ignore"}, "refuse, keep or drop, got 'ignore'"),
    ],
)
def test_faulty_sources_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DataSource(**settings)


def test_a_share_where_nothing_is_to_be_split_is_refused(tmp_path):
    train, dev = glue_files("sst2")
    write(tmp_path, train__tsv=train, dev__tsv=dev)
    with pytest.raises(ValueError, match="has train and dev rows: leave dev_share out"):
        SST2.load(DataSource(path=tmp_path, dev_share=0.1))
    (tmp_path / "dev.tsv").unlink()
    with pytest.raises(ValueError, match="leaves one side empty"):
        SST2.load(DataSource(path=tmp_path, dev_share=1e-9))


def test_tasks_are_found_by_name():
    assert list(TASKS) == ["sst2", "sst2_sentences", "mnli", "qnli", "qqp", "e2e", "dart", "webnlg"]
    assert all(find_task(name).name == name for name in TASKS)
    assert all(task.protected_unit for task in TASKS.values())
    with pytest.raises(ValueError, match=r"expected one of the tasks sst2, .*, got 'sst-2'.*delimited_classification"):
        find_task("sst-2")


@pytest.mark.parametrize(
    ("task", "texts", "filled", "words"),
    [
        (SST2, ("a fine film .",), "a fine film . It was <mask>.", ("terrible", "great")),
        (MNLI, ("He left.", "She did too"), "He left? <mask>, she did too", ("Yes", "Maybe", "No")),
        (QNLI, ("Who left?", "She {did}"), "Who left? <mask>, she {did}", ("Yes", "No")),
        (QQP, ("Who left?", "Who went?"), "Who left <mask>, who went?", ("No", "Yes")),
    ],
)
def test_prompts_are_those_of_the_paper(task, texts, filled, words):
    assert task.prompt.fill(texts, "<mask>") == filled
    assert task.prompt.label_words == words
    before, after = task.prompt.around_mask(texts)
    assert f"{before} <mask>{after}" == filled


def test_a_text_with_the_mask_token_leaves_one_mask_when_it_is_put_in_by_number():
    before, after = SST2.prompt.around_mask(("a <mask> film",)) if SST2.prompt else ("", "")
    assert (before, after) == ("a <mask> film It was", ".")


def test_faulty_prompts_are_refused():
    for template in ("{0} it was", "{1} {mask}", "{0} {0} {mask}", "{0} {mask} {mask}", "{0} {mask} {2}"):
        with pytest.raises(ValueError, match="expected a template"):
            Prompt(template, ("a", "b"))
    with pytest.raises(ValueError, match="one distinct label word per label"):
        Prompt("{0} {mask}", ("a", "a"))
    with pytest.raises(ValueError, match="expected 1 texts for the template"):
        Prompt("{0} {mask}", ("a", "b")).fill(("one", "two"), "<mask>")


def test_generation_settings_are_arguments_of_the_library():
    from transformers import GenerationConfig

    for task in (E2E, DART, WEBNLG):
        arguments = task.generation.arguments()
        config = GenerationConfig(**arguments)
        assert (config.num_beams, config.max_new_tokens, config.do_sample) == (5, 100, False)
        assert set(arguments) <= set(vars(GenerationConfig()))
    for fault in ({"num_beams": 0}, {"max_new_tokens": 0}, {"no_repeat_ngram_size": -1}, {"repetition_penalty": 0.0}):
        with pytest.raises(ValueError, match=f"expected {next(iter(fault))}"):
            GenerationSettings(**fault)


# -- metrics ----------------------------------------------------------------------------------------------------


def test_f1_by_hand():
    """Predicted 1: rows 0, 1, 2; true 1: rows 0, 3, 4. One hit, two false alarms, two misses: 2 / (2 + 2 + 2)."""
    predictions, labels = [1, 1, 1, 0, 0, 0], [1, 0, 0, 1, 1, 0]
    assert QQP.metrics(predictions, labels) == {"accuracy": pytest.approx(2 / 6), "f1": pytest.approx(1 / 3)}
    assert QQP.metrics([0, 0], [0, 0]) == {"accuracy": 1.0, "f1": 0.0}
    assert QQP.metrics([1, 1], [1, 1]) == {"accuracy": 1.0, "f1": 1.0}


def test_the_other_classification_tasks_report_accuracy_alone():
    assert MNLI.metrics([0, 1, 2, 2], [0, 1, 2, 0]) == {"accuracy": 0.75}


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        ([], [], "at least one"),
        ([0], [0, 1], "as many predictions as labels"),
        ([2], [0], r"every prediction to be a class 0\.\.1, got 2 in row 0"),
        ([0], [-1], r"every label to be a class 0\.\.1, got -1 in row 0"),
    ],
)
def test_faulty_classes_are_refused(predictions, labels, message):
    with pytest.raises(ValueError, match=message):
        SST2.metrics(predictions, labels)


def test_bleu_is_the_number_that_sacrebleu_publishes():
    """The example of its README, with two references each: 48.530827009929865."""
    predictions = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
    references = [
        ["The dog bit the man.", "The dog had bit the man."],
        ["It was not unexpected.", "No one was surprised."],
        ["The man bit him first.", "The man had bitten the dog."],
    ]
    assert metrics.bleu(predictions, references) == pytest.approx(48.530827009929865, abs=1e-9)


def test_bleu_with_uneven_references_is_that_with_one_of_them_repeated():
    predictions = ["the cat sat on the mat today", "a dog ran off to the river"]
    uneven = [["the cat sat on a mat", "a cat sat on the mat today", "no"], ["the dog ran off to a river"]]
    even = [uneven[0], uneven[1] * 3]
    assert metrics.bleu(predictions, uneven) == pytest.approx(metrics.bleu(predictions, even), abs=1e-12)
    assert metrics.bleu(predictions, uneven) != pytest.approx(metrics.bleu(predictions, [uneven[0][:1], uneven[1]]))


def test_rouge_l_takes_the_best_reference():
    """LCS of "the cat sat" and "the cat": 2, precision 2/3, recall 1, F1 4/5; with "dogs": 0. Second row: 1."""
    assert metrics.rouge_l(["the cat sat"], [["dogs", "the cat"]]) == pytest.approx(0.8)
    assert metrics.rouge_l(["the cat sat", "x"], [["dogs", "the cat"], ["x"]]) == pytest.approx(0.9)


def test_nist_by_hand(caplog):
    """Six distinct words, all right: each tells log2(6) bits; no longer n-gram tells more than its words."""
    assert metrics.nist(["a b c d e f"], [["a b c d e f"]]) == pytest.approx(math.log2(6))
    metrics._notice.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert metrics.nist(["a b"], [["a b"]]) is None
    assert "NIST is left out" in caplog.text
    assert metrics.nist(["a b c d e"], [[""]]) is None


class _NoSynonyms:
    @staticmethod
    def synsets(word):
        return []


def test_meteor_by_its_formula(monkeypatch):
    """m matches in one chunk: 1 - 0.5 (1/m)^3; the best of the references counts."""
    monkeypatch.setattr(metrics, "_wordnet", _NoSynonyms)
    assert metrics.meteor(["a cat sat here"], [["nothing", "A cat sat here"]]) == pytest.approx(1 - 0.5 / 4**3)


def test_meteor_is_left_out_with_a_notice_where_its_data_are_missing(monkeypatch, caplog):
    monkeypatch.setattr(metrics, "_wordnet", lambda: None)
    metrics._notice.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = E2E.metrics(["the cat sat on the mat"], [["the cat sat on a mat", "a cat"]])
        E2E.metrics(["the cat sat on the mat"], [["the cat sat on a mat", "a cat"]])
    assert set(found) == {"bleu", "rouge_l", "nist"}
    assert [record.message.partition(":")[0] for record in caplog.records] == ["METEOR is left out"]


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "at least one"),
        (["a"], [["a"], ["b"]], "as many predictions as reference lists"),
        (["a", "b"], [["a"], []], "non-empty list of references .* in row 1"),
        (["a"], ["a"], "non-empty list of references .* in row 0"),
    ],
)
def test_faulty_texts_to_score_are_refused(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        E2E.metrics(predictions, references)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ImportError, match=r"text metrics need sacrebleu: pip install 'optnoise\[tasks\]'"):
        metrics.bleu(["a"], [["a"]])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"datasets: pip install 'optnoise\[tasks\]'"):
        SST2.load(DataSource(hub=DEFAULT_HUB))


# -- the hub ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    """Write data sets as the hub holds them: a README with configurations, and Parquet files."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()

    def save(name: str, config: str, splits: dict, features: dict | None = None) -> str:
        folder = tmp_path / name
        (folder / config).mkdir(parents=True)
        lines = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
        for split, columns in splits.items():
            kinds = None if features is None else datasets.Features(features)
            datasets.Dataset.from_dict(columns, features=kinds).to_parquet(folder / config / f"{split}.parquet")
            lines += [f"  - split: {split}", f"    path: {config}/{split}.parquet"]
        (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
        return str(folder)

    return save


def glue_features(columns: tuple[str, ...], names: list[str]) -> dict:
    import datasets

    return {**{c: datasets.Value("string") for c in columns}, "label": datasets.ClassLabel(names=names)}


@pytest.mark.parametrize("name", GLUE)
def test_glue_from_the_hub(fake_hub, name):
    task = find_task(name)
    assert isinstance(task, ClassificationTask)
    columns, _ = GLUE[name]
    count = len(task.labels)
    labelled = {c: [f"{c} {i}" for i in range(count)] for c in columns} | {"label": list(range(count))}
    hidden = {**labelled, "label": [-1] * count}
    dev = ["validation_matched", "validation_mismatched"] if name == "mnli" else ["validation"]
    test = ["test_matched", "test_mismatched"] if name == "mnli" else ["test"]
    splits = {"train": labelled, **dict.fromkeys(dev, labelled), **dict.fromkeys(test, hidden)}
    hub = fake_hub("glue", name, splits, glue_features(columns, list(task.labels)))
    found = task.load(DataSource(hub=hub))
    assert [row.label for row in found.train] == list(range(count))
    assert found.train[0].texts == tuple(f"{c} 0" for c in columns)
    assert found.test is None
    assert len(found.notices) == len(test)
    assert all("none of its" in notice for notice in found.notices)
    assert set(found.others) == ({"dev_mismatched"} if name == "mnli" else set())


def test_hub_labels_are_taken_by_name_not_by_number(fake_hub):
    rows = {"sentence": ["bad", "good"], "label": [1, 0]}
    hub = fake_hub(
        "x", "sst2", {"train": rows, "validation": rows}, glue_features(("sentence",), ["positive", "negative"])
    )
    assert [row.label for row in SST2.load(DataSource(hub=hub)).train] == [0, 1]


def test_faulty_hub_data_are_refused(fake_hub):
    good = {"sentence": ["a", "b"], "label": [1, 0]}
    kinds = glue_features(("sentence",), ["negative", "positive"])
    half = {"sentence": ["a", "b"], "label": [1, -1]}
    hub = fake_hub("half", "sst2", {"train": half, "validation": good}, kinds)
    with pytest.raises(ValueError, match=r"half, train, row 1: expected label to be one of .*got '-1'"):
        SST2.load(DataSource(hub=hub))
    hub = fake_hub("none", "sst2", {"train": {**good, "label": [-1, -1]}}, kinds)
    with pytest.raises(ValueError, match="neither train nor dev rows"):
        SST2.load(DataSource(hub=hub))
    hub = fake_hub("other", "sst2", {"train": {"text": ["a"], "label": [1]}}, glue_features(("text",), ["a", "b"]))
    with pytest.raises(
        ValueError, match="other, train: expected the columns sentence, label, got no column 'sentence'"
    ):
        SST2.load(DataSource(hub=hub))
    with pytest.raises(ValueError, match=r"cannot load '.*' \(configuration 'sst2'\) with datasets: .* as path"):
        SST2.load(DataSource(hub=str(Path(hub) / "missing")))
    with pytest.raises(ValueError, match="sst2_sentences: there is no hub data set"):
        SST2_SENTENCES.load(DataSource(hub=DEFAULT_HUB))


def test_without_a_network_the_error_names_the_data_set_and_the_way_out():
    with pytest.raises(ValueError, match=r"cannot load 'nyu-mll/glue' \(configuration 'sst2'\).* give a folder"):
        SST2.load(DataSource(hub=DEFAULT_HUB))


E2E_ROWS = {"meaning_representation": ["name[A], food[B]"] * 2, "human_reference": ["x", "y"]}


def test_e2e_from_the_hub(fake_hub):
    hub = fake_hub("e2e", "default", {"train": E2E_ROWS, "validation": E2E_ROWS, "test": E2E_ROWS})
    found = E2E.load(DataSource(hub=hub))
    assert [(row.source, row.target) for row in found.train] == [("name : A | food : B", t) for t in "xy"]
    assert found.test == (GenerationExample("name : A | food : B", "x", ("x", "y")),)


def test_dart_from_the_hub(fake_hub):
    rows = {
        "tripleset": [[["A", "JOINED", "1973"], ["A", "TYPE", "x"]]],
        "annotations": [[{"source": "s", "text": "one"}, {"source": "s", "text": "two"}]],
    }
    found = DART.load(DataSource(hub=fake_hub("dart", "default", {"train": rows, "validation": rows})))
    assert [row.target for row in found.train] == ["one", "two"]
    assert found.dev[0] == GenerationExample("A : joined : 1973 | A : type : x", "one", ("one", "two"))


def test_webnlg_from_the_hub_takes_the_good_texts(fake_hub):
    rows = {
        "modified_triple_sets": [{"mtriple_set": [["A | p | B", "C | q | D"]]}],
        "lex": [{"comment": ["good", "bad", "good"], "text": ["one", "no", "two"]}],
    }
    found = WEBNLG.load(DataSource(hub=fake_hub("web", "webnlg_challenge_2017", {"train": rows, "dev": rows})))
    assert [row.target for row in found.train] == ["one", "two"]
    assert found.dev[0].source == "A : p : B | C : q : D"


@pytest.mark.parametrize(
    ("task", "name", "config", "inputs"),
    [
        (E2E, "GEM/e2e_nlg", "default", {"meaning_representation": "name[A]"}),
        (DART, "GEM/dart", "default", {"tripleset": [["A", "P", "B"]]}),
        (WEBNLG, "GEM/web_nlg", "en", {"input": ["A | p | B"]}),
    ],
)
def test_gem_versions_train_on_targets_and_evaluate_on_all_references(fake_hub, task, name, config, inputs):
    train = {**{k: [v, v] for k, v in inputs.items()}, "target": ["x", "y"], "references": [["x", "y"], ["x", "y"]]}
    dev = {**{k: [v] for k, v in inputs.items()}, "target": ["x"], "references": [["x", "y"]]}
    found = task.load(DataSource(hub=fake_hub(name, config, {"train": train, "validation": dev})))
    assert [row.target for row in found.train] == ["x", "y"]
    assert [row.references for row in found.dev] == [("x", "y")]


def test_a_data_set_that_is_still_a_script_is_read_from_the_files_that_the_hub_keeps_of_it(monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []

    def load(name, config=None, **settings):
        calls.append((name, config, settings))
        if name != "parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found e2e_nlg.py")
        return datasets.DatasetDict({s: datasets.Dataset.from_dict(E2E_ROWS) for s in settings["data_files"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(E2E.load(DataSource(hub=DEFAULT_HUB)).train) == 2
    assert calls[0] == ("tuetschek/e2e_nlg", None, {"revision": None})
    folder = "hf://datasets/tuetschek/e2e_nlg@refs%2Fconvert%2Fparquet/default"
    assert calls[1][2]["data_files"] == {s: f"{folder}/{s}/*.parquet" for s in ("train", "validation", "test")}
    with pytest.raises(ValueError, match="expected the columns modified_triple_sets, lex"):
        WEBNLG.load(DataSource(hub=DEFAULT_HUB))
    folder = "hf://datasets/webnlg-challenge/web_nlg@refs%2Fconvert%2Fparquet/webnlg_challenge_2017"
    assert calls[3][2]["data_files"] == {s: f"{folder}/{s}/*.parquet" for s in ("train", "dev", "test")}


@pytest.mark.parametrize(
    ("name", "hub", "config"),
    [
        ("sst2", "nyu-mll/glue", "sst2"),
        ("mnli", "nyu-mll/glue", "mnli"),
        ("qnli", "nyu-mll/glue", "qnli"),
        ("qqp", "nyu-mll/glue", "qqp"),
        ("e2e", "tuetschek/e2e_nlg", None),
        ("dart", "Yale-LILY/dart", None),
        ("webnlg", "webnlg-challenge/web_nlg", "webnlg_challenge_2017"),
    ],
)
def test_each_task_asks_for_its_own_data_set(monkeypatch, name, hub, config):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(*names, **settings):
        asked.append((names, settings))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load)
    for source in (DataSource(hub=DEFAULT_HUB), DataSource(hub="me/mine", config="c", revision="v1")):
        with pytest.raises(ValueError, match="no network"):
            find_task(name).load(source)
    assert asked == [((hub, config), {"revision": None}), (("me/mine", "c"), {"revision": "v1"})]


# -- the real files ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_data() -> Path:
    folder = os.environ.get("OPTNOISE_DATA")
    if not folder:
        pytest.skip("set OPTNOISE_DATA to a folder with the data sets to count their rows")
    return Path(folder)


@pytest.mark.parametrize(
    ("name", "folder", "train", "dev", "test"),
    [
        ("sst2", "sst2", {0: 29780, 1: 37569}, {0: 428, 1: 444}, {0: 912, 1: 909}),
        ("sst2_sentences", "sst2", {0: 3310, 1: 3610}, {0: 428, 1: 444}, {0: 912, 1: 909}),
        ("mnli", "mnli", {0: 3061, 1: 2980, 2: 2958}, {0: 347, 1: 333, 2: 320}, None),
        ("qnli", "qnli", {0: 4523, 1: 4476}, {0: 504, 1: 496}, {0: 2702, 1: 2761}),
        ("qqp", "qqp", {0: 5747, 1: 3252}, {0: 623, 1: 377}, None),
    ],
)
def test_real_classification_rows_by_label(real_data, name, folder, train, dev, test):
    task = find_task(name)
    assert isinstance(task, ClassificationTask)
    splits = task.load(DataSource(path=real_data / folder))
    for rows, wanted in ((splits.train, train), (splits.dev, dev), (splits.test, test)):
        found = None if rows is None else {label: sum(row.label == label for row in rows) for label in wanted}
        assert found == wanted
        assert rows is None or len(rows) == sum(wanted.values())
    assert splits.notices == ()


def texts(rows) -> int:
    return sum(len(row.references) for row in rows)


def test_real_e2e_rows_and_the_original_csv(real_data, tmp_path):
    splits = E2E.load(DataSource(path=real_data / "e2e"))
    assert (len(splits.train), len({row.source for row in splits.train})) == (42061, 4862)
    assert (len(splits.dev), texts(splits.dev)) == (547, 4672)
    assert splits.test is not None
    assert (len(splits.test), texts(splits.test)) == (630, 4693)
    for name in ("devset.csv", "testset_w_refs.csv"):
        (tmp_path / name).symlink_to(real_data / "e2e" / name)
    from_csv = E2E.load(DataSource(path=tmp_path, dev_share=0.5))
    bare = {row.source.replace(" ", "") for row in (*from_csv.train, *from_csv.dev)}
    assert bare == {row.source.replace(" ", "") for row in splits.dev}  # the same form, up to tokenization
    assert len(from_csv.train) + texts(from_csv.dev) == 4672


def test_real_dart_and_webnlg_rows(real_data):
    dart = DART.load(DataSource(path=real_data / "dart", dev_share=0.2))
    assert len(dart.train) + texts(dart.dev) == 6980
    assert len({row.source for row in dart.train}) + len(dart.dev) == 2721
    assert dart.test is not None
    assert (len(dart.test), texts(dart.test)) == (4159, 12552 - 1)  # one text is empty
    webnlg = WEBNLG.load(DataSource(path=real_data / "webnlg2017"))
    assert len(webnlg.train) == 18025
    assert webnlg.test is not None
    assert [texts(rows) for rows in (webnlg.dev, webnlg.test, webnlg.others["test_unseen"])] == [2258, 4928, 2433]
    assert [len(rows) for rows in (webnlg.dev, webnlg.test, webnlg.others["test_unseen"])] == [870, 1862, 891]
    assert [notice.partition(": ")[2] for notice in webnlg.notices] == [
        "left out 5 entries without a text",
        "left out 1 entries without a text",
    ]


def test_real_texts_as_predictions_score_as_expected(real_data):
    dev = E2E.load(DataSource(path=real_data / "e2e")).dev
    references = [row.references for row in dev]
    right = E2E.metrics([row.references[-1] for row in dev], references)
    assert right["bleu"] == pytest.approx(100)
    assert right["rouge_l"] == pytest.approx(1)
    wrong = E2E.metrics([row.target for row in dev[1:] + dev[:1]], references)
    assert wrong["bleu"] < 40
    assert wrong["rouge_l"] < 0.6


def test_generation_tasks_are_of_their_type():
    assert [name for name, task in TASKS.items() if isinstance(task, GenerationTask)] == ["e2e", "dart", "webnlg"]
