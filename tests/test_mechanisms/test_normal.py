"""The float32 normal numbers that private training adds: their bits, their formula, their law."""

import math

import numpy as np
import pytest
import torch
from optnoise.mechanisms import Gaussian, _normal
from scipy import stats

MILLION = 2**20


def draw(count, seed=0, scale=1.0):
    out = torch.empty(count)
    _normal.fill(out, scale, torch.Generator().manual_seed(seed))
    return out


@pytest.fixture
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_words_that_its_authors_publish(counter, key, words):
    """Random123's kat_vectors, philox4x32 with 10 rounds."""
    out = np.empty(4, np.uint32)
    _normal.philox(out, np.uint64(counter[0] + (counter[1] << 32)), *np.array([*counter[2:], *key], np.uint64))
    assert [f"{word:08x}" for word in out] == words.split()


def test_numbers_are_box_mullers_of_the_words():
    """Against the same formula in float64: errors below 2^−20 of the radius, small ones too."""
    words = np.random.default_rng(0).integers(0, 2**32, MILLION, dtype=np.uint32)
    half = MILLION // 2
    words[:6] = 0, 1, 2, 2**32 - 1, 2**32 - 2, 2**31  # the largest and the smallest radii
    found = np.empty(MILLION, np.float32)
    _normal.box_muller(words, np.float32(1), found)
    uniform = ((words[:half] >> 1) + 0.5) / 2**31
    radius = np.sqrt(-2 * np.where(uniform > 0.5, np.log1p(-(1 - uniform)), np.log(uniform)))
    angle = words[half:].astype(np.int32) * math.pi / 2**31
    errors = np.abs(found.reshape(2, half) - radius * np.array([np.sin(angle), np.cos(angle)])) / radius
    assert errors.max() < 8 * 2.0**-23
    assert radius[0] == pytest.approx(math.sqrt(64 * math.log(2)))
    assert radius[3] == pytest.approx(2.0**-15.5, rel=1e-6)


def test_numbers_are_normal():
    numbers = draw(4 * MILLION, seed=5).double().numpy()
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    for power, wanted in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        terms = numbers**power
        assert terms.mean() == pytest.approx(wanted, abs=4.5 * terms.std() / math.sqrt(len(numbers))), power
    for beyond in (3.0, 4.0, 4.5):
        expected = len(numbers) * 2 * stats.norm.sf(beyond)
        assert np.sum(np.abs(numbers) > beyond) == pytest.approx(expected, abs=4.5 * math.sqrt(expected)), beyond


@pytest.mark.parametrize("lag", [1, 2, 1024, 2048, 4096, 8192, MILLION])
def test_numbers_do_not_depend_on_each_other(lag):
    """Nor do their squares: the two numbers of one radius stand 2048 apart, those of one counter 1024."""
    numbers = draw(4 * MILLION, seed=6).double().numpy()
    for values in (numbers, numbers**2 - 1):
        products = values[:-lag] * values[lag:]
        assert products.mean() == pytest.approx(0, abs=4.5 * products.std() / math.sqrt(len(products)))


def test_calls_differ_and_seeds_repeat():
    generator = torch.Generator().manual_seed(1)
    first, second = torch.empty(5000), torch.empty(5000)
    _normal.fill(first, 1.0, generator)
    _normal.fill(second, 1.0, generator)
    assert int((first == second).sum()) <= 2
    assert abs(float((first * second).mean())) < 4.5 / math.sqrt(5000)
    assert torch.equal(first, draw(5000, seed=1))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4095, 4096, 4097, 3 * MILLION + 5])
def test_neither_length_nor_threads_change_the_numbers(count, restore_threads):
    torch.set_num_threads(1)
    whole = draw(3 * MILLION + 5)
    torch.set_num_threads(3)
    assert torch.equal(draw(count), whole[:count])


def test_addition_adds_the_same_numbers():
    total = torch.linspace(-1, 1, 9001)
    wanted = (total + draw(9001, seed=2, scale=3.0)) / 7
    _normal.add(total, 3.0, 7.0, torch.Generator().manual_seed(2))
    torch.testing.assert_close(total, wanted, rtol=1e-6, atol=1e-7)


def test_long_gaussian_samples_are_these():
    found = Gaussian(2.0).sample((512, 512), generator=torch.Generator().manual_seed(3))
    assert torch.equal(found.view(-1), draw(2**18, seed=3, scale=2.0))
