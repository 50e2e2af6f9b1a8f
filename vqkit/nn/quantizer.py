"""The one-layer quantizer: codebook Q = projection(C), and every knob that acts inside it.

Coefficients C [K, D] go through one linear layer, the basis W [D, D] with a bias. SimVQ (Zhu et al. 2024,
arXiv:2411.02038) trains the basis and freezes C; vanilla VQ (van den Oord et al. 2017, arXiv:1711.00937) is W =
identity, bias 0, frozen, with C trained. Which is which is decided by knobs alone; the computation is one.

Each knob with choices is one table below, from its value to its effect.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from vqkit.nn.nearest import nearest_codes

ONE_HOT_CODES = 1024  # codes whose one-hot columns are alive at once in a gradient on CUDA


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What the quantizer returns for latents [N, D].

    ``codes_ND`` equals the selected codebook rows exactly and carries the decoder's gradient to the encoder only;
    ``indices_N`` int64; the losses are means over all N·D entries, unweighted; ``power`` is mean(z²), detached.
    """

    codes_ND: torch.Tensor
    indices_N: torch.Tensor
    codebook_loss: torch.Tensor
    commitment_loss: torch.Tensor
    power: torch.Tensor


class Quantizer(nn.Module):
    """A codebook of K codes of length D.

    Args:
        codes: K.
        latent_dim: D.
        latent_normalization, gradient_estimator: knob values, see the tables.
    """

    def __init__(self, codes, latent_dim, latent_normalization="none", gradient_estimator="straight_through"):
        super().__init__()
        self.coefficients = nn.Parameter(torch.empty(codes, latent_dim))
        self.projection = nn.Linear(latent_dim, latent_dim)
        self.normalize_latents, self.normalize_codes = LATENT_NORMALIZATION[latent_normalization]
        self.pass_gradient = GRADIENT_ESTIMATOR[gradient_estimator]

    def codebook(self):
        """All codes as latents see them, [K, D]."""
        return self.normalize_codes(self.projection(self.coefficients))

    def codes(self, indices):
        """The codebook rows of ``indices`` (any shape), [..., D]: what the decoder received for them."""
        return self.codebook()[indices]

    def forward(self, latents_ND):
        """Quantize; always in float32, whatever autocast surrounds it."""
        with torch.autocast(latents_ND.device.type, enabled=False):
            z_ND = self.normalize_latents(latents_ND.float())
            codebook_KD = self.codebook()
            indices_N = nearest_codes(z_ND.detach(), codebook_KD.detach())
            q_ND = SelectRows.apply(codebook_KD, indices_N)
            return Quantized(
                codes_ND=self.pass_gradient(z_ND, q_ND.detach()),
                indices_N=indices_N,
                codebook_loss=F.mse_loss(q_ND, z_ND.detach()),
                commitment_loss=F.mse_loss(z_ND, q_ND.detach()),
                power=z_ND.detach().square().mean(),
            )

    @torch.no_grad()
    def coefficients_for(self, codes_ND):
        """Coefficients whose projection is nearest to ``codes_ND`` (least squares, in float64 on the CPU), [N, D]."""
        weight, bias = self.projection.weight.double().cpu(), self.projection.bias.double().cpu()
        solution = (codes_ND.double().cpu() - bias) @ torch.linalg.pinv(weight, rtol=1e-3).t()
        return solution.float().to(codes_ND.device)


class SelectRows(torch.autograd.Function):
    """Rows of a table by index, with a gradient that adds up in a fixed order on every device.

    On the CPU ``index_add_`` adds in index order. On CUDA it would add atomically, in any order, so the gradient is a
    product with one-hot columns instead, ``ONE_HOT_CODES`` of them at a time.
    """

    @staticmethod
    def forward(ctx, table_KD, indices_N):
        ctx.save_for_backward(indices_N)
        ctx.rows = len(table_KD)
        return table_KD.index_select(0, indices_N)

    @staticmethod
    def backward(ctx, gradient_ND):
        (indices_N,) = ctx.saved_tensors
        if gradient_ND.device.type == "cpu":
            return gradient_ND.new_zeros(ctx.rows, gradient_ND.shape[1]).index_add_(0, indices_N, gradient_ND), None
        parts = [one_hot.t() @ gradient_ND for one_hot in one_hot_columns(indices_N, ctx.rows, gradient_ND.dtype)]
        return torch.cat(parts), None


def one_hot_columns(indices_N, codes, dtype):
    """The one-hot matrix [N, K] of ``indices_N``, in blocks of at most ``ONE_HOT_CODES`` columns."""
    for start in range(0, codes, ONE_HOT_CODES):
        columns = torch.arange(start, min(start + ONE_HOT_CODES, codes), device=indices_N.device)
        yield (indices_N.unsqueeze(1) == columns).to(dtype)


def code_counts(indices_N, codes):
    """How often each code was selected, float32 [K] (exact below 2^24), without atomics."""
    return torch.cat([block.sum(0) for block in one_hot_columns(indices_N, codes, torch.float32)])


class _StraightThrough(torch.autograd.Function):
    """q forward; the gradient of q goes to z unchanged (Bengio et al. 2013, arXiv:1308.3432)."""

    @staticmethod
    def forward(ctx, z_ND, q_ND):
        return q_ND.clone()

    @staticmethod
    def backward(ctx, gradient_ND):
        return gradient_ND, None


class _Rotation(torch.autograd.Function):
    """q forward; the gradient goes to z through the rotation and scaling that takes z to q, held constant.

    Fifty et al. 2024 (arXiv:2410.06424): q = λ R z with λ = |q|/|z|, R = I − 2 r rᵀ + 2 q̂ ẑᵀ, r = (ẑ + q̂)/|ẑ + q̂|, so
    the gradient is λ Rᵀ g. Norms are kept above 1e-6: for z = 0 the scale stays finite, for antiparallel z and q the
    vanishing r drops out.
    """

    EPSILON = 1e-6

    @staticmethod
    def forward(ctx, z_ND, q_ND):
        ctx.save_for_backward(z_ND, q_ND)
        return q_ND.clone()

    @staticmethod
    def backward(ctx, gradient_ND):
        z_ND, q_ND = ctx.saved_tensors
        floor = _Rotation.EPSILON
        z_norm = z_ND.norm(dim=1, keepdim=True).clamp_min(floor)
        q_norm = q_ND.norm(dim=1, keepdim=True).clamp_min(floor)
        z_unit, q_unit = z_ND / z_norm, q_ND / q_norm
        r = F.normalize(z_unit + q_unit, dim=1, eps=floor)
        along_r = (r * gradient_ND).sum(1, keepdim=True)
        along_q = (q_unit * gradient_ND).sum(1, keepdim=True)
        return q_norm / z_norm * (gradient_ND - 2 * r * along_r + 2 * z_unit * along_q), None


def _keep(x):
    return x


def _unit_length(x):
    return F.normalize(x, dim=-1)


def _layer_norm(x):
    return F.layer_norm(x, x.shape[-1:])


# latent_normalization → (what happens to latents, what happens to codes)
LATENT_NORMALIZATION = {
    "none": (_keep, _keep),
    "l2": (_unit_length, _unit_length),
    "layer_norm": (_layer_norm, _keep),
}

# gradient_estimator → function of (z, detached q) that returns q with a gradient to z
GRADIENT_ESTIMATOR = {
    "straight_through": _StraightThrough.apply,
    "rotation": _Rotation.apply,
}


def _default_basis(weight_DD, bias_D, generator):
    """torch's own nn.Linear initialization: both uniform in ±D^-1/2."""
    bound = 1 / math.sqrt(weight_DD.shape[1])
    weight_DD.uniform_(-bound, bound, generator=generator)
    bias_D.uniform_(-bound, bound, generator=generator)


def _orthogonal_basis(weight_DD, bias_D, generator):
    nn.init.orthogonal_(weight_DD, generator=generator)
    bias_D.zero_()


def _identity_basis(weight_DD, bias_D, generator):
    nn.init.eye_(weight_DD)
    bias_D.zero_()


# basis_init → function that fills weight [D, D] and bias [D]
BASIS_INIT = {"linear_default": _default_basis, "orthogonal": _orthogonal_basis, "identity": _identity_basis}


def _gaussian_coefficients(coefficients_KD, generator):
    coefficients_KD.normal_(0, coefficients_KD.shape[1] ** -0.5, generator=generator)


def _uniform_coefficients(coefficients_KD, generator):
    bound = 1 / coefficients_KD.shape[0]
    coefficients_KD.uniform_(-bound, bound, generator=generator)


# coefficient_init → function that fills coefficients [K, D]; `data` starts as gaussian and is then set from latents
COEFFICIENT_INIT = {
    "gaussian": _gaussian_coefficients,
    "uniform": _uniform_coefficients,
    "data": _gaussian_coefficients,
}
