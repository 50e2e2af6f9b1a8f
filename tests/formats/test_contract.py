"""Contracts: the lock, the contradictions, the seed firewall and the marks."""

import copy

import pytest
from conftest import contract_spec, tiny_spec

from vqkit.errors import Refused, Rejected
from vqkit.formats import contract as contracts
from vqkit.formats.contract import Contract


@pytest.mark.parametrize("name", ["quick-v1", "cifar10-v1"])
def test_shipped_contracts_are_locked(name):
    contract = Contract(contract_spec(name))
    assert contract.name == name
    contracts.require_locked(contract, contracts.read_lock())


@pytest.mark.parametrize(
    "path",
    [("training", "learning_rate"), ("model", "codes"), ("data", "train", "count"), ("analysis", "alpha"), ("marks",)],
    ids="/".join,
)
def test_a_changed_field_under_a_locked_name_is_refused(path):
    spec = contract_spec()
    target = spec
    for key in path[:-1]:
        target = target[key]
    value = target[path[-1]]
    target[path[-1]] = value[:-1] if isinstance(value, list) else value / 2 if isinstance(value, float) else value * 2
    with pytest.raises(Refused) as caught:
        contracts.require_locked(Contract(spec), contracts.read_lock())
    assert caught.value.codes == ("E_CONTRACT_LOCK",)


def test_the_designs_sizes():
    # 8,192 images, batch 128: 64 steps an epoch, 1,280 after 20 (Lightning#17958)
    big = Contract(contract_spec("cifar10-v1"))
    assert (big.train_count, big.evaluation_count, big.codes, big.latent_dim, big.hidden) == (8192, 1024, 128, 64, 64)
    assert (big.steps_per_epoch, big.steps_per_epoch * max(big.marks)) == (64, 1280)
    quick = Contract(contract_spec("quick-v1"))
    assert (quick.train_count, quick.evaluation_count, quick.codes, quick.latent_dim, quick.hidden) == (
        2048,
        512,
        128,
        32,
        32,
    )
    assert (big.marks, quick.marks) == ((0, 2, 5, 10, 20), (0, 2, 5, 10))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda spec: spec["data"]["train"].update(count=130), "contract.data.train.count"),
        (lambda spec: spec.update(marks=[1, 2]), "contract.marks"),
        (lambda spec: spec.update(marks=[0, 5, 2]), "contract.marks"),
        (lambda spec: spec["seeds"].update(evaluation=[101]), "contract.seeds"),
        (
            lambda spec: spec["knobs"]["allowed"].update(commitment_weight={"low": 0, "high": 20}),
            "contract.knobs.allowed.commitment_weight",
        ),
        (
            lambda spec: spec["knobs"]["allowed"].update(commitment_weight={"low": 1.0, "high": 2.0}),
            "contract.knobs.allowed.commitment_weight",
        ),
        (lambda spec: spec["analysis"]["delta_min"].clear(), "contract.analysis.delta_min"),
    ],
    ids=range(7),
)
def test_contradictions(change, where):
    spec = copy.deepcopy(tiny_spec())
    change(spec)
    with pytest.raises(Rejected) as caught:
        Contract(spec)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [("E_CONTRACT_INVALID", where)]


def test_unknown_key_in_a_contract():
    with pytest.raises(Rejected) as caught:
        Contract(tiny_spec() | {"codebook": 3})
    assert caught.value.codes == ("E_SCHEMA_UNKNOWN_KEY",)


def test_seed_firewall_both_ways(tiny):
    tiny.require_seed(101, "development")
    tiny.require_seed(201, "confirmatory")
    for seed, phase in ((201, "development"), (101, "confirmatory"), (999, "development")):
        with pytest.raises(Refused) as caught:
            tiny.require_seed(seed, phase)
        assert caught.value.codes == ("E_SEED_FIREWALL",)


def test_marks_and_datasets(tiny):
    assert tiny.require_marks(None) == (0, 1, 2)
    assert tiny.require_marks([2, 0]) == (0, 2)
    for marks in ([3], []):
        with pytest.raises(Refused) as caught:
            tiny.require_marks(marks)
        assert caught.value.codes == ("E_MARKS",)
    tiny.require_dataset("anything")
    with pytest.raises(Refused) as caught:
        Contract(contract_spec("cifar10-v1")).require_dataset("patches")
    assert caught.value.codes == ("E_DATASET_NOT_ALLOWED",)
