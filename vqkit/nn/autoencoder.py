"""The frozen autoencoder: two strided convolutions down, the quantizer, two transposed convolutions up."""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import nn

from vqkit.nn.convolution import Convolution, Upsample
from vqkit.nn.quantizer import BASIS_INIT, COEFFICIENT_INIT, Quantized, Quantizer


class Encoder(nn.Module):
    """Images [N, 3, 32, 32] in [-1, 1] → latents [N, D, 8, 8]."""

    def __init__(self, hidden, latent_dim):
        super().__init__()
        self.down1 = Convolution(3, hidden, 4, stride=2)
        self.down2 = Convolution(hidden, hidden, 4, stride=2, rectify=True)
        self.out = Convolution(hidden, latent_dim, 3, rectify=True)

    def forward(self, images_NCHW):
        return self.out(self.down2(self.down1(images_NCHW)))


class Decoder(nn.Module):
    """Codes [N, D, 8, 8] → images [N, 3, 32, 32], about [-1, 1]."""

    def __init__(self, hidden, latent_dim):
        super().__init__()
        self.inp = Convolution(latent_dim, hidden, 3)
        self.up1 = Upsample(hidden, hidden)
        self.up2 = Upsample(hidden, 3)

    def forward(self, codes_NCHW):
        return self.up2(self.up1(self.inp(codes_NCHW)))


@dataclass(frozen=True, kw_only=True)
class Output:
    """One forward pass: the reconstruction [N, 3, 32, 32] and what the quantizer returned (N·8·8 latents)."""

    reconstruction_NCHW: torch.Tensor
    quantized: Quantized


class Autoencoder(nn.Module):
    """Encoder, quantizer, decoder.

    Args:
        codes, latent_dim, hidden: K, D, h of the contract.
        knobs: a complete effective knob assignment.
        seed: every tensor is initialized from (seed, its name), so that arms with one seed start from the same encoder
            and decoder whatever their knobs are.
    """

    def __init__(self, *, codes, latent_dim, hidden, knobs, seed):
        super().__init__()
        self.encoder = Encoder(hidden, latent_dim)
        self.quantizer = Quantizer(codes, latent_dim, knobs["latent_normalization"], knobs["gradient_estimator"])
        self.decoder = Decoder(hidden, latent_dim)
        self._initialize(knobs, seed)
        for tensor in (self.quantizer.projection.weight, self.quantizer.projection.bias):
            tensor.requires_grad_(knobs["trainability"] in ("basis", "both"))
        self.quantizer.coefficients.requires_grad_(knobs["trainability"] in ("coefficients", "both"))

    def forward(self, images_NCHW):
        return self.decode(self.encode(images_NCHW), len(images_NCHW))

    def encode(self, images_NCHW):
        """Latents [N·8·8, D], one row for each position, image by image."""
        latents_NDHW = self.encoder(images_NCHW)
        return latents_NDHW.permute(0, 2, 3, 1).reshape(-1, latents_NDHW.shape[1])

    def decode(self, latents_ND, images):
        """Quantize the latents of ``images`` images and decode the codes."""
        quantized = self.quantizer(latents_ND)
        side = math.isqrt(len(latents_ND) // images)
        codes_NDHW = quantized.codes_ND.view(images, side, side, -1).permute(0, 3, 1, 2)
        return Output(reconstruction_NCHW=self.decoder(codes_NDHW), quantized=quantized)

    @torch.no_grad()
    def _initialize(self, knobs, seed):
        for name, layer in self.named_modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                bound = 1 / math.sqrt(layer.weight[0].numel())  # torch's default: uniform in ±fan_in^-1/2
                generator = seeded(seed, name)
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
        quantizer = self.quantizer
        COEFFICIENT_INIT[knobs["coefficient_init"]](quantizer.coefficients, seeded(seed, "coefficients"))
        weight, bias = quantizer.projection.weight, quantizer.projection.bias
        BASIS_INIT[knobs["basis_init"]](weight, bias, seeded(seed, "basis"))


def seeded(seed, *purpose):
    """A CPU generator for one purpose: a function of (seed, purpose) alone, independent between purposes."""
    text = "/".join(map(str, (seed, *purpose)))
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1)
