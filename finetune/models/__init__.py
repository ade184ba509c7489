"""Models for private fine-tuning: loading, what is trained, and the objectives that give one loss per example."""

from .architectures import ARCHITECTURES, KINDS, Architecture, Kind, architecture_of
from .causal_language import CausalLanguageModel
from .classification import Classification, SequenceClassification
from .convert import bert_as_roberta
from .loading import Pretrained, load_pretrained, random_gpt2
from .masked_word import MaskedWord
from .objective import Objective
from .saved import load_trained
from .tokenizers import gpt2_tokenizer
from .trainable import TRAINED, LoraSettings, Trained, choose_trainable, count_trainable, freeze_unused

__all__ = [
    "ARCHITECTURES",
    "KINDS",
    "TRAINED",
    "Architecture",
    "CausalLanguageModel",
    "Classification",
    "Kind",
    "LoraSettings",
    "MaskedWord",
    "Objective",
    "Pretrained",
    "SequenceClassification",
    "Trained",
    "architecture_of",
    "bert_as_roberta",
    "choose_trainable",
    "count_trainable",
    "freeze_unused",
    "gpt2_tokenizer",
    "load_pretrained",
    "load_trained",
    "random_gpt2",
]
