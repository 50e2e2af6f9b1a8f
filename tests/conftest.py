"""Shared fixtures: a contract and a dataset that train in a second, and the real CIFAR-10 pixels if they are there."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from vqkit.formats import dataset
from vqkit.formats.contract import CONFIGS, Contract

REPOSITORY = Path(__file__).parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"


def contract_spec(name="quick-v1"):
    """The plain data of a shipped contract."""
    return OmegaConf.to_container(OmegaConf.load(CONFIGS / "contract" / f"{name}.yaml"))


def tiny_spec():
    """quick-v1 shrunk: 128 training images, 16 evaluation images, K = 16, D = h = 8, marks 0, 1, 2."""
    spec = copy.deepcopy(contract_spec())
    spec["name"] = "tiny"
    spec["data"]["train"]["count"], spec["data"]["evaluation"]["count"] = 128, 16
    spec["model"] = {"codes": 16, "latent_dim": 8, "hidden": 8}
    spec["training"]["batch_size"] = 32
    spec["marks"] = [0, 1, 2]
    return spec


def artifact(**changes):
    """A valid intervention as plain data: each keyword is a knob and its new value (from the baseline)."""
    baseline = contract_spec()["knobs"]["baseline"]
    from vqkit.formats.knobs import KNOBS

    first = next(iter(changes), "projection_lr_multiplier")
    return {
        "schema": "vqkit.intervention/1",
        "contract": "any",
        "decision_point": KNOBS[first].decision_point,
        "changes": [{"knob": knob, "from": baseline[knob], "to": value} for knob, value in changes.items()],
        "expected": {"metric": "normalized_perplexity", "direction": "increase"},
        "guardrail_at_risk": "psnr",
        "citations": [],
        "rationale": "a test",
        "previous": None,
    }


def artifact_bytes(**changes):
    """``artifact`` as the bytes of a file."""
    return json.dumps(artifact(**changes), indent=2).encode()


@pytest.fixture(scope="session")
def tiny():
    """The tiny contract."""
    return Contract(tiny_spec())


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """The folder of a canonical dataset ``noise``: 160 training and 24 evaluation images, smooth enough to learn."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data") / "noise"
    images, labels = {}, {}
    for split, count in (("train", 160), ("evaluation", 24)):
        coarse = rng.integers(0, 256, (count, 8, 8, 3)).astype(np.float64)
        fine = coarse.repeat(4, 1).repeat(4, 2) + rng.normal(0, 8, (count, 32, 32, 3))
        images[split] = fine.clip(0, 255).astype(np.uint8)
        labels[split] = rng.integers(0, 10, count).astype(np.uint8)
    dataset.write(folder, dataset.Dataset(id="noise", source="random", images=images, labels=labels))
    return folder


@pytest.fixture(scope="session")
def images(tiny, tiny_data):
    """What the tiny contract takes of that dataset: split → uint8 [N, 32, 32, 3]."""
    return dataset.open_dataset(tiny_data, dataset.contract_counts(tiny)).images


@pytest.fixture(scope="session")
def shared_data():
    """The folder with real CIFAR-10 pixels; the test is skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real CIFAR-10 pixels are not here (../shared/data)")
    return SHARED_DATA
