"""Objectives on tiny random models: one loss for each example, whatever architecture, objective and trained part."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from optnoise.finetune import GhostClipping, UnsupportedModelError, make_private
from optnoise.finetune.losses import check_losses_are_per_example
from optnoise.finetune.models import (
    TRAINED,
    CausalLanguageModel,
    LoraSettings,
    MaskedWord,
    SequenceClassification,
    choose_trainable,
)
from optnoise.finetune.tasks.base import ClassificationExample, GenerationExample
from optnoise.mechanisms import Gaussian
from tiny_language import (
    CELLS,
    FAMILIES,
    LABELS,
    SOURCES,
    TARGETS,
    TEXTS,
    build,
    examples_of,
    objective_of,
    randomize,
    restaurants,
    sentiment,
    tokenizer_of,
)

REFUSED = {
    ("gpt2", "causal_lm", "head"): "GPT2LMHeadModel has no head of its own",
    ("llama", "causal_lm", "bitfit"): "LlamaForCausalLM has no biases",
    ("llama", "causal_head", "bitfit"): "LlamaForSequenceClassification has no biases",
}


def trained(model, what):
    """The model with this part trained, adapters away from their start at zero."""
    settings = {"last_layers": {"layers": 1}, "lora": {"lora": LoraSettings(rank=2, alpha=4.0)}}.get(what, {})
    model = choose_trainable(model, what, **settings).double()
    randomize(model, only="lora_")
    return model.train()


def losses_on(objective, model, rows):
    """Indices (b,) to losses (b,), of batches padded to their own longest row."""
    return lambda index: objective.per_example_losses(model, objective.collate([rows[i] for i in index.tolist()]))


@pytest.mark.parametrize("what", TRAINED)
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_clipping_is_exact_in_every_cell_or_the_cell_is_refused_by_name(exact, family, kind, what):
    model, tokenizer = build(family, kind)
    if reason := REFUSED.get((family, kind, what)):
        with pytest.raises(ValueError, match=reason):
            trained(model, what)
        return
    objective, examples = objective_of(kind, tokenizer), examples_of(kind)
    rows = list(objective.encode(examples, 64))
    model = trained(model, what)
    losses = losses_on(objective, model, rows)
    exact(model, losses, len(rows), splits=(1, 2))
    check_losses_are_per_example(model, losses, len(rows))


@pytest.mark.parametrize(
    ("family", "kind", "what"), [(*cell, what) for cell in CELLS for what in TRAINED if (*cell, what) not in REFUSED]
)
def test_one_private_step_moves_the_trained_part_and_nothing_else(family, kind, what):
    model, tokenizer = build(family, kind)
    objective = objective_of(kind, tokenizer)
    rows = list(objective.encode(examples_of(kind), 64))
    model = trained(model, what)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = make_private(
        model,
        torch.optim.SGD(chosen, lr=0.1),
        mechanism=Gaussian(1.0),
        clipping_norm=0.5,
        dataset_size=len(rows),
        sampling_rate=1.0,
        divisor=len(rows),
        seed=3,
    )
    batch = training.next_batch()
    for indices in batch.microbatches(2):
        with training.record(len(indices)) as recording:
            recording.backward(losses_on(objective, model, rows)(indices))
    training.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
    assert training.dimension == sum(parameter.numel() for parameter in chosen)


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_a_language_head_that_reads_its_bias_itself_is_refused(family):
    """The head's own bias is the decoder's under another name; it is passed over only where forward lets it be."""
    model, _ = build(family, "masked_word")
    holder, name = (model, "lm_head") if family == "roberta" else (model.cls, "predictions")
    head = getattr(holder, name)
    assert head.bias is head.decoder.bias
    GhostClipping(model, 1.0)
    changed = type(
        "Doubled", (type(head),), {"forward": lambda self, hidden: type(head).forward(self, hidden) + self.bias}
    )
    head.__class__ = changed
    with pytest.raises(UnsupportedModelError, match=r"Doubled.*cannot share parameters: bias"):
        GhostClipping(model, 1.0)
    head.__class__ = changed.__mro__[1]
    forward = head.forward
    head.forward = lambda hidden: forward(hidden) + head.bias
    with pytest.raises(UnsupportedModelError, match="cannot share parameters: bias"):
        GhostClipping(model, 1.0)


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_padding_does_not_change_losses(family, kind):
    model, tokenizer = build(family, kind)
    objective = objective_of(kind, tokenizer)
    rows = list(objective.encode(examples_of(kind), 64))
    assert len({len(row["input_ids"]) for row in rows}) > 1
    together = losses_on(objective, model, rows)(torch.arange(len(rows)))
    alone = torch.cat([losses_on(objective, model, rows)(torch.tensor([i])) for i in range(len(rows))])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_another_kind_is_refused_by_name(family):
    kinds = [kind for known, kind in CELLS if known == family]
    for kind, other in (kinds, kinds[::-1]):
        model, tokenizer = build(family, other)
        objective = objective_of(kind, tokenizer)
        batch = objective.collate(list(objective.encode(examples_of(kind), 64)))
        with pytest.raises(ValueError, match=rf"takes .*got {type(model).__name__}"):
            objective.per_example_losses(model, batch)


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_rows_may_be_lists_or_tensors(family, kind):
    _, tokenizer = build(family, kind)
    objective = objective_of(kind, tokenizer)
    rows = objective.encode(examples_of(kind), 64)
    lists, tensors = objective.collate(list(rows)), objective.collate(list(rows.with_format("torch")))
    assert lists.keys() == tensors.keys()
    assert all(torch.equal(lists[name], tensors[name]) for name in lists)
    with pytest.raises(ValueError, match="got none"):
        objective.collate([])


# ---- the masked word ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_a_prompt_is_encoded_as_the_tokenizer_encodes_it_with_the_mask_in_place(family):
    tokenizer, task = tokenizer_of(family), sentiment()
    rows = list(MaskedWord(task, tokenizer).encode(examples_of("masked_word"), 64))
    for row, text in zip(rows, TEXTS, strict=True):
        assert row["input_ids"] == tokenizer(task.prompt.fill((text,), tokenizer.mask_token))["input_ids"]
        assert row["input_ids"][row["mask_position"]] == tokenizer.mask_token_id
    assert [row["labels"] for row in rows] == list(LABELS)


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_a_text_that_spells_the_mask_adds_none(family):
    tokenizer = tokenizer_of(family)
    text = f"a {tokenizer.mask_token} film {tokenizer.sep_token} {tokenizer.pad_token}"
    row = MaskedWord(sentiment(), tokenizer).encode([ClassificationExample((text,), 0)], 96)[0]
    assert row["input_ids"].count(tokenizer.mask_token_id) == 1
    assert row["input_ids"].count(tokenizer.sep_token_id) == 1
    assert tokenizer.pad_token_id not in row["input_ids"]


def test_label_words_take_the_token_that_follows_a_space():
    tokenizer = tokenizer_of("roberta")
    found = MaskedWord(sentiment(), tokenizer).label_ids
    assert found == tokenizer.convert_tokens_to_ids(["Ġterrible", "Ġgreat"])
    tokenizer = tokenizer_of("bert")
    assert MaskedWord(sentiment(), tokenizer).label_ids == tokenizer.convert_tokens_to_ids(["terrible", "great"])


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_label_words_of_more_than_one_token_are_refused(family):
    with pytest.raises(ValueError, match="label words of one known token, the word 'zebra' is"):
        MaskedWord(sentiment(("zebra", "great")), tokenizer_of(family))


def test_label_words_that_share_a_token_are_refused():
    with pytest.raises(ValueError, match="different tokens"):
        MaskedWord(sentiment(("Great", "great")), tokenizer_of("bert"))  # lower case
    with pytest.raises(ValueError, match="no mask token"):
        MaskedWord(sentiment(), build("gpt2", "causal_lm")[1])


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_long_texts_are_cut_with_a_notice_and_the_template_is_not(family, caplog):
    tokenizer, task = tokenizer_of(family), sentiment()
    objective = MaskedWord(task, tokenizer)
    lengths = [len(row["input_ids"]) for row in objective.encode(examples_of("masked_word"), 96)]
    assert not caplog.records
    limit = sorted(lengths)[2]
    rows = list(objective.encode(examples_of("masked_word"), limit))
    count = sum(length > limit for length in lengths)
    assert f"{count} of 5 rows: texts of the prompt cut to fit into {limit} tokens" in caplog.text
    assert max(len(row["input_ids"]) for row in rows) <= limit
    ending = rows[1]["input_ids"][rows[1]["mask_position"] - 2 :]  # of "terrible", which is not cut
    assert all(row["input_ids"][-len(ending) :] == ending for row in rows)
    with pytest.raises(ValueError, match="which the template"):
        objective.encode(examples_of("masked_word"), 6)


@pytest.mark.parametrize("text", ["\U0001f600" * 9, "\U0001f600 good " * 4, "é" * 30, "good \u4e2d\u6587" * 5])
@pytest.mark.parametrize("limit", range(20, 31))
def test_a_character_of_several_tokens_is_cut_whole(text, limit):
    """The offsets of the pieces of one character are all that character's: a cut inside it would cut nothing."""
    tokenizer, task = tokenizer_of("roberta"), sentiment()
    row = MaskedWord(task, tokenizer).encode([ClassificationExample((text,), 0)], limit)[0]
    assert len(row["input_ids"]) <= limit
    before = tokenizer.decode(row["input_ids"][1 : row["mask_position"]])
    assert text.startswith(before.removesuffix(" . It was"))


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_only_the_masks_position_is_computed_and_it_is_the_models_own(family):
    model, tokenizer = build(family, "masked_word")
    objective = objective_of("masked_word", tokenizer)
    batch = objective.collate(list(objective.encode(examples_of("masked_word"), 64)))
    whole = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    at_mask = torch.stack([whole[i, place] for i, place in enumerate(batch["mask_position"].tolist())])
    torch.testing.assert_close(objective.logits(model, batch), at_mask[:, objective.label_ids], rtol=1e-10, atol=1e-12)
    assert model(input_ids=batch["input_ids"]).logits.shape == whole.shape  # nothing is left on the head


# ---- a new head --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_pairs_have_the_tokenizers_own_form(family):
    tokenizer = tokenizer_of(family)
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[3], TEXTS[2])]
    rows = SequenceClassification(sentiment(), tokenizer).encode([ClassificationExample(p, 1) for p in pairs], 64)
    for row, pair in zip(rows, pairs, strict=True):
        wanted = tokenizer(*pair)
        assert row["input_ids"] == wanted["input_ids"]
        if family == "bert":
            assert row["token_type_ids"] == wanted["token_type_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longer_text_of_a_pair_is_cut_first(family, caplog):
    _, tokenizer = build(family, "encoder_head" if family in ("roberta", "bert") else "causal_head")
    objective = SequenceClassification(sentiment(), tokenizer)
    pair = [ClassificationExample((TEXTS[2], "good"), 0)]
    whole = objective.encode(pair, 64)[0]["input_ids"]
    assert not caplog.records
    cut = objective.encode(pair, len(whole) - 2)[0]["input_ids"]
    assert "1 of 1 rows: texts cut" in caplog.text
    assert len(cut) == len(whole) - 2
    assert cut[-2:] == whole[-2:]  # of "good"
    with pytest.raises(ValueError, match="same number in all"):
        objective.encode([*pair, ClassificationExample(("good",), 0)], 64)
    with pytest.raises(ValueError, match="example 0: expected 0 <= label < 2, got label=2"):
        objective.encode([ClassificationExample(("good",), 2)], 64)


@pytest.mark.parametrize(("family", "kind"), [cell for cell in CELLS if cell[1] != "causal_lm"])
def test_predictions_and_losses_are_those_of_each_text_alone(family, kind):
    model, tokenizer = build(family, kind)
    objective, examples = objective_of(kind, tokenizer), examples_of(kind)
    batches = [objective.collate(list(objective.encode([example], 64))) for example in examples]
    logits = torch.cat([objective.logits(model, batch) for batch in batches]).detach()
    found = objective.evaluate(model, examples, max_length=64, batch_size=2)
    assert objective.predict(model, examples, max_length=64, batch_size=3) == logits.argmax(dim=1).tolist()
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, torch.tensor(LABELS))), rel=1e-9)
    assert found["accuracy"] == float((logits.argmax(dim=1) == torch.tensor(LABELS)).double().mean())
    assert model.training


# ---- causal language ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_only_target_and_end_token_have_a_loss(family):
    _, tokenizer = build(family, "causal_lm")
    rows = CausalLanguageModel(restaurants(), tokenizer).encode(examples_of("causal_lm"), 64)
    start = [tokenizer.bos_token_id] if family == "llama" else []
    for row, source, target in zip(rows, SOURCES, TARGETS, strict=True):
        answer = [*tokenizer.encode(" " + target, add_special_tokens=False), tokenizer.eos_token_id]
        prefix = [*start, *tokenizer.encode(source, add_special_tokens=False), tokenizer.bos_token_id]
        assert row["input_ids"] == prefix + answer
        assert row["labels"] == [-100] * len(prefix) + answer
        assert row["attention_mask"] == [1] * len(row["input_ids"])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_long_sources_are_cut_with_a_notice_and_long_targets_refused_or_cut(family, caplog):
    _, tokenizer = build(family, "causal_lm")
    examples = examples_of("causal_lm")
    objective = CausalLanguageModel(restaurants(), tokenizer)
    whole = [row["input_ids"] for row in objective.encode(examples, 90)]
    assert not caplog.records
    limit = max(map(len, whole)) - 1
    rows = list(objective.encode(examples, limit))
    count = sum(len(ids) > limit for ids in whole)
    assert f"{count} of 3 rows: sources cut to fit into {limit} tokens" in caplog.text
    for row, ids in zip(rows, whole, strict=True):
        answer = [label for label in row["labels"] if label != -100]
        assert ids[-len(answer) :] == answer == row["input_ids"][-len(answer) :]
        assert row["input_ids"][-len(answer) - 1] == tokenizer.bos_token_id  # the separator is not cut
    with pytest.raises(ValueError, match="targets do not fit into max_length=5"):
        objective.encode(examples, 5)
    cutting = CausalLanguageModel(restaurants(), tokenizer, long_targets="cut")
    assert max(len(row["input_ids"]) for row in cutting.encode(examples, 5)) == 5
    assert "targets cut, without an end token" in caplog.text
    wide = CausalLanguageModel(restaurants(), tokenizer, separator=" in a few words : ", long_targets="cut")
    with pytest.raises(ValueError, match="tokens of start and separator, got max_length=6"):
        wide.encode(examples, 6)
    with pytest.raises(ValueError, match="tokens of start and separator, got max_length=6"):
        wide.generate(build(family, "causal_lm")[0], SOURCES, max_length=6)


def target_losses(model, ids, labels):
    """The negative log likelihood of every token that has a label, by softmax of what stands before it."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    return [-float(logits[i - 1].log_softmax(0)[label]) for i, label in enumerate(labels) if label != -100]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_losses_and_perplexity_are_those_computed_by_hand(family):
    model, tokenizer = build(family, "causal_lm")
    examples = examples_of("causal_lm")
    for over_tokens in ("mean", "sum"):
        objective = CausalLanguageModel(restaurants(), tokenizer, over_tokens=over_tokens)
        rows = list(objective.encode(examples, 90))
        by_hand = [target_losses(model, row["input_ids"], row["labels"]) for row in rows]
        wanted = [sum(each) / (len(each) if over_tokens == "mean" else 1) for each in by_hand]
        found = losses_on(objective, model, rows)(torch.arange(3)).tolist()
        assert found == pytest.approx(wanted, rel=1e-9)
    every = [loss for each in by_hand for loss in each]
    found = objective.perplexity(model, examples, max_length=90, batch_size=2)
    assert found["loss"] == pytest.approx(sum(every) / len(every), rel=1e-9)
    assert found["perplexity"] == pytest.approx(math.exp(sum(every) / len(every)), rel=1e-9)


def test_perplexity_is_over_all_references():
    model, tokenizer = build("gpt2", "causal_lm")
    objective = CausalLanguageModel(restaurants(), tokenizer)
    both = [GenerationExample(SOURCES[0], TARGETS[0], TARGETS[:2])]
    pairs = [GenerationExample(SOURCES[0], target, (target,)) for target in TARGETS[:2]]
    found = objective.perplexity(model, both, max_length=90)
    assert found == pytest.approx(objective.perplexity(model, pairs, max_length=90), rel=1e-9)
    assert found["loss"] != pytest.approx(objective.perplexity(model, pairs[:1], max_length=90)["loss"], rel=1e-6)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_generation_in_batches_equals_one_at_a_time(family, beams):
    model, tokenizer = build(family, "causal_lm")
    objective = CausalLanguageModel(restaurants(num_beams=beams, max_new_tokens=8), tokenizer)
    alone = [objective.generate(model, [source], max_length=64)[0] for source in SOURCES]
    assert len(set(alone)) > 1  # the sources matter
    assert objective.generate(model, SOURCES, max_length=64, batch_size=3) == alone
    assert objective.generate(model, SOURCES[::-1], max_length=64, batch_size=2) == alone[::-1]
    assert model.training


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_greedy_generation_is_the_most_likely_next_token_each_time(family):
    model, tokenizer = build(family, "causal_lm")
    settings = {"num_beams": 1, "max_new_tokens": 8, "forbidden_texts": ()}
    objective = CausalLanguageModel(restaurants(**settings), tokenizer)
    start = [tokenizer.bos_token_id] if family == "llama" else []
    ids = [*start, *tokenizer.encode(SOURCES[0], add_special_tokens=False), tokenizer.bos_token_id]
    new = []
    while len(new) < 8 and tokenizer.eos_token_id not in new:
        with torch.no_grad():
            new.append(int(model(input_ids=torch.tensor([ids + new])).logits[0, -1].argmax()))
    wanted = tokenizer.decode(new, skip_special_tokens=True).strip()
    assert objective.generate(model, SOURCES, max_length=64)[0] == wanted


def test_forbidden_texts_are_not_generated_and_too_few_positions_are_refused():
    model, tokenizer = build("gpt2", "causal_lm")
    free = CausalLanguageModel(restaurants(num_beams=1, forbidden_texts=()), tokenizer)
    letter = free.generate(model, SOURCES[:1], max_length=64)[0][0]
    bound = CausalLanguageModel(restaurants(num_beams=1, forbidden_texts=(letter, " " + letter)), tokenizer)
    first = tokenizer.encode(bound.generate(model, SOURCES[:1], max_length=64)[0])[0]
    assert tokenizer.decode([first]) != letter
    with pytest.raises(ValueError, match="within the model's 96 positions"):
        CausalLanguageModel(restaurants(max_new_tokens=90), tokenizer).generate(model, SOURCES, max_length=64)


def test_bad_settings_of_an_objective_are_refused():
    tokenizer = build("gpt2", "causal_lm")[1]
    with pytest.raises(ValueError, match="over_tokens 'mean' or 'sum', got 'max'"):
        CausalLanguageModel(restaurants(), tokenizer, over_tokens="max")
    with pytest.raises(ValueError, match="long_targets 'refuse' or 'cut', got 'drop'"):
        CausalLanguageModel(restaurants(), tokenizer, long_targets="drop")
    with pytest.raises(ValueError, match="no padding token; load it with load_pretrained"):
        CausalLanguageModel(restaurants(), tokenizer_of("gpt2"))
    objective = CausalLanguageModel(restaurants(), tokenizer)
    for examples, limit, reason in (([], 64, "got none"), (examples_of("causal_lm"), 3, "max_length >= 4")):
        with pytest.raises(ValueError, match=reason):
            objective.encode(examples, limit)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_with_adapters_generates_and_is_evaluated(family):
    model, tokenizer = build(family, "causal_lm")
    task = restaurants(num_beams=1)
    objective, examples = CausalLanguageModel(task, tokenizer), examples_of("causal_lm")
    texts = objective.generate(model, SOURCES, max_length=64)
    plain = objective.perplexity(model, examples, max_length=64)
    wrapped = choose_trainable(model, "lora").double()  # adapters start at zero
    assert objective.generate(wrapped, SOURCES, max_length=64) == texts
    assert objective.evaluate(wrapped, examples, max_length=64, generated=False) == pytest.approx(plain, rel=1e-9)
    found = objective.evaluate(wrapped, examples, max_length=64)
    metrics = task.metrics(texts, [example.references for example in examples])
    assert found == pytest.approx({**plain, **metrics}, rel=1e-9)
    assert len(metrics) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_text_has_the_same_loss_alone_and_padded(family):
    """GPT-2 and Llama pad with their end token, and take the last token that is not padding."""
    kind = "encoder_head" if family in ("roberta", "bert") else "causal_head"
    model, tokenizer = build(family, kind)
    objective = objective_of(kind, tokenizer)
    rows = list(objective.encode([ClassificationExample(("",), 1), *examples_of(kind)], 64))
    together = losses_on(objective, model, rows)(torch.arange(len(rows)))
    alone = losses_on(objective, model, rows)(torch.tensor([0]))
    torch.testing.assert_close(together[:1], alone, rtol=1e-9, atol=0)


@pytest.mark.parametrize("length", [1, 7])
def test_a_target_of_the_last_tokens_is_predicted_whatever_stands_before_it(length):
    """An empty source still has its separator before the target: the first token of the target has a loss."""
    model, tokenizer = build("gpt2", "causal_lm")
    objective = CausalLanguageModel(restaurants(), tokenizer, over_tokens="sum")
    row = objective.encode([GenerationExample("", TARGETS[0], TARGETS[:1])], 64)[0]
    assert row["labels"].index(next(label for label in row["labels"] if label != -100)) == 1
    padded = {
        **row,
        "input_ids": row["input_ids"] + [5] * length,
        "attention_mask": row["attention_mask"] + [0] * length,
    }
    padded["labels"] = row["labels"] + [-100] * length
    found = losses_on(objective, model, [row, padded])(torch.arange(2)).tolist()
    assert found == pytest.approx([sum(target_losses(model, row["input_ids"], row["labels"]))] * 2, rel=1e-9)
