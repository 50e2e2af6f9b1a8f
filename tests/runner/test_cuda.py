"""What only a CUDA device can show: agreement with the CPU, and equality of runs and of graph and eager steps."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import REPOSITORY, contract_spec

from runner import environment
from runner.train import CapturedStep, Progress, Trainer, epoch_order, run_epochs
from vqkit.formats import dataset
from vqkit.formats.contract import Contract
from vqkit.nn import nearest
from vqkit.nn.nearest import nearest_codes

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

QUICK = Contract(contract_spec())
KNOBS = [
    {},
    {"projection_lr_multiplier": 10.0, "projection_warmup_steps": 10},
    {"trainability": "coefficients", "basis_init": "identity", "dead_code_restart": 2},
    {"gradient_estimator": "rotation", "latent_normalization": "l2"},
    {"trainability": "both", "latent_normalization": "layer_norm", "coefficient_init": "data"},
]


@pytest.fixture(scope="module")
def images():
    environment.pin("cuda", 1)
    rng = np.random.default_rng(0)
    coarse = {"train": rng.integers(0, 256, (2048, 8, 8, 3)), "evaluation": rng.integers(0, 256, (512, 8, 8, 3))}
    return {split: block.repeat(4, 1).repeat(4, 2).astype(np.uint8) for split, block in coarse.items()}


def trainer(images, device="cuda", capture=CapturedStep, **knobs):
    return Trainer(QUICK, QUICK.baseline | knobs, 101, device, images, capture if device == "cuda" else None)


def evidence(made, marks=(0, 2)):
    seen = {}
    run_epochs(
        made,
        marks,
        Progress(),
        on_mark=lambda mark, measured, weights: seen.update({mark: measured | weights}),
        on_epoch=lambda *_: None,
        stop=lambda: None,
    )
    return seen


def assert_same(one, two):
    for mark, arrays in one.items():
        for name, array in arrays.items():
            assert np.array_equal(array, two[mark][name]), f"{name} at mark {mark}"


@pytest.mark.parametrize("knobs", KNOBS, ids=range(len(KNOBS)))
def test_two_runs_are_equal_to_the_bit(images, knobs):
    assert_same(evidence(trainer(images, **knobs)), evidence(trainer(images, **knobs)))


@pytest.mark.parametrize("knobs", KNOBS, ids=range(len(KNOBS)))
def test_graph_and_eager_are_equal_to_the_bit(images, knobs):
    assert_same(evidence(trainer(images, **knobs)), evidence(trainer(images, capture=None, **knobs)))


def test_the_search_without_triton_gives_the_same_evidence(images, monkeypatch):
    fused = evidence(trainer(images))
    monkeypatch.setattr(nearest, "fused_search", lambda: None)
    assert_same(fused, evidence(trainer(images)))


def test_losses_agree_with_the_cpu_over_twenty_steps(images):
    made = [trainer(images, device) for device in ("cpu", "cuda")]
    for one in made:
        one.order.copy_(epoch_order(101, 1, QUICK).view_as(one.order))
        for _ in range(20):
            one.step()
    cpu, cuda = (one.log[:20, 0].cpu().numpy() for one in made)
    np.testing.assert_allclose(cuda, cpu, rtol=2e-3)


def test_indices_agree_with_the_cpu_from_the_same_weights(images):
    cpu, cuda = trainer(images, "cpu"), trainer(images, "cuda")
    cpu.epoch(1)
    cuda.model.load_state_dict(cpu.model.state_dict())
    one, two = cpu.measure(), cuda.measure()
    assert (one["indices"] == two["indices"]).mean() >= 0.999
    same = (one["indices"] == two["indices"]).all(axis=(1, 2))
    difference = one["reconstruction"][same].astype(int) - two["reconstruction"][same]
    assert np.abs(difference).max() <= 1


def test_search_stays_within_bounded_memory_at_a_large_codebook():
    latents, codes = torch.randn(8192, 64, device="cuda"), torch.randn(262_144, 64, device="cuda")
    nearest_codes(latents, codes)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    nearest_codes(latents, codes)
    assert torch.cuda.max_memory_allocated() - before <= 64 << 20


def test_a_run_by_command_is_complete(images, tmp_path):
    """Every module that CUDA work loads is covered by a digest: in a command, one that is not ends the run invalid."""
    labels = {split: np.zeros(len(block), np.uint8) for split, block in images.items()}
    dataset.write(tmp_path / "noise", dataset.Dataset(id="noise", source="random", images=images, labels=labels))
    options = ["intervention=configs/intervention/reference.json", "seed=101", "device=cuda", "marks=[0,2]"]
    options += [f"data={tmp_path / 'noise'}", f"out={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "runner", "run", *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
