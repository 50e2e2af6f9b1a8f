"""Options: everything composes, everything frozen is refused by its field, everything unknown names the nearest."""

import pytest
from conftest import contract_spec

from runner import config
from vqkit.errors import Refused, UsageError
from vqkit.formats import contract as contracts
from vqkit.formats.contract import CONFIGS


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("contract.model.codes=256", "model.codes"),
        ("+contract.extra=1", "extra"),
        ("++contract.training.learning_rate=1", "training.learning_rate"),
        ("~contract.marks", "marks"),
        ("codes=256", "model.codes"),
        ("codebook_size=256", "model.codes"),
        ("lr=0.1", "training.learning_rate"),
        ("learning_rate=0.1", "training.learning_rate"),
        ("batch_size=8", "training.batch_size"),
        ("training.batch_size=8", "training.batch_size"),
        ("epochs=3", "marks"),
        ("alpha=0.2", "analysis.alpha"),
        ("commitment_weight=1", "knobs.baseline.commitment_weight"),
    ],
)
def test_what_the_contract_freezes_is_refused_by_field(argument, field):
    with pytest.raises(Refused) as caught:
        config.options(["seed=101", argument], config.RUN_OPTIONS)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("E_CONTRACT_FROZEN", f"contract.{field}")
    ]
    assert caught.value.exit_code == 4


def test_all_refusals_at_once():
    with pytest.raises(Refused) as caught:
        config.options(["lr=1", "codes=2", "commitment_weight=3"], config.RUN_OPTIONS)
    assert len(caught.value.problems) == 3


def test_a_misspelt_option_names_the_nearest():
    # OpenMHC#14: a misspelt option is dropped and the default runs
    with pytest.raises(UsageError, match="did you mean 'intervention='"):
        config.options(["intervntion=x.json"], config.RUN_OPTIONS)


@pytest.mark.parametrize("argument", ["contract=nothing", "seed=[1", "marks={"])
def test_what_does_not_compose_is_a_usage_error(argument):
    with pytest.raises(UsageError) as caught:
        config.options([argument], config.RUN_OPTIONS)
    assert caught.value.codes == ("E_CONFIG",)


def test_paths_are_taken_as_they_are():
    options = config.options(["intervention=a b/c=d.json", "out=x[1]", "marks=[0,2]", "seed=101"], config.RUN_OPTIONS)
    assert (options["intervention"], options["out"], options["marks"]) == ("a b/c=d.json", "x[1]", [0, 2])


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "contract").glob("*.yaml")))
def test_every_contract_composes_and_is_locked(name):
    options = config.options([f"contract={name}"], config.RUN_OPTIONS)
    assert options["contract"] == contract_spec(name)
    assert config.composed_contract(options).name == name
    assert config.locked_contract(name).digest == contracts.read_lock()[name]


@pytest.mark.parametrize("group", ["sweep", "executor"])
def test_every_config_of_a_group_composes(group):
    names = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
    assert names
    for name in names:
        assert config.options([f"{group}={name}"], config.SWEEP_OPTIONS)[group]["name"] == name


def test_unknown_contract_lists_the_known():
    with pytest.raises(UsageError, match="quick-v1") as caught:
        config.locked_contract("quick-v2")
    assert caught.value.codes == ("E_CONTRACT_UNKNOWN",)


def test_a_changed_contract_file_is_refused(tmp_path):
    for path in (CONFIGS / "contract").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config.require_locked(tmp_path / "quick-v1.yaml", "quick-v1")
    text = (tmp_path / "quick-v1.yaml").read_text()
    (tmp_path / "quick-v1.yaml").write_text(text.replace("learning_rate: 0.0005", "learning_rate: 0.0006"))
    with pytest.raises(Refused) as caught:
        config.require_locked(tmp_path / "quick-v1.yaml", "quick-v1")
    assert caught.value.codes == ("E_CONTRACT_LOCK",)


def test_a_key_twice_in_a_yaml_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_text("name: a\nname: b\n")
    with pytest.raises(UsageError, match="duplicate"):
        config.load_yaml(tmp_path / "x.yaml")
