"""The numpy model against torch modules written out here, and V4 on runs that really come from such a model."""

import copy

import fabricate
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.nn import functional

from evaluator import replay
from evaluator.verify import verify
from vqkit.formats import dataset, run
from vqkit.formats.contract import CONFIGS, Contract
from vqkit.formats.knobs import KNOBS

NORMALIZATIONS = KNOBS["latent_normalization"].choices


class Model(nn.Module):
    """The autoencoder as DESIGN.md describes it, in torch's own modules."""

    def __init__(self, contract, normalization, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        k, d, h = contract.codes, contract.latent_dim, contract.hidden
        self.encoder = nn.ModuleDict(
            {"down1": nn.Conv2d(3, h, 4, 2, 1), "down2": nn.Conv2d(h, h, 4, 2, 1), "out": nn.Conv2d(h, d, 3, 1, 1)}
        )
        self.quantizer = nn.ParameterDict({"coefficients": nn.Parameter(torch.randn(k, d) * d**-0.5)})
        self.projection = nn.Linear(d, d)
        self.decoder = nn.ModuleDict(
            {
                "inp": nn.Conv2d(d, h, 3, 1, 1),
                "up1": nn.ConvTranspose2d(h, h, 4, 2, 1),
                "up2": nn.ConvTranspose2d(h, 3, 4, 2, 1),
            }
        )
        self.normalization = normalization

    def state(self):
        named = {name: value.detach().numpy().copy() for name, value in self.state_dict().items()}
        return {name.replace("projection.", "quantizer.projection.", 1): value for name, value in named.items()}

    @torch.no_grad()
    def forward(self, images):
        """(indices, reconstruction) of uint8 images [n, 32, 32, 3], in float32."""
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
        x = functional.relu(self.encoder["down1"](x))
        x = functional.relu(self.encoder["down2"](x))
        z = self.encoder["out"](x).permute(0, 2, 3, 1)
        q = self.projection(self.quantizer["coefficients"])
        if self.normalization == "l2":
            z, q = functional.normalize(z, dim=-1), functional.normalize(q, dim=-1)
        if self.normalization == "layer_norm":
            z = functional.layer_norm(z, z.shape[-1:])
        indices = torch.cdist(z.flatten(0, 2), q, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        x = q[indices].reshape(z.shape).permute(0, 3, 1, 2)
        x = functional.relu(self.decoder["inp"](x))
        x = functional.relu(self.decoder["up1"](x))
        x = self.decoder["up2"](x)
        image = ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
        return indices.reshape(z.shape[:3]).numpy(), image.numpy()


@pytest.fixture(scope="module")
def pixels(tiny, tiny_data):
    return dataset.open_dataset(tiny_data, dataset.contract_counts(tiny)).images["evaluation"]


def widen(model):
    """Scale the last layers, so that latents spread and reconstructions use the whole range of grey levels."""
    with torch.no_grad():
        model.encoder["out"].weight.mul_(10)
        model.decoder["up2"].weight.mul_(20)
    return model


def evidence_of(contract, images, normalization):
    """mark → evidence of a torch model."""

    def evidence(mark):
        model = widen(Model(contract, normalization, seed=mark))
        indices, reconstruction = model(images)
        kind = run.mark_layout(contract)["indices"][0]
        return model.state(), indices.astype(kind), reconstruction

    return evidence


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_the_numpy_model_is_torchs(tiny, pixels, normalization):
    model = widen(Model(tiny, normalization))
    state = model.state()
    assert {name: (array.dtype.name, array.shape) for name, array in state.items()} == run.state_layout(tiny)
    indices, reconstruction = model(pixels)
    assert len(np.unique(indices)) > 2
    assert reconstruction.std() > 10
    weights = {name: array.astype(np.float64) for name, array in state.items()}
    latents, codes = replay.normalize(replay.encode(pixels, weights), replay.codebook(weights), normalization)
    nearest, _ = replay.nearest_codes(latents, codes, indices)
    assert (nearest == indices).mean() >= 0.999
    decoded = replay.decode(codes[indices], weights).astype(int)
    assert np.abs(decoded - reconstruction).max() <= 1
    assert (decoded == reconstruction).mean() > 0.99


def test_ties_go_to_the_lowest_index():
    codes = np.array([[1.0, 0], [0, 1], [0, 1], [1, 0]])
    latents = np.array([[0.0, 1], [1, 0], [0, 0]])
    nearest, gap = replay.nearest_codes(latents, codes, np.array([2, 3, 1]))
    assert nearest.tolist() == [1, 0, 0]
    assert gap.tolist() == [0, 0, 0]


def test_the_gap_is_relative_to_the_lengths():
    nearest, gap = replay.nearest_codes(np.array([[2.0]]), np.array([[1.0], [4.0]]), np.array([1]))
    assert nearest.tolist() == [0]
    assert gap.tolist() == [(4 - 1) / (4 + 16)]


def test_nearest_codes_in_chunks_are_those_of_one_pass():
    rng = np.random.default_rng(0)
    latents, codes = rng.normal(size=(200, 4)), rng.normal(size=(1 << 15, 4))
    stored = rng.integers(0, len(codes), 200)
    nearest, gap = replay.nearest_codes(latents, codes, stored)
    distances = ((latents[:, None] - codes) ** 2).sum(-1)
    np.testing.assert_array_equal(nearest, distances.argmin(1))
    assert (gap >= -1e-12).all()


def test_the_draw_follows_from_the_seal():
    first = replay.draw(b"seal", 2, 512)
    assert len(first) == len(set(first)) == 64
    np.testing.assert_array_equal(first, replay.draw(b"seal", 2, 512))
    assert (first != replay.draw(b"seal", 5, 512)).any()
    assert (first != replay.draw(b"seam", 2, 512)).any()
    assert replay.draw(b"seal", 2, 10).tolist() == list(range(10))


@pytest.fixture
def replayed(tmp_path, tiny, tiny_data):
    """A function that seals evidence, verifies it to V4, and gives the verdict."""
    lock = fabricate.write_lock(tmp_path / "LOCK.json", tiny)

    def sealed(evidence, **options):
        folder = fabricate.write_run(tmp_path / "run", tiny, tiny_data, evidence=evidence, **options)
        return verify(folder, level="V4", data=tiny_data, lock=lock)

    return sealed


def failed(verdict):
    return {check.id for check in verdict.checks if check.status == "failed"}


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_model_replays_under_any_normalization_and_the_arm_stays_unsaid(replayed, tiny, pixels, normalization):
    verdict = replayed(evidence_of(tiny, pixels, normalization))
    assert (verdict.status, verdict.level) == ("passed", "V4")
    said = str(verdict.to_json())
    assert not any(word in said for word in ("l2", "layer_norm"))


def tampered(honest, change):
    """Evidence whose parts went through ``change(weights, indices, reconstruction)`` at the last mark."""

    def evidence(mark):
        parts = copy.deepcopy(honest(mark))
        if mark == 2:
            change(*parts)
        return parts

    return evidence


def test_prettier_reconstructions_are_caught(replayed, tiny, pixels):
    def retouch(weights, indices, reconstruction):
        reconstruction[:] = pixels

    assert failed(replayed(tampered(evidence_of(tiny, pixels, "none"), retouch))) == {"V4.reconstruction"}


def test_one_retouched_pixel_is_caught(replayed, tiny, pixels):
    def retouch(weights, indices, reconstruction):
        reconstruction[3, 5, 5, 1] ^= 0x10

    assert failed(replayed(tampered(evidence_of(tiny, pixels, "none"), retouch))) == {"V4.reconstruction"}


def test_better_spread_indices_are_caught(replayed, tiny, pixels):
    def spread(weights, indices, reconstruction):
        indices[:] = np.arange(indices.size).reshape(indices.shape) % tiny.codes

    assert failed(replayed(tampered(evidence_of(tiny, pixels, "none"), spread))) == {"V4.indices", "V4.reconstruction"}


def test_one_changed_index_is_no_near_tie(replayed, tiny, pixels):
    """One of 1,024 indices is within the share that may differ, but nothing explains it."""

    def change(weights, indices, reconstruction):
        indices[0, 0, 0] = (indices[0, 0, 0] + 1) % tiny.codes

    assert "V4.indices" in failed(replayed(tampered(evidence_of(tiny, pixels, "none"), change)))


def test_other_weights_are_caught(replayed, tiny, pixels):
    def swap(weights, indices, reconstruction):
        weights.update(Model(tiny, "none", seed=99).state())

    assert "V4.reconstruction" in failed(replayed(tampered(evidence_of(tiny, pixels, "none"), swap)))


def test_one_normalization_must_reproduce_all_marks(replayed, tiny, pixels):
    def evidence(mark):
        return evidence_of(tiny, pixels, "l2" if mark == 2 else "none")(mark)

    assert failed(replayed(evidence)) >= {"V4.reconstruction"}


def test_a_near_tie_is_explained(replayed, tiny, pixels):
    """A code put as far from one latent as its nearest code is: the index of that latent may name either."""

    def evidence(mark):
        model = widen(Model(tiny, "none", seed=mark))
        weights = {name: array.astype(np.float64) for name, array in model.state().items()}
        indices, _ = model(pixels)
        winner, loser = int(indices[0, 0, 0]), int(np.setdiff1d(np.arange(tiny.codes), indices)[0])
        latent, code = replay.encode(pixels[:1], weights)[0, 0, 0], replay.codebook(weights)[winner]
        mirrored = 2 * latent - code - weights["quantizer.projection.bias"]
        row = np.linalg.solve(weights["quantizer.projection.weight"], mirrored)
        with torch.no_grad():
            model.quantizer["coefficients"][loser] = torch.from_numpy(row).float()
        indices, _ = model(pixels)
        assert indices[0, 0, 0] in (winner, loser)
        indices[0, 0, 0] = winner + loser - indices[0, 0, 0]
        weights = {name: array.astype(np.float64) for name, array in model.state().items()}
        reconstruction = replay.decode(replay.codebook(weights)[indices], weights)
        return model.state(), indices.astype("uint16"), reconstruction

    assert failed(replayed(evidence)) == set()


@pytest.mark.parametrize("name", ["quick-v1", "cifar10-v1"])
def test_the_shipped_contracts_replay(name):
    contract = Contract(OmegaConf.to_container(OmegaConf.load(CONFIGS / "contract" / f"{name}.yaml")))
    images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    state, indices, reconstruction = evidence_of(contract, images, "layer_norm")(0)
    (outcome,) = replay.replay([(state, images, indices, reconstruction)])
    assert outcome.indices_agree
    assert outcome.reconstructions_agree
