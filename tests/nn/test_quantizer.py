"""The quantizer, knob by knob: hand values, a plain VQ written out here, vector-quantize-pytorch, closed forms."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import contract_spec
from torch import nn

from vqkit.nn.autoencoder import Autoencoder, seeded
from vqkit.nn.quantizer import (
    BASIS_INIT,
    COEFFICIENT_INIT,
    GRADIENT_ESTIMATOR,
    LATENT_NORMALIZATION,
    Quantizer,
    code_counts,
    one_hot_columns,
)  # fmt: skip

BASELINE = contract_spec()["knobs"]["baseline"]


def small(seed=0, **knobs):
    return Autoencoder(codes=8, latent_dim=4, hidden=6, knobs=BASELINE | knobs, seed=seed)


def quantizer(C, W, b=None, **knobs):
    """A quantizer with given coefficients, basis and bias, all trainable."""
    made = Quantizer(len(C), len(W), **knobs)
    with torch.no_grad():
        made.coefficients.copy_(torch.tensor(C, dtype=torch.float32))
        made.projection.weight.copy_(torch.tensor(W, dtype=torch.float32))
        made.projection.bias.copy_(torch.zeros(len(W)) if b is None else torch.tensor(b, dtype=torch.float32))
    return made


def quantizer_loss(quantized, beta):
    return quantized.codebook_loss + beta * quantized.commitment_loss


def test_beta_belongs_to_the_encoder_term():
    # taming-transformers#46, #57: z = .5, C = [[1], [-1]], W = [[2]], no bias, beta = .25
    made = quantizer([[1.0], [-1.0]], [[2.0]])
    z = torch.tensor([[0.5]], requires_grad=True)
    loss = quantizer_loss(made(z), 0.25)
    dz, dW = torch.autograd.grad(loss, [z, made.projection.weight])
    assert loss.item() == 2.8125
    assert dz.item() == -0.75
    assert dW.item() == 3.0


def test_reconstruction_loss_does_not_reach_the_codebook():
    # pytorch-vqvae#7
    model = small()
    images = torch.rand(2, 3, 32, 32, generator=seeded(0, "x")) * 2 - 1
    loss = (model(images).reconstruction_NCHW - images).square().mean()
    weight = model.quantizer.projection.weight
    encoder = model.encoder.down1.weight
    to_weight, to_encoder = torch.autograd.grad(loss, [weight, encoder], allow_unused=True)
    assert to_weight is None
    assert to_encoder.abs().sum() > 0


@pytest.mark.parametrize("normalization", LATENT_NORMALIZATION)
@pytest.mark.parametrize("estimator", GRADIENT_ESTIMATOR)
def test_output_is_the_codebook_row_in_training_and_evaluation(normalization, estimator):
    # RQ-VAE-Recommender#48, and SimVQ's lookup that returns unprojected rows
    model = small(latent_normalization=normalization, gradient_estimator=estimator)
    latents = torch.randn(40, 4, generator=seeded(1, "z")) * 5
    trained = model.train().quantizer(latents)
    evaluated = model.eval().quantizer(latents)
    rows = model.quantizer.codebook()[trained.indices_N]
    for output in (trained, evaluated):
        assert torch.equal(output.indices_N, trained.indices_N)
        assert torch.equal(output.codes_ND, rows)
    assert torch.equal(model.quantizer.codes(trained.indices_N), rows)


def test_codes_of_stored_indices_decode_to_the_same_image():
    model = small()
    images = torch.rand(3, 3, 32, 32, generator=seeded(2, "x")) * 2 - 1
    with torch.no_grad():
        output = model(images)
        codes = model.quantizer.codes(output.quantized.indices_N.view(3, 8, 8)).permute(0, 3, 1, 2)
        assert torch.equal(model.decoder(codes), output.reconstruction_NCHW)


def test_evaluation_changes_nothing():
    # vector-quantize-pytorch#163
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model(torch.rand(4, 3, 32, 32))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_float32_whatever_surrounds_it():
    # vector-quantize-pytorch#10
    made = small().quantizer
    latents = torch.randn(50, 4, generator=seeded(3, "z")) * 300
    plain = made(latents)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = made(latents)
    assert inside.codes_ND.dtype == torch.float32
    assert inside.codebook_loss.item() == plain.codebook_loss.item()
    assert torch.isfinite(made((latents * 30).half()).codebook_loss)  # its square is not finite in float16


class PlainVQ(nn.Module):
    """Vanilla VQ as van den Oord et al. wrote it down: a table, nearest row, two losses, straight-through."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table.clone())

    def forward(self, z):
        distances = ((z.detach().unsqueeze(1) - self.table.detach()) ** 2).sum(-1)
        indices = distances.argmin(1)
        q = F.embedding(indices, self.table)
        codebook, commitment = F.mse_loss(q, z.detach()), F.mse_loss(z, q.detach())
        return z + (q - z).detach(), indices, codebook, commitment


def test_vanilla_setting_is_a_plain_vq_to_the_bit():
    torch.manual_seed(0)
    made = small(trainability="coefficients", basis_init="identity").quantizer
    plain = PlainVQ(made.coefficients.detach())
    ours = torch.optim.Adam([p for p in made.parameters() if p.requires_grad], lr=1e-2)
    theirs = torch.optim.Adam(plain.parameters(), lr=1e-2)
    assert [p.shape for p in made.parameters() if p.requires_grad] == [made.coefficients.shape]
    for _ in range(25):
        z = torch.randn(64, 4)
        a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
        quantized = made(a)
        out, indices, codebook, commitment = plain(b)
        target = torch.randn(64, 4)
        loss_a = F.mse_loss(quantized.codes_ND, target) + quantizer_loss(quantized, 0.25)
        loss_b = F.mse_loss(quantized.codes_ND.detach() + (out - out.detach()), target) + codebook + 0.25 * commitment
        ours.zero_grad()
        theirs.zero_grad()
        loss_a.backward()
        loss_b.backward()
        assert torch.equal(quantized.indices_N, indices)
        assert torch.equal(quantized.codebook_loss, codebook)
        assert torch.equal(quantized.commitment_loss, commitment)
        assert torch.equal(a.grad, b.grad)
        assert torch.equal(made.coefficients.grad, plain.table.grad)
        ours.step()
        theirs.step()
        assert torch.equal(made.codebook().detach(), plain.table.detach())


@pytest.mark.parametrize("rotation", [False, True])
def test_simvq_agrees_with_vector_quantize_pytorch(rotation):
    from vector_quantize_pytorch import SimVQ

    torch.manual_seed(1)
    dim, codes, beta = 6, 12, 0.25
    reference = SimVQ(
        dim=dim, codebook_size=codes, rotation_trick=rotation, input_to_quantize_commit_loss_weight=beta,
        commitment_weight=1.0, codebook_transform=nn.Linear(dim, dim),
    )  # fmt: skip
    made = Quantizer(codes, dim, gradient_estimator="rotation" if rotation else "straight_through")
    with torch.no_grad():
        made.coefficients.copy_(reference.frozen_codebook)
        made.projection.load_state_dict(reference.code_transform.state_dict())
    z = torch.randn(5, 7, dim)
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    quantized = made(a.view(-1, dim))
    out, indices, loss = reference(b)
    assert torch.equal(quantized.indices_N, indices.flatten())
    torch.testing.assert_close(quantized.codes_ND, out.reshape(-1, dim), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(quantizer_loss(quantized, beta), loss, rtol=1e-5, atol=1e-7)
    target = torch.randn(35, dim)
    (F.mse_loss(quantized.codes_ND, target) + quantizer_loss(quantized, beta)).backward()
    (F.mse_loss(out.reshape(-1, dim), target) + loss).backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(made.projection.parameters(), reference.code_transform.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def rotation_matrix(z, q):
    """R of Fifty et al. 2024, equation 3, in float64."""
    e, p = z / z.norm(), q / q.norm()
    r = (e + p) / (e + p).norm()
    return torch.eye(len(z), dtype=z.dtype) - 2 * torch.outer(r, r) + 2 * torch.outer(p, e)


def test_rotation_is_the_closed_form():
    torch.manual_seed(2)
    z, q, g = (torch.randn(9, 5) for _ in range(3))
    leaf = z.clone().requires_grad_()
    out = GRADIENT_ESTIMATOR["rotation"](leaf, q)
    out.backward(g)
    assert torch.equal(out, q)
    for i in range(9):
        R, scale = rotation_matrix(z[i].double(), q[i].double()), q[i].double().norm() / z[i].double().norm()
        torch.testing.assert_close(scale * R @ z[i].double(), q[i].double())
        torch.testing.assert_close(leaf.grad[i].double(), scale * R.T @ g[i].double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("z", "q"),
    [([0.0, 0.0], [1.0, 2.0]), ([1.0, 2.0], [-2.0, -4.0]), ([0.0, 0.0], [0.0, 0.0]), ([1e-20, 0.0], [1.0, 0.0])],
)
def test_rotation_stays_finite(z, q):
    leaf = torch.tensor([z], requires_grad=True)
    GRADIENT_ESTIMATOR["rotation"](leaf, torch.tensor([q])).sum().backward()
    assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize(("trainability", "moving"), [("coefficients", {0, 2, 3, 5, 7}), ("basis", set(range(8)))])
def test_which_effective_rows_move(trainability, moving):
    # sonnet#272: one step, 5 of 8 codes selected
    model = small(trainability=trainability)
    made = model.quantizer
    chosen = torch.tensor([0, 2, 3, 5, 7])
    before = made.codebook().detach().clone()
    optimizer = torch.optim.Adam([p for p in made.parameters() if p.requires_grad], lr=1e-2)
    quantized = made(before[chosen] + 1e-3)
    assert torch.equal(quantized.indices_N, chosen)
    quantized.codebook_loss.backward()
    optimizer.step()
    after = made.codebook().detach()
    assert {i for i in range(8) if not torch.equal(before[i], after[i])} == moving


def test_normalizations():
    torch.manual_seed(3)
    x = torch.randn(10, 16) * 3 + 1
    latents, codes = LATENT_NORMALIZATION["l2"]
    for normalize in (latents, codes):
        torch.testing.assert_close(normalize(x), x / x.square().sum(1, keepdim=True).sqrt())
    latents, codes = LATENT_NORMALIZATION["layer_norm"]
    expected = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(latents(x), expected)
    assert codes(x) is x


def test_basis_initializations():
    weight, bias = torch.empty(64, 64), torch.empty(64)
    BASIS_INIT["linear_default"](weight, bias, seeded(0, "b"))
    for tensor in (weight, bias):
        assert tensor.abs().max() <= 1 / 8
    assert weight.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.05)
    BASIS_INIT["orthogonal"](weight, bias, seeded(0, "b"))
    torch.testing.assert_close(weight @ weight.T, torch.eye(64), atol=1e-5, rtol=0)
    assert not bias.any()
    BASIS_INIT["identity"](weight, bias, seeded(0, "b"))
    assert torch.equal(weight, torch.eye(64))
    assert not bias.any()


def test_coefficient_initializations():
    C = torch.empty(128, 64)
    COEFFICIENT_INIT["gaussian"](C, seeded(0, "c"))
    assert C.std().item() == pytest.approx(1 / 8, rel=0.05)
    COEFFICIENT_INIT["uniform"](C, seeded(0, "c"))
    assert C.abs().max() <= 1 / 128
    assert C.std().item() == pytest.approx(1 / 128 / math.sqrt(3), rel=0.05)


def test_arms_of_one_seed_share_encoder_and_decoder():
    one, two, other = small(5), small(5, basis_init="orthogonal", coefficient_init="uniform"), small(6)
    for (name, a), b, c in zip(one.named_parameters(), two.parameters(), other.parameters(), strict=True):
        if not name.startswith("quantizer"):
            assert torch.equal(a, b), name
            assert not torch.equal(a, c), name


def test_convolutions_start_as_torch_starts_them():
    model = Autoencoder(codes=8, latent_dim=32, hidden=64, knobs=BASELINE, seed=0)
    for layer in (model.encoder.down2, model.decoder.up1, model.decoder.up2, model.encoder.out):
        kind = nn.ConvTranspose2d if isinstance(layer, nn.ConvTranspose2d) else nn.Conv2d
        theirs = kind(layer.in_channels, layer.out_channels, layer.kernel_size)
        bound = theirs.weight.abs().max().item()  # of thousands of uniform draws, so nearly the bound itself
        assert layer.weight.abs().max().item() == pytest.approx(bound, rel=0.02)
        assert layer.bias.abs().max().item() <= bound * 1.02
        assert layer.weight.std().item() == pytest.approx(theirs.weight.std().item(), rel=0.1)


def test_one_hot_gradient_equals_index_add():
    indices = torch.randint(0, 3000, (500,), generator=seeded(0, "i"))
    gradient = torch.randn(500, 4, generator=seeded(0, "g"))
    dense = torch.cat([block.t() @ gradient for block in one_hot_columns(indices, 3000, torch.float32)])
    torch.testing.assert_close(dense, torch.zeros(3000, 4).index_add_(0, indices, gradient))
    assert torch.equal(code_counts(indices, 3000), torch.bincount(indices, minlength=3000).float())


def test_coefficients_for_lands_on_the_latents():
    made = small(basis_init="orthogonal").quantizer
    wanted = torch.randn(8, 4, generator=seeded(4, "q"))
    with torch.no_grad():
        made.coefficients.copy_(made.coefficients_for(wanted))
        torch.testing.assert_close(made.projection(made.coefficients), wanted, atol=1e-5, rtol=1e-5)
