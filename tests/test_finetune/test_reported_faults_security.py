"""Faults reported of other libraries (docs/reported_faults.md): noise, secrets, and what depends on the data's size."""

from __future__ import annotations

import json
import secrets
import tomllib
from pathlib import Path

import pytest
import torch
from optnoise.finetune import noise as noise_module
from optnoise.finetune import randomness, secret_generator
from optnoise.finetune.zeroth_order.contributions import GRID, noisy_sum
from optnoise.mechanisms import Gaussian
from small_runs import first_order, for_trainer, linear, rows_of, trainer, vectors, zeroth_order
from torch import nn

ROOT = Path(__file__).parents[2]


class Steps:
    """A noise of given whole steps of the grid."""

    def __init__(self, *steps):
        self.steps = torch.tensor(steps, dtype=torch.float64)

    def sample(self, shape, **more):
        return (self.steps / GRID).reshape(shape)


@pytest.mark.parametrize("clipping_norm", [1.1, 3.7])
def test_b89_the_release_is_a_function_of_the_noisy_whole_number_alone(clipping_norm):
    """B89: another sum, and noise the other way: the same bits, whatever C. No low bit tells two data sets apart."""
    generator = torch.Generator().manual_seed(0)
    totals = [0, 1, *torch.randint(-(2**52), 2**52, (100,), generator=generator).tolist()]
    pairs = [(total, 12345 - total) for total in totals]
    released = [
        noisy_sum(torch.tensor([total]), mechanism=Steps(steps), clipping_norm=clipping_norm, generator=generator)
        for total, steps in pairs
    ]
    assert len({bytes(value.numpy().tobytes()) for value in released}) == 1
    assert float(released[0]) == pytest.approx(12345 * clipping_norm / GRID, rel=1e-15)


def test_b89_noise_between_two_points_of_the_grid_is_rounded_to_one():
    for offset in (0.3, 0.49, 0.7):
        released = noisy_sum(
            torch.tensor([5]), mechanism=Steps(2 + offset), clipping_norm=1.0, generator=torch.Generator()
        )
        assert float(released) * GRID == 7 + round(offset)


def test_b89_nothing_is_claimed_of_floating_point_where_noise_has_no_grid():
    """B89: the default first-order release is float32; README and the page of clipping say so, and secure mode's own
    page says what it does not remove."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "nothing is claimed against attacks on its low bits" in readme
    clipping = " ".join((ROOT / "docs" / "clipping.md").read_text(encoding="utf-8").split())
    assert "Not claimed: anything about the rounding of the *sum over examples* and of the noise" in clipping
    secure = (ROOT / "docs" / "randomness.md").read_text(encoding="utf-8")
    assert "does not remove" in secure


def test_b90_no_coordinate_of_noise_is_given_out_twice(monkeypatch):
    """B90: parameters of equal shape, cut across blocks of 7 draws, over two steps: 400 different numbers."""
    monkeypatch.setattr(noise_module, "_BLOCK", 7)
    model = nn.ModuleList([linear(100), linear(100, seed=1)])
    training = first_order(model, mechanism=Gaussian(1.0), sampling_rate=1e-12, divisor=1.0, seed=None)
    drawn = []
    for _ in range(2):
        training.next_batch()
        training.step()
        drawn += [layer.weight.grad.flatten().clone() for layer in model]
    assert len(torch.cat(drawn).unique()) == 400
    correlations = torch.corrcoef(torch.stack(drawn)) - torch.eye(4)
    assert float(correlations.abs().max()) < 0.5  # five standard errors
    assert float(torch.cat(drawn).std()) == pytest.approx(1, rel=0.18)


def test_b90_noise_and_samples_come_from_different_streams():
    """B90: one stream for both would let who was drawn tell the noise; seeds next to each other share none either."""
    found = []
    for seed in (0, 1, 2):
        made = randomness.Randomness.from_seed(seed)
        found += [torch.rand(1000, generator=made.noise), torch.rand(1000, generator=made.sampling)]
    secret = randomness.Randomness.secret()
    found += [torch.rand(1000, generator=secret.noise), torch.rand(1000, generator=secret.sampling)]
    correlations = torch.corrcoef(torch.stack(found)) - torch.eye(len(found))
    assert float(correlations.abs().max()) < 0.17  # five standard errors


def test_b91_noise_is_drawn_once_and_is_normal():
    """B91: 1e5 draws of σ = 1: mean 0 ± 0.01, variance 1 ± 0.02, both signs, fourth moment 3 (a uniform has 1.8)."""
    model = linear(100_000)
    training = first_order(model, mechanism=Gaussian(1.0), sampling_rate=1e-12, divisor=1.0)
    training.next_batch()
    training.step()
    drawn = model.weight.grad.flatten().double()
    assert abs(float(drawn.mean())) < 0.01
    assert abs(float(drawn.var()) - 1) < 0.02
    assert 0.49 < float((drawn < 0).double().mean()) < 0.51
    assert float(drawn.pow(4).mean()) == pytest.approx(3, rel=0.07)


def test_b96_secret_noise_needs_no_package_beyond_torch():
    """B96: an abandoned generator package would keep people from it; torch's own, filled by the system, is enough."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for extra in document["optional-dependencies"].values() for each in extra]
    assert not any("csprng" in each for each in (*document["dependencies"], *extras))
    assert not any("randomgen" in each for each in document["dependencies"])  # the extra `secure` is a choice


def test_b96_a_private_run_asks_the_system_for_entropy_and_never_falls_back(monkeypatch):
    """B96: without entropy, or with a torch whose generator cannot be filled, there is no training at all."""
    asked = []
    tokens = secrets.token_bytes
    monkeypatch.setattr(randomness.secrets, "token_bytes", lambda count: asked.append(count) or tokens(count))
    for make in (first_order, zeroth_order):
        torch.manual_seed(0)
        asked.clear()
        make(linear(3), seed=None)
        assert asked == [4 * 624] * 2  # noise and samples
    monkeypatch.setattr(randomness.secrets, "token_bytes", no_entropy)
    for make in (first_order, zeroth_order):
        with pytest.raises(NotImplementedError, match="no entropy"):
            make(linear(3), seed=None)


def no_entropy(count):
    raise NotImplementedError("no entropy")


def test_b96_a_generator_of_unknown_form_is_refused(monkeypatch):
    monkeypatch.setattr(randomness, "_CPU_STATE_BYTES", 5000)
    with pytest.raises(RuntimeError, match=r"stores its CPU generator in an unknown form"):
        secret_generator()


def test_b96_a_state_with_seeds_of_another_kind_is_refused():
    """B96: a private run does not take up the generators of a seeded one, nor the other way."""
    seeded, private = first_order(linear(3)), first_order(linear(3), seed=None)
    for training, state in ((private, seeded.state_dict()), (seeded, private.state_dict())):
        with pytest.raises(ValueError, match="expected a state with seeded="):
            training.load_state_dict(state)


def test_b97_what_the_trainer_logs_and_saves_does_not_depend_on_the_number_of_rows(tmp_path):
    """B97: n is private; rates in the log are made from the divisor, and the public files of two n have equal keys."""
    seen = []
    for count in (40, 90):
        folder = tmp_path / str(count)
        changes = vectors(count)
        changes["args"] = {**changes["args"], "save_strategy": "steps", "save_steps": 4}
        run = trainer(folder, for_trainer(linear()), **changes)
        metrics = run.train().metrics
        rate = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
        assert rate == pytest.approx(10, rel=0.01)  # the divisor
        assert run.get_total_train_batch_size(run.args) == 10
        state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text(encoding="utf-8"))
        lines = [{k: v for k, v in line.items() if k != "grad_norm"} for line in state.pop("log_history")]
        seen.append((state, lines))
    states = [{k: v for k, v in state.items() if k != "stateful_callbacks"} for state, _ in seen]
    assert states[0] == states[1]
    assert seen[0][1] == seen[1][1]


def test_b97_neither_clipping_nor_schedule_follows_the_number_of_rows(tmp_path):
    """B97: with q and the divisor fixed, twice the rows change neither steps, learning rates, C nor divisor."""
    found = []
    for count in (40, 80):
        run = trainer(tmp_path / str(count), train_dataset=rows_of(count=count), args={"lr_scheduler_type": "linear"})
        run.train()
        rates = [line["learning_rate"] for line in run.state.log_history if "learning_rate" in line]
        entry = json.loads((tmp_path / str(count) / "ledger.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        found.append((rates, entry))
    assert len(found[0][0]) == 4
    assert found[0] == found[1]
