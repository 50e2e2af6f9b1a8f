"""The metrics, a second implementation that shares no code with training.

Everything is computed over the whole evaluation split at once, in float64, with no epsilon. N images [N, 32, 32, 3]
uint8; K codes. Codebook metrics come from one count vector; quality metrics compare 8-bit images.
"""

import math

import numpy as np

PEAK = 255
SIGMA, RADIUS, K1, K2 = 1.5, 5, 0.01, 0.03  # Wang et al. 2004: an 11×11 Gaussian window
_BATCH = 32  # images a pass of SSIM: its working set stays in the cache
_DECIMALS = 12  # kept of SSIM: beyond them lies the order in which a matrix product adds up


def count_codes(indices, codes):
    """How often each of the ``codes`` codes is used: int64 [K]. ``indices`` is any shape of unsigned integers < K."""
    return np.bincount(indices.reshape(-1), minlength=codes)


def codebook_metrics(counts):
    """Perplexity, normalized perplexity and utilization of one count vector [K], and the flags of the score.

    perplexity = exp(−Σ_{p>0} p ln p) with p = c/N, written as U·exp(−Σ p ln(p·U)) for U used codes: the same number,
    and exactly U when all used codes are used equally. An epsilon inside the logarithm, or a mean over batches, would
    give another number. normalized_perplexity = perplexity/K; utilization = U/K.
    """
    codes, tokens = len(counts), int(counts.sum())
    used = counts[counts > 0]
    ratio = used * len(used) / tokens  # p·U
    perplexity = len(used) * math.exp(-math.fsum(used / tokens * np.log(ratio)))
    return {
        "tokens": tokens,
        "perplexity": perplexity,
        "normalized_perplexity": perplexity / codes,
        "utilization": len(used) / codes,
        "flags": ["fewer_tokens_than_codes"] if tokens < codes else [],
    }


def squared_errors(images, others):
    """The sum of squared differences of each pair of images, int64 [N], in 8-bit steps."""
    difference = np.subtract(images, others, dtype=np.int32).reshape(len(images), -1)
    return np.einsum("np,np->n", difference, difference).astype(np.int64)


def mse(errors, values):
    """Mean squared error pooled over all images, on the scale [0, 1]; ``values`` is the numbers in one image."""
    return int(errors.sum()) / (len(errors) * values * PEAK**2)


def psnr(errors, values):
    """Mean over images of each image's PSNR in dB; the PSNR of the pooled error would be another number.

    An image without any error is given the error of one grey level in one number, so that the mean stays finite.
    """
    return math.fsum(10 * math.log10(PEAK**2 * values / max(int(error), 1)) for error in errors) / len(errors)


class Originals:
    """The evaluation images that reconstructions are compared with; what depends on them alone is computed once."""

    def __init__(self, images):
        self.images = images
        self._window = _window(images.shape[1])
        self._means, self._squares = [], []
        for start in range(0, len(images), _BATCH):
            x = _planes(images[start : start + _BATCH])
            self._means.append(self._smooth(x))
            self._squares.append(self._smooth(x * x))

    def quality(self, reconstruction):
        """mse, psnr and ssim of ``reconstruction`` (uint8, the originals' shape)."""
        errors, values = squared_errors(self.images, reconstruction), self.images[0].size
        return {"mse": mse(errors, values), "psnr": psnr(errors, values), "ssim": self.ssim(reconstruction)}

    def ssim(self, reconstruction):
        """Mean structural similarity (Wang et al. 2004) over images, channels and every whole window.

        Gaussian window of σ = 1.5 cut at 11×11, biased variances, data range 255; windows that reach over the border
        are left out, as in scikit-image's ``gaussian_weights=True, use_sample_covariance=False``.
        """
        total = math.fsum(
            self._ssim_sum(number, reconstruction[number * _BATCH : (number + 1) * _BATCH])
            for number in range(len(self._means))
        )
        count = reconstruction.shape[0] * reconstruction.shape[3] * len(self._window) ** 2
        return round(total / count, _DECIMALS) + 0.0  # + 0.0: never minus zero

    def _ssim_sum(self, number, reconstruction):
        x, y = _planes(self.images[number * _BATCH : (number + 1) * _BATCH]), _planes(reconstruction)
        mean_x, mean_y = self._means[number], self._smooth(y)
        c1, c2 = (K1 * PEAK) ** 2, (K2 * PEAK) ** 2
        product, power = mean_x * mean_y, mean_x * mean_x + mean_y * mean_y
        covariance = self._smooth(x * y) - product
        variances = self._squares[number] + self._smooth(y * y) - power
        ratio = (2 * product + c1) * (2 * covariance + c2) / ((power + c1) * (variances + c2))
        return float(ratio.sum())

    def _smooth(self, planes):
        """Gaussian means of every whole window of ``planes`` [P, S, S]: [P, S−10, S−10], by two matrix products."""
        return self._window @ (planes @ self._window.T)


def _planes(images):
    """[n, S, S, C] as float64 planes [n·C, S, S]."""
    size = images.shape[1]
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float64).reshape(-1, size, size)


def _window(size):
    """The banded matrix [size−10, size] whose row i holds the normalized Gaussian around i + 5."""
    kernel = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / SIGMA) ** 2)
    kernel /= kernel.sum()
    matrix = np.zeros((size - 2 * RADIUS, size))
    for i, row in enumerate(matrix):
        row[i : i + len(kernel)] = kernel
    return matrix
