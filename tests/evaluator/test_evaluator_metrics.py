"""Metrics against hand values, scipy and scikit-image, and against themselves in other batches."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from evaluator import metrics


@pytest.mark.parametrize(
    ("counts", "perplexity", "normalized", "utilization"),
    [
        ([5, 0, 0, 0], 1.0, 0.25, 0.25),
        ([1] * 8, 8.0, 1.0, 1.0),
        ([2, 1, 1, 0], 2.828427, 0.707107, 0.75),
    ],
)
def test_hand_values(counts, perplexity, normalized, utilization):
    found = metrics.codebook_metrics(np.array(counts))
    assert found["perplexity"] == pytest.approx(perplexity, abs=5e-7)
    assert found["normalized_perplexity"] == pytest.approx(normalized, abs=5e-7)
    assert found["utilization"] == utilization
    assert found["tokens"] == sum(counts)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300).filter(any))
def test_perplexity_is_the_exponential_of_scipys_entropy(counts):
    found = metrics.codebook_metrics(np.array(counts))
    assert found["perplexity"] == pytest.approx(math.exp(entropy(counts)), rel=1e-12)
    assert found["perplexity"] <= np.count_nonzero(counts) * (1 + 1e-15)


@pytest.mark.parametrize("codes", [128, 1000, 1 << 18])
def test_uniform_usage_gives_exactly_k(codes):
    found = metrics.codebook_metrics(np.full(codes, 3))
    assert found["perplexity"] == codes
    assert found["normalized_perplexity"] == 1


def test_an_unused_code_is_not_counted():
    indices = np.concatenate([np.arange(1, 100), [1]])
    counts = metrics.count_codes(indices, 128)
    assert counts[0] == 0
    assert counts.sum() == 100
    assert metrics.codebook_metrics(counts)["utilization"] == 99 / 128


@given(st.lists(st.integers(0, 15), min_size=1, max_size=200), st.integers(1, 50))
def test_counts_do_not_depend_on_batches(indices, batch):
    indices = np.array(indices, np.uint16)
    split = sum(metrics.count_codes(indices[i : i + batch], 16) for i in range(0, len(indices), batch))
    np.testing.assert_array_equal(split, metrics.count_codes(indices, 16))


def test_perplexity_averaged_over_batches_would_be_smaller():
    stream = np.repeat([0, 1], 10)
    whole = metrics.codebook_metrics(metrics.count_codes(stream, 2))["perplexity"]
    halves = [
        metrics.codebook_metrics(metrics.count_codes(half, 2))["perplexity"] for half in (stream[:10], stream[10:])
    ]
    assert whole == 2
    assert np.mean(halves) == 1


def test_fewer_tokens_than_codes_is_flagged():
    assert metrics.codebook_metrics(np.array([1, 1, 1, 0]))["flags"] == ["fewer_tokens_than_codes"]
    assert metrics.codebook_metrics(np.array([1, 2, 1, 0]))["flags"] == []


def test_psnr_is_the_mean_of_each_images_psnr():
    """Squared errors of .01 and .0001 on [0, 1]: 20 and 40 dB, so 30.00, where the pooled error gives 22.97."""
    images = np.zeros((2, 20, 20, 3), np.uint8)
    others = images.copy()
    others[0].reshape(-1)[:300] = 51
    others[1].reshape(-1)[:3] = 51
    errors = metrics.squared_errors(images, others)
    assert metrics.psnr(errors, 1200) == pytest.approx(30.0, abs=1e-12)
    pooled = metrics.mse(errors, 1200)
    assert pooled == pytest.approx((0.01 + 0.0001) / 2, rel=1e-12)
    assert -10 * math.log10(pooled) == pytest.approx(22.97, abs=0.005)


def test_psnr_of_equal_images_is_capped():
    images = np.full((3, 32, 32, 3), 7, np.uint8)
    cap = 10 * math.log10(255**2 * 3072)
    assert metrics.psnr(metrics.squared_errors(images, images), 3072) == pytest.approx(cap)
    almost = images.copy()
    almost[0, 0, 0, 0] += 1
    assert metrics.psnr(metrics.squared_errors(images, almost), 3072) == pytest.approx(cap)


def pictures(count, seed=0):
    """Smooth uint8 images and noisy versions of them, from hardly to heavily disturbed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 8, 8, 3)).repeat(4, 1).repeat(4, 2)
    noise = rng.normal(0, 1, coarse.shape) * np.linspace(0, 90, count)[:, None, None, None]
    return coarse.astype(np.uint8), (coarse + noise).clip(0, 255).astype(np.uint8)


def test_quality_equals_scikit_image():
    images, others = pictures(70)
    images[3], others[3] = 255, 0
    images[4], others[4] = 0, 0
    found = metrics.Originals(images).quality(others)
    pairs = list(zip(images, others, strict=True))
    assert found["mse"] == pytest.approx(np.mean([mean_squared_error(x / 255, y / 255) for x, y in pairs]), rel=1e-12)
    differing = [(x, y) for x, y in pairs if (x != y).any()]
    errors = metrics.squared_errors(*(np.array(side) for side in zip(*differing, strict=True)))
    reference = np.mean([peak_signal_noise_ratio(x, y, data_range=255) for x, y in differing])
    assert metrics.psnr(errors, 3072) == pytest.approx(reference, rel=1e-12)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    reference = [structural_similarity(x, y, channel_axis=-1, data_range=255, **options) for x, y in pairs]
    assert found["ssim"] == pytest.approx(np.mean(reference), abs=1e-9)


def test_ssim_does_not_depend_on_batches():
    images, others = pictures(50, seed=1)
    whole = metrics.Originals(images).ssim(others)
    parts = [
        metrics.Originals(images[i : i + 7]).ssim(others[i : i + 7]) * len(images[i : i + 7]) for i in range(0, 50, 7)
    ]
    assert sum(parts) / 50 == pytest.approx(whole, abs=1e-11)


def test_ssim_bounds():
    images, _ = pictures(3)
    originals = metrics.Originals(images)
    assert originals.ssim(images) == 1
    assert originals.ssim(255 - images) < 0
