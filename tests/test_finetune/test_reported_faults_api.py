"""Faults reported of other libraries (docs/reported_faults.md): interfaces and checkpoints."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch
import transformers
from model_zoo import build, data, losses_of, train_part
from optnoise.accounting import Ledger, epsilon
from optnoise.finetune import LAYER_RULES, PrivateTrainer
from optnoise.finetune.checkpoint import Checkpoint
from optnoise.mechanisms import Gaussian
from small_runs import first_order, flat, linear, step, trainer, zeroth_order
from torch import nn

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings(
    "ignore:Reading `use_return_dict`:FutureWarning",  # peft reads what transformers has deprecated
    "ignore:`use_return_dict`:FutureWarning",
    "ignore:`is_gradient_checkpointing`:FutureWarning",
)

# ---- checkpoint -------------------------------------------------------------------------------------------------


def test_b72_a_loop_taken_up_again_goes_on_with_its_history(tmp_path):
    """B72: 2 steps, a new process, 3 steps of other noise: ε is that of all five, neither of three nor a sum of two."""
    path = tmp_path / "ledger.jsonl"
    for noise, steps in ((1.0, 2), (2.0, 3)):
        training = first_order(linear(3), mechanism=Gaussian(noise), ledger=path, seed=None)
        for _ in range(steps):
            step(training, torch.ones(10, 3))
    assert training.ledger.steps == 5
    found = training.epsilon(delta=1e-5).upper
    assert found == training.epsilon(delta=1e-5).upper
    total = (2 + 3 / 4) ** -0.5  # unsampled Gaussian steps compose like one of this noise
    assert found == pytest.approx(epsilon(Gaussian(total), delta=1e-5).upper, rel=1e-3)


def test_b72_a_checkpoint_holds_what_the_next_draws_depend_on(tmp_path):
    """B72: 6 seeded steps through a checkpoint on disk after the third are the 6 steps without it, bit for bit."""
    whole = first_order(linear(3), mechanism=Gaussian(1.0), sampling_rate=0.5)
    for _ in range(6):
        step(whole, torch.randn(10, 3, generator=torch.Generator().manual_seed(whole.ledger.steps)))
    half = first_order(linear(3), mechanism=Gaussian(1.0), sampling_rate=0.5, ledger=tmp_path / "ledger.jsonl")
    for count in range(3):
        step(half, torch.randn(10, 3, generator=torch.Generator().manual_seed(count)))
    Checkpoint(tmp_path / "private").save({"model": half.model.state_dict(), "training": half.state_dict()})
    state = Checkpoint(tmp_path / "private").load()
    rest = first_order(linear(3, seed=9), mechanism=Gaussian(1.0), sampling_rate=0.5, ledger=tmp_path / "ledger.jsonl")
    rest.model.load_state_dict(state["model"])
    rest.load_state_dict(state["training"])
    for count in range(3, 6):
        step(rest, torch.randn(10, 3, generator=torch.Generator().manual_seed(count)))
    assert torch.equal(flat(rest.model), flat(whole.model))
    assert rest.ledger.steps == Ledger(tmp_path / "ledger.jsonl").steps == 6


def test_b73_a_compiled_model_saves_plain_names():
    """B73: `torch.compile` puts a prefix before each name; the private model has the names of the bare one."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    training = first_order(torch.compile(model, backend="eager"), torch.optim.SGD(model.parameters(), lr=0.1))
    step(training, torch.ones(10, 3))
    assert list(training.model.state_dict()) == list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    bare = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    bare.load_state_dict(training.model.state_dict(), strict=True)
    training.model.load_state_dict(bare.state_dict(), strict=True)


def test_b73_adapters_of_a_private_run_load_onto_the_public_model(tmp_path):
    """B73: what the Trainer saves of a LoRA run is an ordinary adapter, and merged it is an ordinary model."""
    peft = pytest.importorskip("peft")
    model = train_part(build("gpt2").float(), "lora").float()
    run = trainer(tmp_path / "run", model, family="gpt2", args={"save_strategy": "steps", "save_steps": 4})
    run.train()
    ids = data("gpt2", 3)["ids"]
    wanted = model.eval()(input_ids=ids).logits
    run.save_model(str(tmp_path / "saved"))
    for folder in (tmp_path / "saved", tmp_path / "run" / "checkpoint-4"):
        again = peft.PeftModel.from_pretrained(build("gpt2").float(), folder).eval()
        torch.testing.assert_close(again(input_ids=ids).logits, wanted)
    bare = build("gpt2").float()
    bare.load_state_dict(again.merge_and_unload().state_dict(), strict=True)
    torch.testing.assert_close(bare.eval()(input_ids=ids).logits, wanted, rtol=1e-4, atol=1e-4)


def test_b76_a_model_is_free_again_after_detach_and_can_be_wrapped_by_others():
    """B76: ordinary training after `detach` is ordinary training, and nothing is left on model or optimizer."""
    model, twin = linear(3), linear(3)
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = first_order(model, optimizer)
    before, own = dict(vars(optimizer)), set(vars(model))
    step(training, torch.ones(10, 3))
    twin.load_state_dict(model.state_dict())
    training.detach()
    training.detach()  # twice does no harm
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert vars(optimizer).keys() == before.keys()
    assert set(vars(model)) == own
    for each, stepper in ((model, optimizer), (twin, torch.optim.SGD(twin.parameters(), lr=0.1))):
        stepper.zero_grad()
        each(torch.ones(2, 3)).sum().backward()
        stepper.step()
    assert torch.equal(flat(model), flat(twin))


# ---- api --------------------------------------------------------------------------------------------------------


def test_b78_b80_reading_epsilon_without_gradients_is_pure():
    """B78, B80: a number each time, the same one, and nothing is recorded by asking."""
    model = linear(3).double()
    training = zeroth_order(model, mechanism=Gaussian(1.0))
    for _ in range(3):
        training.next_batch()
        training.step(lambda index: model(torch.ones(len(index), 3).double())[:, 0])
    found = [training.epsilon(delta=1e-5, further_steps=further) for further in (0, 2, 0)]
    assert found[0] == found[2] == training.ledger.epsilon(delta=1e-5)
    assert found[0].upper < found[1].upper
    assert training.ledger.steps == 3


OVERRIDDEN = sorted(
    name
    for name, member in vars(PrivateTrainer).items()
    if isinstance(member, types.FunctionType) and hasattr(transformers.Trainer, name) and name != "__init__"
)


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_b81_overrides_take_all_that_the_trainer_passes(name):
    """B81: every parameter of the Trainer's own method, by position and by name, and one that is still to come."""
    theirs = inspect.signature(getattr(transformers.Trainer, name))
    ours = inspect.signature(getattr(PrivateTrainer, name))
    kinds = inspect.Parameter
    named = [each for each in theirs.parameters.values() if each.kind == kinds.POSITIONAL_OR_KEYWORD]
    ours.bind(*(each.name for each in named))
    ours.bind(named[0].name, **{each.name: None for each in named[1:]})
    ours.bind(*(each.name for each in named), something_new=None)


def test_b81_the_list_of_overrides_is_not_empty():
    assert {"training_step", "train", "log"} <= set(OVERRIDDEN)


def test_b83_a_model_trained_without_gradients_generates_between_steps():
    """B83: no hook fires, none is there; the steps after it are those of a run that generated nothing."""
    found = []
    for generates in (False, True):
        model = build("gpt2").eval()
        training = zeroth_order(model, mechanism=Gaussian(1.0), dataset_size=6)
        losses = losses_of(model, "gpt2", data("gpt2", 6))
        for _ in range(2):
            training.next_batch()
            training.step(losses)
            if generates:
                ids = torch.tensor([[2, 3, 4, 5]])
                made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
                assert made.shape[1] > 4
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        found.append(flat(model))
    assert torch.equal(*found)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_b85_zero_grad_between_microbatches_loses_no_example(set_to_none):
    """B85: a loop that clears gradients per microbatch gets the release of one that does not."""
    features, found = torch.randn(10, 3), []
    for clears in (False, True):
        training = first_order(linear(3))

        def clear(training=training):
            training.optimizer.zero_grad(set_to_none=set_to_none)
            training.model.zero_grad(set_to_none=set_to_none)

        for _ in range(2):
            step(training, features, size=3, between=clear if clears else lambda: None)
        found.append(flat(training.model))
        clear()
        assert all(p.grad is None if set_to_none else not p.grad.any() for p in training.model.parameters())
    assert torch.equal(*found)


def test_b86_the_declared_versions_have_every_layer_that_is_named_at_import_time():
    """B86: torch has RMSNorm since 2.4, the newest class that a rule names; all others are named by text."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bound = next(each for each in document["project"]["dependencies"] if re.match(r"torch\b", each))
    lowest = tuple(int(part) for part in re.search(r">=(\d+)\.(\d+)", bound).groups())
    named = {rule for rule in LAYER_RULES if not isinstance(rule, str)}
    assert nn.RMSNorm in named
    assert lowest >= (2, 4)
    assert {layer.__module__.partition(".")[0] for layer in named} == {"torch"}
    assert named <= {nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm}  # a newer one: check its version above


def test_b86_importing_needs_no_library_that_is_not_declared():
    """B86: accelerate, peft and datasets are extras: without them the import works all the same."""
    script = (
        "import sys\nfor name in ('accelerate', 'peft', 'datasets', 'gguf', 'nltk'):\n    sys.modules[name] = None\n"
        "import optnoise.finetune, optnoise.finetune.models, optnoise.finetune.tasks"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
