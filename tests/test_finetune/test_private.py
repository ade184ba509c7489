"""`make_private`: one noisy step per logical batch, on the ledger first, with the user's own model and optimizer."""

from __future__ import annotations

import copy
import doctest
import math

import pytest
import torch
from optnoise.accounting import Ledger, epsilon
from optnoise.finetune import Randomness, make_private, private, secret_generator
from optnoise.mechanisms import Gaussian, Laplace, SphericalGamma
from torch import nn

SILENT = Gaussian(1e-9)  # noise far below every tolerance here, where a test looks at the data's part alone


def linear(*, inputs=1, outputs=1, bias=False, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


def private_linear(model=None, *, optimizer=torch.optim.SGD, lr=1.0, **changes):
    model = linear() if model is None else model
    settings = {
        "mechanism": SILENT,
        "clipping_norm": 1.0,
        "dataset_size": 10,
        "sampling_rate": 1.0,
        "divisor": 10.0,
        "seed": 0,
        **changes,
    }
    return make_private(model, optimizer(model.parameters(), lr=lr), **settings)


def run_step(training, features, *, size=1000, scale=1.0):
    """One logical batch; the loss is the output times `scale`, so the gradient is the feature itself."""
    batch = training.next_batch()
    for indices in batch.microbatches(size):
        with training.record(len(indices)) as recording:
            recording.backward(scale * training.model(features[indices]).sum(1))
    training.step()
    return batch


def weights(training):
    return torch.cat([p.detach().flatten() for p in training.model.parameters()]).clone()


def test_the_docstring_example_runs():
    result = doctest.testmod(private)
    assert result.attempted > 0
    assert result.failed == 0


# ---- the release ------------------------------------------------------------------------------------------------


def noise_scale_is_plausible(values, scale):
    """Two-sided test of Gaussian values against one standard deviation, at about five standard errors."""
    standard_error = scale / math.sqrt(2 * len(values))
    return abs(float(values.std()) - scale) < 5 * standard_error and abs(float(values.mean())) < 5 * scale / math.sqrt(
        len(values)
    )


def empty_release(*, count=4000, noise_multiplier=1.0, **changes):
    """The gradient of one step whose logical batch is empty: noise alone."""
    training = private_linear(
        linear(inputs=count), mechanism=Gaussian(noise_multiplier), sampling_rate=1e-12, **changes
    )
    run_step(training, torch.zeros(10, count))
    return training.model.weight.grad.flatten()


def test_b61_noise_is_sized_for_the_sum_and_divided_with_it():
    """sigma=1, C=1, divisor 64: std 1/64 on the mean; the test rejects 2/3 and 3/2 of it, and 64 times it."""
    noise = empty_release(divisor=64.0, seed=None)
    assert noise_scale_is_plausible(noise, 1 / 64)
    for factor in (2 / 3, 3 / 2, 64):
        assert not noise_scale_is_plausible(noise, factor / 64)


@pytest.mark.parametrize(("noise_multiplier", "clipping_norm"), [(0.5, 1.0), (1.0, 0.2), (2.0, 3.0)])
def test_noise_scales_with_the_multiplier_and_the_clipping_norm(noise_multiplier, clipping_norm):
    noise = empty_release(noise_multiplier=noise_multiplier, clipping_norm=clipping_norm, divisor=1.0)
    scale = noise_multiplier * clipping_norm
    assert noise_scale_is_plausible(noise, scale)
    assert not noise_scale_is_plausible(noise, 2 / 3 * scale)
    assert not noise_scale_is_plausible(noise, 3 / 2 * scale)


def test_b91_noise_is_of_the_law_asked_for():
    """Central, both signs, not uniform; here a Laplace, whose fourth moment tells it from the Gaussian."""
    training = private_linear(
        linear(inputs=100_000), mechanism=Laplace(1 / math.sqrt(2)), sampling_rate=1e-12, divisor=1.0, seed=None
    )
    run_step(training, torch.zeros(10, 100_000))
    noise = training.model.weight.grad.flatten().double()
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.var()) - 1) < 0.05
    assert 0.49 < float((noise > 0).double().mean()) < 0.51
    assert 5.0 < float(noise.pow(4).mean()) < 7.2  # 6 for the Laplace, 3 for the Gaussian, 1.8 for the uniform


def test_b90_noise_is_independent_over_parameters_and_steps():
    model = nn.ModuleList([nn.Linear(100, 1, bias=False), nn.Linear(100, 1, bias=False)])
    training = private_linear(model, mechanism=Gaussian(1.0), sampling_rate=1e-12, divisor=1.0, seed=None)
    rows = []
    for _ in range(2):
        training.next_batch()
        training.step()
        rows += [layer.weight.grad.flatten().clone() for layer in model]
    correlations = torch.corrcoef(torch.stack(rows)) - torch.eye(4)
    assert float(correlations.abs().max()) < 0.5  # 5 standard errors of 1/√100
    assert float(correlations.abs().max()) > 0


def test_two_runs_without_a_seed_share_no_noise_and_no_sample():
    noises = [empty_release(seed=None) for _ in range(2)]
    assert not torch.equal(*noises)
    assert abs(float(torch.corrcoef(torch.stack(noises))[0, 1])) < 0.1
    draws = [torch.rand(1000, generator=secret_generator()) for _ in range(2)]
    assert abs(float(torch.corrcoef(torch.stack(draws))[0, 1])) < 0.2


def test_a_secret_generator_has_more_than_the_32_bits_of_a_seed():
    """Its state is none that `manual_seed` reaches: a seed would have to be the first word of the state."""
    generator = secret_generator()
    state = generator.get_state()
    first_word = int.from_bytes(state[24:28].numpy().tobytes(), "little")
    assert not torch.equal(torch.Generator().manual_seed(first_word).get_state()[24:], state[24:])
    uniform = torch.rand(200_000, generator=generator, dtype=torch.float64)
    assert abs(float(uniform.mean()) - 0.5) < 0.005
    assert abs(float(uniform.var()) - 1 / 12) < 0.002


def test_b54_an_empty_batch_is_stepped_and_counted():
    """n=10, q=0.05, sigma=1, C=1, divisor 0.5: noise of std 2 each time, 20 steps on the ledger."""
    training = private_linear(
        linear(inputs=500), mechanism=Gaussian(1.0), sampling_rate=0.05, divisor=0.5, lr=0.0, seed=1
    )
    sizes, empty = [], []
    for batch in training.logical_batches(20):
        for indices in batch.microbatches(4):
            with training.record(len(indices)) as recording:
                recording.backward(training.model(torch.ones(len(indices), 500)).sum(1))
        training.step()
        sizes.append(len(batch))
        if not len(batch):
            empty.append(training.model.weight.grad.flatten().clone())
    assert training.ledger.steps == 20
    assert 0 in sizes
    assert max(sizes) > 0
    assert noise_scale_is_plausible(torch.cat(empty), 2.0)


def test_b56_the_divisor_does_not_follow_the_batch_size():
    moves = {}
    for seed in range(6):
        training = private_linear(dataset_size=40, sampling_rate=0.4, divisor=16.0, seed=seed)
        batch = run_step(training, torch.ones(40, 1))
        moves[len(batch)] = float(training.model.weight.grad)
    assert len(moves) >= 3
    for size, gradient in moves.items():
        assert gradient == pytest.approx(size / 16, rel=1e-4)


def test_b97_one_record_moves_the_release_by_at_most_c_over_the_divisor():
    """The divisor is the user's constant: with 3 and with 2 records the outputs differ by at most C/divisor."""
    gradients = []
    for count in (2, 3):
        training = private_linear(dataset_size=count, divisor=1.5)
        run_step(training, torch.ones(count, 1), scale=100.0)
        gradients.append(float(training.model.weight.grad))
    assert 0.99 / 1.5 < gradients[1] - gradients[0] <= 1 / 1.5 + 1e-6
    with pytest.raises(TypeError, match="divisor"):
        make_private(linear(), None, mechanism=SILENT, clipping_norm=1.0, dataset_size=3, sampling_rate=1.0)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_b71_b31_microbatches_do_not_change_the_release(size):
    """The same noise, one ledger entry, whatever the split: one release per optimizer update."""
    features = torch.randn(4, 6)
    training = private_linear(linear(inputs=6), mechanism=Gaussian(0.5), dataset_size=4)
    whole = private_linear(linear(inputs=6), mechanism=Gaussian(0.5), dataset_size=4)
    run_step(training, features, size=size)
    run_step(whole, features, size=4)
    torch.testing.assert_close(weights(training), weights(whole), rtol=1e-6, atol=1e-6)
    assert training.ledger.steps == 1
    assert not torch.equal(weights(training), linear(inputs=6).weight.flatten())


def test_b49_an_unused_layer_gets_noise():
    model = nn.ModuleDict({"used": nn.Linear(1, 1, bias=False), "unused": nn.Linear(3000, 1, bias=False)})
    training = private_linear(model, mechanism=Gaussian(1.0), dataset_size=2, divisor=1.0)
    training.next_batch()
    with training.record(2) as recording:
        recording.backward(model["used"](torch.ones(2, 1)).sum(1))
    training.step()
    assert noise_scale_is_plausible(model["unused"].weight.grad.flatten(), 1.0)


# ---- the loop cannot be left by the side ------------------------------------------------------------------------


def test_noise_is_added_once_per_logical_batch():
    training = private_linear()
    run_step(training, torch.ones(10, 1))
    with pytest.raises(RuntimeError, match="each is stepped once"):
        training.step()
    assert training.ledger.steps == 1


def test_a_spent_sum_is_refused():
    from optnoise.finetune import ClippedSum, release

    spent = ClippedSum({"w": nn.Parameter(torch.zeros(2))})
    arguments = {"mechanism": SILENT, "noise_scales": 1.0, "divisor": 1.0, "generator": torch.Generator()}
    release(spent, **arguments)
    with pytest.raises(RuntimeError, match="already added"):
        release(spent, **arguments)
    with pytest.raises(RuntimeError, match="already added"), spent.adding(1):
        pass


def test_spherical_noise_is_one_vector_over_parameters_of_any_dtype():
    """Its norm is the one drawn, the scale of a group multiplies its coordinates, and no coordinate comes twice."""
    from optnoise.finetune import ClippedSum, release

    noise = SphericalGamma.l2_mechanism(12, 1.0)
    shapes = {"a": (2, 3), "b": (1,), "c": (5,)}
    dtypes = {"a": torch.float64, "b": torch.float32, "c": torch.float64}
    parameters = {name: nn.Parameter(torch.zeros(shapes[name], dtype=dtypes[name])) for name in shapes}
    scales = {"a": 1.0, "b": 2.0, "c": 4.0}
    generator = torch.Generator().manual_seed(0)
    release(ClippedSum(parameters), mechanism=noise, noise_scales=scales, divisor=0.5, generator=generator)
    found = torch.cat([p.grad.flatten().double() * 0.5 / scales[name] for name, p in parameters.items()])
    wanted = noise.sample((12,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def released_table(touch, *, rows=5000, width=64, microbatches=1):
    """The gradient that `release` gives a table (rows, width), of a sum to which `touch` was done before."""
    from optnoise.finetune import ClippedSum, release
    from optnoise.finetune.factored import RowGradient

    table = nn.Parameter(torch.zeros(rows, width))
    total = ClippedSum({"table": table})
    for seed in range(microbatches):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, rows, (4, 9), generator=generator)
        grads = 1000 * torch.randn(4, 9, width, generator=generator)
        with total.adding(4):
            total.add_part("table", [RowGradient(ids, grads, rows)], torch.tensor([1.0, 0.5, 0.0, 2.0]))
    touch(total)
    noise = {"mechanism": Gaussian(0.5), "noise_scales": 3.0, "generator": torch.Generator().manual_seed(9)}
    release(total, divisor=8.0, **noise)
    return table.grad


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("rows", [500, 5000])  # in blocks, and in one pass
def test_a_table_gets_the_same_gradient_whether_its_sum_was_spread_out_before(rows, microbatches):
    late = released_table(lambda total: None, rows=rows, microbatches=microbatches)
    early = released_table(lambda total: total.of("table"), rows=rows, microbatches=microbatches)
    torch.testing.assert_close(late, early, rtol=1e-5, atol=1e-5)
    assert float(late.abs().max()) > 100
    untouched = late[(late.abs() < 2).all(dim=1)]
    assert len(untouched) > 0.9 * rows - 80
    assert float(untouched.std()) == pytest.approx(0.5 * 3 / 8, rel=0.02)


def test_a_sum_of_few_rows_is_not_spread_out_before_it_is_needed():
    from optnoise.finetune.clipped_sum import TableRows

    kinds = []
    released_table(lambda total: kinds.append(type(total._sums["table"])))
    released_table(lambda total: kinds.append(type(total._sums["table"])), microbatches=2)
    released_table(lambda total: kinds.append(type(total._sums["table"])), rows=20)  # fewer than positions
    assert kinds == [TableRows, torch.Tensor, torch.Tensor]


def test_b58_a_closure_cannot_replace_the_private_gradient():
    model = linear(inputs=4000)
    training = private_linear(model, mechanism=Gaussian(1.0), sampling_rate=1e-12, divisor=1.0)
    before = weights(training)

    def closure():
        training.optimizer.zero_grad()
        loss = 0 * model(torch.ones(1, 4000)).sum()
        loss.backward()
        return loss

    training.next_batch()
    with pytest.raises(RuntimeError, match="would not be private"):
        training.optimizer.step(closure)
    assert torch.equal(weights(training), before)
    training.step()
    assert noise_scale_is_plausible(weights(training) - before, 1.0)


def test_every_batch_is_stepped_and_every_example_recorded():
    training = private_linear(sampling_rate=0.5)
    with pytest.raises(RuntimeError, match="needs a logical batch"), training.record(1):
        pass
    with pytest.raises(RuntimeError, match="needs a logical batch"):
        training.step()
    training.next_batch()
    with pytest.raises(RuntimeError, match="not stepped"):
        training.next_batch()
    with pytest.raises(RuntimeError, match="0 of them went through"):
        training.step()
    assert training.ledger.steps == 0
    with pytest.raises(RuntimeError, match="not stepped"):
        list(private_linear().logical_batches(2))


def test_b67_a_fixed_batch_size_is_refused_and_the_right_one_is_told():
    training = private_linear(dataset_size=64, sampling_rate=0.5, seed=3)
    batch = training.next_batch()
    assert training.batch_size == len(batch) != 32
    with pytest.raises(ValueError, match="Poisson batches vary in size"), training.record(64):
        pass
    with pytest.raises(ValueError, match="Poisson batches vary"), training.record(len(batch)) as recording:
        recording.backward(training.model(torch.ones(len(batch) + 1, 1))[:, 0])


def test_the_ledger_has_the_step_before_the_noise_is_drawn(tmp_path):
    path = tmp_path / "ledger.jsonl"
    seen = []

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(Ledger(path).steps)
            raise KeyboardInterrupt

    training = private_linear(optimizer=Failing, ledger=path)
    with pytest.raises(KeyboardInterrupt):
        run_step(training, torch.ones(10, 1))
    assert seen == [1]
    assert Ledger(path).steps == 1


# ---- the optimizer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]
)
def test_any_optimizer_steps_on_the_privatised_gradient(optimizer):
    training = private_linear(linear(inputs=3), optimizer=optimizer, lr=0.1)
    plain = copy.deepcopy(linear(inputs=3))
    twin = optimizer(plain.parameters(), lr=0.1)
    features = torch.randn(10, 3)
    for _ in range(3):
        run_step(training, features)
        norms = features.norm(dim=1, keepdim=True)
        plain.weight.grad = (features / norms.clamp(min=1)).sum(0, keepdim=True) / 10
        twin.step()
    torch.testing.assert_close(weights(training), plain.weight.flatten().detach(), rtol=1e-4, atol=1e-5)


def test_b59_a_schedule_acts_on_the_very_optimizer():
    training = private_linear(lr=1e-3, dataset_size=10, divisor=10.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: 1 - step / 10)
    moves = []
    for _ in range(10):
        before = float(training.model.weight.detach())
        run_step(training, torch.ones(10, 1))
        schedule.step()
        moves.append(before - float(training.model.weight.detach()))
    assert moves[5] == pytest.approx(5e-4, rel=1e-3)
    assert moves[0] == pytest.approx(1e-3, rel=1e-3)


def test_b60_the_optimizer_must_hold_the_tensors_of_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    common = {
        "mechanism": SILENT,
        "clipping_norm": 1.0,
        "dataset_size": 10,
        "sampling_rate": 1.0,
        "divisor": 10.0,
    }
    with pytest.raises(ValueError, match=r"does not hold the model's trainable parameters 1\.weight, 1\.bias"):
        make_private(model, torch.optim.SGD(model[0].parameters()), **common)
    twin = copy.deepcopy(model)
    with pytest.raises(ValueError, match="does not hold"):
        make_private(model, torch.optim.SGD(twin.parameters()), **common)
    with pytest.raises(ValueError, match="not parameters of the model"):
        make_private(model, torch.optim.SGD([*model.parameters(), *twin.parameters()]), **common)
    model[0].requires_grad_(False)
    make_private(model, torch.optim.SGD(model.parameters()), **common)  # frozen ones may stand in it


def test_b60_a_parameter_swapped_after_wrapping_is_refused_at_the_step():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    training = private_linear(model)
    model[1] = nn.Linear(2, 1)
    training.next_batch()
    with pytest.raises(RuntimeError, match="trainable parameters changed"), training.record(10):
        pass
    swapped = private_linear(linear())
    swapped.next_batch()
    with swapped.record(10) as recording:
        recording.backward(swapped.model(torch.ones(10, 1))[:, 0])
    swapped.optimizer.param_groups[0]["params"] = []
    with pytest.raises(ValueError, match="does not hold"):
        swapped.step()
    assert swapped.ledger.steps == 0


def test_b60_the_first_adam_step_moves_by_the_learning_rate():
    training = private_linear(linear(inputs=5), optimizer=torch.optim.AdamW, lr=1e-4)
    before = weights(training)
    run_step(training, torch.ones(10, 5))
    assert float((weights(training) - before).abs().max()) == pytest.approx(1e-4, rel=0.02)


# ---- ε ----------------------------------------------------------------------------------------------------------


def test_b78_b80_reading_epsilon_is_pure_and_is_the_ledgers():
    training = private_linear(linear(inputs=3), mechanism=Gaussian(2.0), sampling_rate=0.2)
    for batch in training.logical_batches(3):
        for indices in batch.microbatches(5):
            with training.record(len(indices)) as recording:
                recording.backward(training.model(torch.ones(len(indices), 3)).sum(1))
        training.step()
    first, second = training.epsilon(delta=1e-5), training.epsilon(delta=1e-5)
    assert first is not None
    assert first == second == training.ledger.epsilon(delta=1e-5)
    assert training.ledger.steps == 3
    wanted = epsilon(Gaussian(2.0), delta=1e-5, steps=3, sampling_rate=0.2, dimension=3)
    assert first.upper == pytest.approx(wanted.upper)
    planned = training.epsilon(delta=1e-5, further_steps=7)
    assert planned.upper == pytest.approx(
        epsilon(Gaussian(2.0), delta=1e-5, steps=10, sampling_rate=0.2, dimension=3).upper
    )


def test_epsilon_before_the_first_step_is_zero_and_the_plan_can_be_asked():
    training = private_linear(linear(inputs=3), mechanism=Gaussian(2.0))
    assert training.epsilon(delta=1e-5).upper == 0
    assert training.epsilon(delta=1e-5, further_steps=4).upper == pytest.approx(
        epsilon(Gaussian(2.0), delta=1e-5, steps=4).upper
    )
    assert training.ledger.steps == 0


def test_the_dimension_charged_is_the_number_of_trainable_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    tied = nn.ModuleDict({"a": nn.Embedding(5, 2), "b": nn.Linear(2, 5, bias=False)})
    tied["b"].weight = tied["a"].weight
    assert private_linear(model).release.dimension == 4 + 8 + 2
    assert private_linear(tied).release.dimension == 10
    with_laplace = private_linear(linear(inputs=50), mechanism=Laplace(3.0))
    run_step(with_laplace, torch.ones(10, 50))
    assert with_laplace.epsilon(delta=1e-5).upper == pytest.approx(
        epsilon(Laplace(3.0), delta=1e-5, dimension=50).upper
    )


# ---- wrapping, unwrapping, saving ---------------------------------------------------------------------------------


def test_b76_wrap_step_unwrap_wrap_again_trains_the_same():
    features, results = torch.randn(10, 3), []
    model = linear(inputs=3)
    for _ in range(2):
        with torch.no_grad():
            model.weight.copy_(linear(inputs=3).weight)
        training = private_linear(model, mechanism=Gaussian(0.1))
        run_step(training, features)
        results.append(weights(training))
        training.detach()
        assert not training.optimizer._optimizer_step_pre_hooks
        assert vars(model.weight) == {}
        training.optimizer.step()  # without privacy again
        with pytest.raises(RuntimeError, match="detached"):
            training.next_batch()
    assert torch.equal(*results)


def test_b83_generation_between_steps_works_and_keeps_nothing():
    import transformers

    config = transformers.GPT2Config(vocab_size=17, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    model.requires_grad_(False)
    model.transformer.ln_f.requires_grad_(True)  # Conv1D has no rule yet
    training = private_linear(model)
    ids = torch.randint(1, 17, (10, 5))

    def step():
        training.next_batch()
        with training.record(10) as recording:
            recording.backward(model(input_ids=ids).logits.float().logsumexp(2).mean(1))
        training.step()

    step()
    model.eval()
    generated = model.generate(ids[:1], attention_mask=torch.ones_like(ids[:1]), max_new_tokens=4, do_sample=False)
    assert generated.shape[1] > 5
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    model.train()
    step()
    assert training.ledger.steps == 2


def test_restored_private_runs_never_repeat_their_noise():
    """The same noise on another sum could be subtracted: a private run draws afresh, and charges again."""
    features = torch.randn(10, 3)
    training = private_linear(linear(inputs=3), mechanism=Gaussian(1.0), seed=None)
    state, model_state = training.state_dict(), copy.deepcopy(training.model.state_dict())
    assert state == {"seeded": False}
    run_step(training, features)
    first = weights(training)
    training.model.load_state_dict(model_state)
    training.load_state_dict(state)
    run_step(training, features)
    assert (weights(training) - first).abs().max() > 1e-3
    assert training.ledger.steps == 2


def test_restored_generators_of_a_seeded_run_repeat_the_steps():
    features = torch.randn(10, 3)
    training = private_linear(linear(inputs=3), mechanism=Gaussian(1.0), sampling_rate=0.5)
    run_step(training, features)
    state, model_state = training.state_dict(), copy.deepcopy(training.model.state_dict())
    run_step(training, features)
    first = weights(training)
    training.model.load_state_dict(model_state)
    training.load_state_dict(state)
    run_step(training, features)
    assert torch.equal(weights(training), first)
    training.next_batch()
    with pytest.raises(RuntimeError, match="between logical batches"):
        training.state_dict()
    with pytest.raises(ValueError, match="seeded"):
        Randomness.secret().load_state_dict(state)


def test_seeded_runs_are_marked():
    assert private_linear(seed=5).seeded
    assert not private_linear(seed=None).seeded


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clipping_norm", 0.0),
        ("clipping_norm", math.nan),
        ("divisor", -1.0),
        ("divisor", math.inf),
        ("sampling_rate", 0.0),
        ("sampling_rate", 1.5),
        ("dataset_size", 0),
        ("adjacency", "some"),
        ("mechanism", "gaussian"),
    ],
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        private_linear(**{name: value})
