"""`audit_run` on tiny models: right code is consistent, planted faults are contradicted."""

import numpy as np
import pytest
import torch
from optnoise.finetune import GroupWise, LogicalBatch, PerLayer, make_private
from optnoise.finetune.audit import GradientCanaries, audit_run, membership_inference, mislabelled, secret_bits
from optnoise.finetune.audit.canaries import sampled_loss
from optnoise.finetune.clipped_sum import ClippedSum
from optnoise.mechanisms import Gaussian, Laplace, SphericalGamma
from torch import nn


def losses(model, features, labels):
    return nn.functional.cross_entropy(model(features), labels, reduction="none")


def builder(net, noise, *, clipping_norm=1.0, rate=1.0, lr=0.1, fault=None):
    """Trainings of `net()` with `noise`; `fault` is applied to each."""

    def build(records):
        torch.manual_seed(0)
        model = net()
        training = make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=lr),
            mechanism=noise,
            clipping_norm=clipping_norm,
            dataset_size=records,
            sampling_rate=rate,
            divisor=10.0,
            seed=7,
        )
        if fault is not None:
            fault(training)
        return training

    return build


def run(build, canaries, *, data=(), steps=1, delta=1e-5, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return audit_run(build, losses, data, canaries, steps=steps, delta=delta, generator=generator, **options)


def wide():
    return nn.Linear(200, 100)


def deep():
    return nn.Sequential(nn.Linear(4000, 8), nn.Tanh(), nn.Linear(8, 2))


def examples(count, *, seed=0, width=4000):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, width, generator=generator)
    return features, (features[:, 0] > 0).long()


def bad_examples(count, *, width=4000):
    features, labels = examples(count, seed=1, width=width)
    return features, mislabelled(labels, 2, generator=torch.Generator().manual_seed(2))


# ---- right code ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(Gaussian(2.0), 1.0, 1), (Gaussian(2.0), 0.5, 4), (Gaussian(1.0), 0.1, 20), (Laplace(3.0), 1.0, 1)],
    ids=str,
)
def test_right_noise_is_consistent(noise, rate, steps):
    result = run(builder(wide, noise, rate=rate), GradientCanaries(20_000), steps=steps)
    assert result.verdict == "consistent"
    assert 0 < result.games.lower <= result.proven.upper
    assert result.lower <= result.proven.upper
    assert str(result).startswith("consistent: shown epsilon >= ")


MODES = {
    "flat": (0.7, lambda name: (0.7, 0.7)),
    "per layer": (PerLayer(1.0), lambda name: (0.5**0.5, 1.0)),
    "group-wise": (
        GroupWise({"0": 0.5, "1": 0.3}, noise="equal_budget"),
        lambda n: (0.5, 0.5 * 2**0.5) if n[0] == "0" else (0.3, 0.3 * 2**0.5),
    ),
}


def two_layers():
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))


@pytest.mark.parametrize("mode", MODES)
def test_coordinate_canaries_are_as_large_as_clipping_allows_and_scored_exactly(mode):
    """One parameter of its own each, moved by C_k; the loss is the noise's own at a shift of C_k/s_k."""
    clipping_norm, sizes = MODES[mode]
    training = builder(two_layers, Laplace(1.0), clipping_norm=clipping_norm)(30)
    placed = GradientCanaries(59, "coordinate").place(training, generator=torch.Generator().manual_seed(0))
    training.next_batch()
    places = []
    for i in range(30):
        before = {name: training.clipping.clipped_sum.of(name).clone() for name in training.clipping.parameters}
        placed.contribute(torch.tensor([i]))
        changes = {name: training.clipping.clipped_sum.of(name) - old for name, old in before.items()}
        (moved,) = [name for name, change in changes.items() if change.any()]
        (where,) = changes[moved].view(-1).nonzero().flatten().tolist()
        assert float(changes[moved].view(-1)[where]) == pytest.approx(sizes(moved)[0], rel=1e-6)
        places.append((moved, where))
    assert len(set(places)) == 30
    training.privatise()
    found = placed.losses()
    for i, (name, where) in enumerate(places):
        size, scale = sizes(name)
        z = float(training.clipping.parameters[name].grad.view(-1)[where]) * training.divisor / scale
        assert found[i] == pytest.approx(abs(z) - abs(z - size / scale), abs=1e-5)


def test_random_canaries_have_norm_c():
    training = builder(two_layers, Gaussian(1e-6), clipping_norm=0.7)(3)
    placed = GradientCanaries(40, "random").place(training, generator=torch.Generator().manual_seed(0))
    training.next_batch()
    placed.contribute(torch.tensor([4, 8, 9]))
    total = torch.cat([training.clipping.clipped_sum.of(name).flatten() for name in training.clipping.parameters])
    training.privatise()
    found = placed.losses() * 1e-12 + 0.5  # ⟨sum, u⟩/C: 1 for a canary that is in it, small for the others
    assert found[[4, 8, 9]] == pytest.approx(1.0, abs=0.5)
    assert float(total.norm()) == pytest.approx(0.7 * 3**0.5, rel=0.3)
    assert np.abs(np.delete(found, [4, 8, 9])).max() < 0.75


@pytest.mark.parametrize("kind", ["coordinate", "random"])
def test_gradient_canaries_beside_data_are_consistent(kind):
    net = lambda: nn.Linear(60, 20)  # noqa: E731
    data = (torch.randn(50, 60), torch.randint(0, 20, (50,)))
    result = run(builder(net, Gaussian(1.0), rate=0.5), GradientCanaries(200, kind), data=data, steps=5)
    assert result.verdict == "consistent"
    assert result.games is None  # data in the sums: no independent games


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_mislabelled_examples_are_consistent(rate):
    build = builder(deep, Gaussian(3.0), clipping_norm=0.1, rate=rate, lr=0.003)
    result = run(build, bad_examples(200), data=examples(50), steps=3)
    assert result.verdict == "consistent"
    assert result.lower <= result.proven.upper
    assert result.scores.shape == result.included.shape == (200,)


def test_spherical_noise_is_audited_without_independent_games():
    """The ℓ2 mechanism in 1,010 coordinates; a tenth of its noise is caught by the one-run bound."""
    noise = SphericalGamma.l2_mechanism(1010, 0.05)
    right = run(builder(lambda: nn.Linear(100, 10), noise), GradientCanaries(1000))
    assert (right.verdict, right.games) == ("consistent", None)

    class Less(SphericalGamma):
        def sample(self, shape, **options):
            return super().sample(shape, **options) / 10

    faulty = Less(1010, 1010.0, 0.05, 1.0)
    assert run(builder(lambda: nn.Linear(100, 10), faulty), GradientCanaries(1000)).lower > right.proven.upper


def test_over_many_runs_no_more_are_accused_than_stated():
    build = builder(lambda: nn.Linear(40, 10), Gaussian(1.0), rate=0.5)
    accused = [run(build, GradientCanaries(400), steps=2, seed=seed).contradicted for seed in range(60)]
    assert np.mean(accused) <= 0.1


# ---- planted faults ------------------------------------------------------------------------------------------------


class Halved(Gaussian):
    """Says one noise multiplier and draws half of it."""

    def sample(self, shape, **options):
        return Gaussian(self.noise_multiplier).sample(shape, **options) / 2


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (0.5, 4), (0.1, 20)])
def test_half_the_noise_is_caught(rate, steps):
    result = run(builder(wide, Halved(2.0), rate=rate), GradientCanaries(20_000), steps=steps, delta=1e-3)
    assert result.verdict == "CONTRADICTION"
    assert result.games.lower > result.proven.upper


def test_half_the_noise_is_caught_by_the_bound_that_assumes_nothing():
    result = run(builder(wide, Halved(2.0)), GradientCanaries(20_000))
    assert result.lower > result.proven.upper


@pytest.fixture
def one_layer_unclipped(monkeypatch):
    whole = ClippedSum.add_part

    def add_part(self, name, parts, factors):
        whole(self, name, parts, torch.ones_like(factors) if name == "0.weight" else factors)

    monkeypatch.setattr(ClippedSum, "add_part", add_part)


@pytest.mark.usefixtures("one_layer_unclipped")
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (1.0, 3), (0.5, 6)])
def test_clipping_that_skips_a_layer_is_caught_by_input_canaries(rate, steps):
    build = builder(deep, Gaussian(3.0), clipping_norm=0.1, rate=rate, lr=0.003)
    result = run(build, bad_examples(200), data=examples(50), steps=steps)
    assert result.verdict == "CONTRADICTION"
    assert result.lower > result.proven.upper
    assert result.contributions.largest > 10
    assert "of the clipping norm: CONTRADICTION" in str(result)


def test_contributions_of_right_code_come_up_to_the_clipping_norm():
    mode = PerLayer(0.1)
    for clipping_norm in (0.1, mode):
        result = run(
            builder(deep, Gaussian(3.0), clipping_norm=clipping_norm, lr=0.003), bad_examples(70), data=examples(5)
        )
        assert 0.999 < result.contributions.largest <= 1
        assert (result.contributions.examples, result.contributions.contradicted) == (64, False)


@pytest.mark.usefixtures("one_layer_unclipped")
def test_gradient_canaries_do_not_see_clipping():
    """They are added after it; the docs say so."""
    assert run(builder(wide, Gaussian(2.0)), GradientCanaries(20_000)).verdict == "consistent"


class FixedSize:
    """Batches of exactly q·n records, under the name of a Poisson sampler."""

    def __init__(self, records, size):
        self.records, self.size, self.generator = records, size, torch.Generator().manual_seed(0)

    def draw(self):
        chosen = torch.randperm(self.records, generator=self.generator)[: self.size]
        return LogicalBatch(chosen.sort().values)


def _fixed_batches(training):
    sampler = training._sampler._sampler
    training._sampler._sampler = FixedSize(sampler.dataset_size, round(sampler.dataset_size * sampler.sampling_rate))


@pytest.mark.parametrize("canaries", ["input", "gradient"])
def test_fixed_batches_are_caught_by_their_indices(canaries):
    build = builder(deep, Gaussian(3.0), clipping_norm=0.1, rate=0.2, lr=0.003, fault=_fixed_batches)
    chosen = bad_examples(100) if canaries == "input" else GradientCanaries(100)
    result = run(build, chosen, data=examples(50), steps=30)
    assert result.verdict == "CONTRADICTION"
    assert result.batches.contradicted
    assert result.lower <= result.proven.upper  # the outputs of the run alone do not show it


def test_losses_of_an_overtrained_model_show_membership():
    """Hardly any noise: members are told apart from records like them."""
    torch.manual_seed(0)
    (x, y), (other_x, other_y) = bad_examples(60), examples(60, seed=9)
    training = builder(deep, Gaussian(0.01), clipping_norm=100.0, lr=0.05)(60)
    for batch in training.logical_batches(30):
        with training.record(len(batch)) as recording:
            recording.backward(losses(training.model, x[batch.indices], y[batch.indices]))
        training.step()
    with torch.no_grad():
        found = membership_inference(losses(training.model, x, y), losses(training.model, other_x, other_y), delta=1e-5)
    assert found.advantage > 0.5
    assert found.lower > 1


def test_losses_are_taken_in_eval_mode_and_every_module_gets_its_mode_back():
    """A run with dropout whose first layer the user keeps in eval mode: scores of coins that were not drawn are 0."""
    trainings = []

    def net():
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 2), nn.Dropout(0.5))

    def keep(training):
        training.model[2].eval()
        trainings.append(training)

    build = builder(net, Gaussian(1.0), lr=1e-12, fault=keep)
    result = run(build, bad_examples(30, width=40), data=examples(20, width=40))
    assert [module.training for module in trainings[0].model] == [True, True, False]
    assert np.abs(result.scores).max() < 1e-5  # two dropout masks would differ by far more


# ---- parts ---------------------------------------------------------------------------------------------------------


def test_bits_are_fair_and_labels_are_wrong():
    generator = torch.Generator().manual_seed(0)
    bits = secret_bits(10_000, generator=generator)
    assert bits.dtype == torch.bool
    assert 4800 < int(bits.sum()) < 5200
    labels = torch.randint(0, 5, (3000,), generator=generator)
    wrong = mislabelled(labels, 5, generator=generator)
    assert not (wrong == labels).any()
    assert sorted(set(wrong.tolist())) == [0, 1, 2, 3, 4]
    assert torch.bincount((wrong - labels) % 5, minlength=5)[1:].min() > 600


def test_the_loss_of_a_sampled_release():
    loss = np.array([-50.0, 0.0, 3.0, 800.0])
    np.testing.assert_allclose(  # log((1 − q) + q·e^loss)
        sampled_loss(loss, 0.25), [np.log(0.75), 0.0, np.log(0.75 + 0.25 * np.e**3), 800 - np.log(4)], atol=1e-12
    )
    assert sampled_loss(loss, 1.0) is loss


@pytest.mark.parametrize(
    ("canaries", "options", "message"),
    [
        (GradientCanaries(121), {}, "expected count <= 120, the number of trainable parameters"),
        (GradientCanaries(5, "random"), {"clipping_norm": "groups"}, "expected one clipping norm for all parameters"),
        ((torch.zeros(4, 9), torch.zeros(4).long()), {}, r"expected canaries\[0\] to be like data\[0\]"),
        ((torch.zeros(4, 24),), {}, "expected canaries to have the columns of data, got 1 and 2"),
        ((torch.zeros(4, 24), torch.zeros(3).long()), {}, "expected canaries to be columns of one length"),
    ],
)
def test_bad_canaries_are_refused(canaries, options, message):
    mode = PerLayer(1.0) if options else 1.0
    build = builder(lambda: nn.Sequential(nn.Linear(24, 4), nn.Linear(4, 4)), Gaussian(1.0), clipping_norm=mode)
    with pytest.raises(ValueError, match=message):
        run(build, canaries, data=(torch.zeros(10, 24), torch.zeros(10).long()))


def test_bad_kinds_and_counts_are_refused():
    with pytest.raises(ValueError, match="expected kind to be one of coordinate, random"):
        GradientCanaries(5, "dirac")
    with pytest.raises(ValueError, match="expected count >= 1"):
        GradientCanaries(0)
    with pytest.raises(ValueError, match="write \\(data,\\)"):
        run(builder(wide, Gaussian(1.0)), GradientCanaries(5), data=torch.zeros(3, 2))


def test_guesses_are_refused_before_the_run():
    def build(records):
        pytest.fail("built")

    with pytest.raises(
        ValueError, match="expected 1 <= IN \\+ OUT <= 5, the number of canaries, got guesses=\\(4, 4\\)"
    ):
        run(build, GradientCanaries(5), guesses=[(4, 4)])


def test_two_canaries_are_enough_for_a_run():
    for seed in range(6):
        if secret_bits(2, generator=torch.Generator().manual_seed(seed)).any():
            result = run(builder(wide, Gaussian(1.0)), GradientCanaries(2), seed=seed)
            assert (result.lower, result.games) == (0.0, None)
