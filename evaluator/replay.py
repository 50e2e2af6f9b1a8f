"""V4: stored weights through a second implementation of the model, in numpy and float64.

Arrays are channels-last: images [n, 32, 32, 3], latents [n, 8, 8, D]. Weights have torch's layout, as
``vqkit.formats.run.state_layout`` names them. The evaluator does not know the arm, and the way in which latents are
normalized is a knob; so every declared way is tried, and one of them must reproduce all marks.
"""

from dataclasses import dataclass

import numpy as np

from vqkit.formats.digests import sha256_hex
from vqkit.formats.knobs import KNOBS

IMAGES = 64  # drawn for each mark
AGREEMENT = 0.999  # of the indices
NEAR_TIE = 1e-5  # of ‖z‖² + ‖q‖²: closer distances may swap in float32
GREY_LEVELS = 1  # between stored and replayed reconstructions
_NORMALIZATIONS = KNOBS["latent_normalization"].choices


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How one mark came out under one normalization."""

    equal: float  # share of indices that agree
    unexplained: int  # indices that differ and are no near tie
    worst: int  # largest difference of a reconstruction, in grey levels

    @property
    def indices_agree(self):
        return self.equal >= AGREEMENT and self.unexplained == 0

    @property
    def reconstructions_agree(self):
        return self.worst <= GREY_LEVELS


def draw(seal, mark, count):
    """The positions of the images to replay: they follow from ``seal``, the bytes that sealed the run, so that nobody
    could know them before. Whoever seals again and again can choose them; replaying every image stops that."""
    seed = int(sha256_hex(seal + mark.to_bytes(8, "big")), 16)
    return np.sort(np.random.default_rng(seed).permutation(count)[:IMAGES])


def replay(marks):
    """Replay marks under every normalization and return the list of ``Replay``, one a mark, that agrees best.

    Args:
        marks: for each mark its (state, images uint8 [n, 32, 32, 3], indices [n, 8, 8], reconstruction like images).
    """
    outcomes = [[_replay(*mark, normalization) for mark in marks] for normalization in _NORMALIZATIONS]

    def quality(outcome):
        reproduced = all(one.indices_agree and one.reconstructions_agree for one in outcome)
        return reproduced, min(one.equal for one in outcome), -max(one.worst for one in outcome)

    return max(outcomes, key=quality)


def _replay(state, images, indices, reconstruction, normalization):
    weights = {name: array.astype(np.float64) for name, array in state.items()}
    latents, codes = normalize(encode(images, weights), codebook(weights), normalization)
    nearest, gap = nearest_codes(latents, codes, indices)
    differs = nearest != indices
    decoded = decode(codes[indices], weights)
    return Replay(
        equal=float(1 - differs.mean()),
        unexplained=int((gap[differs] > NEAR_TIE).sum()),
        worst=int(np.abs(decoded.astype(np.int16) - reconstruction).max()),
    )


def encode(images, weights):
    """Latents [n, 8, 8, D] of uint8 images."""
    x = images.astype(np.float64) / 127.5 - 1
    x = _relu(_conv(x, weights, "encoder.down1", stride=2))
    x = _relu(_conv(x, weights, "encoder.down2", stride=2))
    return _conv(x, weights, "encoder.out", stride=1)


def decode(codes, weights):
    """uint8 images of selected codes [n, 8, 8, D]."""
    x = _relu(_conv(codes, weights, "decoder.inp", stride=1))
    x = _relu(_transposed_conv(x, weights, "decoder.up1"))
    x = _transposed_conv(x, weights, "decoder.up2")
    return np.rint((x + 1) * 127.5).clip(0, 255).astype(np.uint8)


def codebook(weights):
    """Q [K, D]: coefficients through the projection."""
    projection = weights["quantizer.projection.weight"]
    return weights["quantizer.coefficients"] @ projection.T + weights["quantizer.projection.bias"]


def normalize(latents, codes, normalization):
    """Latents and codes as the search sees them: ``none``, ``l2`` (both to length 1), ``layer_norm`` (latents)."""
    if normalization == "l2":
        return tuple(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in (latents, codes))
    if normalization == "layer_norm":
        centred = latents - latents.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5), codes
    return latents, codes


def nearest_codes(latents, codes, stored):
    """The nearest code of each latent, ties to the lowest index, and how much farther the stored one is.

    Returns:
        indices like ``stored``, and the gap d(stored) − d(nearest) of squared distances over ‖z‖² + ‖q_stored‖².
    """
    flat, chosen = latents.reshape(-1, latents.shape[-1]), stored.reshape(-1)
    powers, lengths = (flat**2).sum(1), (codes**2).sum(1)
    nearest, gap = np.empty(len(flat), np.int64), np.empty(len(flat))
    rows = max(1, (1 << 22) // len(codes))  # at most 2^22 distances at once, whatever K is
    for start in range(0, len(flat), rows):
        part = slice(start, start + rows)
        distances = powers[part, None] - 2 * flat[part] @ codes.T + lengths
        nearest[part] = distances.argmin(1)
        scale = powers[part] + lengths[chosen[part]] + np.finfo(np.float64).tiny
        gap[part] = (distances[np.arange(len(distances)), chosen[part]] - distances.min(1)) / scale
    return nearest.reshape(stored.shape), gap.reshape(stored.shape)


def _conv(x, weights, name, *, stride):
    """A convolution with padding 1, as a sum over the positions of its kernel [out, in, k, k]."""
    kernel = weights[f"{name}.weight"]
    reach = kernel.shape[2]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    size = (x.shape[1] + 2 - reach) // stride + 1
    span = stride * (size - 1) + 1
    result = np.broadcast_to(weights[f"{name}.bias"], (len(x), size, size, len(kernel))).copy()
    for row in range(reach):
        for column in range(reach):
            seen = padded[:, row : row + span : stride, column : column + span : stride]
            result += seen @ kernel[:, :, row, column].T
    return result


def _transposed_conv(x, weights, name):
    """A transposed convolution, kernel [in, out, 4, 4], stride 2, padding 1: each input pixel adds a patch."""
    kernel = weights[f"{name}.weight"]
    size = 2 * x.shape[1]
    padded = np.zeros((len(x), size + 2, size + 2, kernel.shape[1]))
    for row in range(4):
        for column in range(4):
            padded[:, row : row + size : 2, column : column + size : 2] += x @ kernel[:, :, row, column]
    return padded[:, 1:-1, 1:-1] + weights[f"{name}.bias"]


def _relu(x):
    return np.maximum(x, 0)
