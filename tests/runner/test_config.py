"""Options: everything composes, everything frozen is refused by its field, everything unknown names the nearest."""

import pytest
from conftest import contract_spec

from runner import config
from runner.__main__ import USAGE, main
from vqkit.errors import Refused, UsageError, guarded
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


SLURM = "executor=slurm"


@pytest.mark.parametrize(
    ("arguments", "where", "expected", "found"),
    [
        (["threads=0"], "threads", "an integer ≥ 1", "0"),
        (["threads=abc"], "threads", "an integer ≥ 1", "'abc'"),
        (["threads=true"], "threads", "an integer ≥ 1", "True"),
        (["threads=1.0"], "threads", "an integer ≥ 1", "1.0"),
        (["executor.slots=abc"], "executor.slots", "null or an integer ≥ 1", "'abc'"),
        (["executor.slots=0"], "executor.slots", "null or an integer ≥ 1", "0"),
        (["executor.timeout_seconds=abc"], "executor.timeout_seconds", "a number > 0", "'abc'"),
        (["executor.timeout_seconds=0"], "executor.timeout_seconds", "a number > 0", "0"),
        (["executor.timeout_seconds=nan"], "executor.timeout_seconds", "a number > 0", "nan"),
        (["executor.timeout_seconds=inf"], "executor.timeout_seconds", "a number > 0", "inf"),
        (["executor.timeout_seconds=null"], "executor.timeout_seconds", "a number > 0", "None"),
        (["budget_seconds=-1"], "budget_seconds", "null or a number > 0", "-1"),
        (["budget_seconds=true"], "budget_seconds", "null or a number > 0", "True"),
        (["dry_run=maybe"], "dry_run", "true or false", "'maybe'"),
        (["dry_run=1"], "dry_run", "true or false", "1"),
        (["phase=foo"], "phase", "one of development, confirmatory", "'foo'"),
        (["device=tpu"], "device", "one of cpu, cuda", "'tpu'"),
        (["seeds=3"], "seeds", "null or a list of distinct integers", "3"),
        (["seeds=[1,1]"], "seeds", "null or a list of distinct integers", "[1, 1]"),
        (["seeds=[a]"], "seeds", "null or a list of distinct integers", "['a']"),
        (["marks=2"], "marks", "null or a list of integers", "2"),
        (["marks=[0,x]"], "marks", "null or a list of integers", "[0, 'x']"),
        (["executor.name=locl"], "executor.name", "one of local, slurm, ray", "'locl' (did you mean 'local'?)"),
        ([SLURM, "executor.cluster=foo"], "executor.cluster", "one of slurm, local", "'foo'"),
        ([SLURM, "executor.time_minutes=abc"], "executor.time_minutes", "an integer ≥ 1", "'abc'"),
        ([SLURM, "executor.cpus=0"], "executor.cpus", "null or an integer ≥ 1", "0"),
        ([SLURM, "executor.gpus=-1"], "executor.gpus", "null or an integer ≥ 0", "-1"),
        ([SLURM, "executor.memory_gb=0"], "executor.memory_gb", "null or a number > 0", "0"),
        ([SLURM, "executor.poll_seconds=0"], "executor.poll_seconds", "a number > 0", "0"),
        ([SLURM, "executor.additional_parameters=low"], "executor.additional_parameters", "a mapping", "'low'"),
        (["executor=ray", "executor.address=1"], "executor.address", "null or a name", "1"),
    ],
)
def test_a_value_of_another_type_or_range_is_refused(arguments, where, expected, found):
    with pytest.raises(UsageError) as caught:
        config.options(arguments, config.SWEEP_OPTIONS)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where, problem.expected, problem.found) == ("E_CONFIG", where, expected, found)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["-1", "abc", "1.5", "true"])
def test_a_seed_is_an_integer(value):
    with pytest.raises(UsageError) as caught:
        config.options([f"seed={value}"], config.RUN_OPTIONS)
    assert [problem.where for problem in caught.value.problems] == ["seed"]


def test_all_values_that_are_wrong_at_once():
    wrong = ["threads=0", "phase=foo", "dry_run=maybe", SLURM, "executor.slots=0", "executor.cluster=foo"]
    with pytest.raises(UsageError) as caught:
        config.options(wrong, config.SWEEP_OPTIONS)
    places = {problem.where for problem in caught.value.problems}
    assert places == {"threads", "phase", "dry_run", "executor.slots", "executor.cluster"}


def test_values_at_the_edge_are_taken():
    arguments = ["threads=1", "seeds=[1,2]", "budget_seconds=0.5", SLURM, "executor.slots=1", "executor.gpus=0"]
    config.options(arguments, config.SWEEP_OPTIONS)


@pytest.mark.parametrize("arguments", [["={qos: low, nice: 5}"], [".qos=low", ".nice=5"]])
def test_sbatch_takes_more_parameters_from_the_command_line(arguments):
    named = [f"executor.additional_parameters{argument}" for argument in arguments]
    chosen = config.options([SLURM, *named], config.SWEEP_OPTIONS)
    assert chosen["executor"]["additional_parameters"] == {"qos": "low", "nice": 5}


def test_an_executor_is_chosen_as_a_whole():
    for argument, name in (("executor.name=slurm", "slurm"), ("executor.additional_parameters.qos=low", "local")):
        with pytest.raises(UsageError) as caught:
            config.options([argument], config.SWEEP_OPTIONS)
        (problem,) = caught.value.problems
        assert (problem.code, problem.where, problem.expected) == ("E_CONFIG", "executor", f"executor={name}")


@pytest.mark.parametrize("argument", ["contract=null", "sweep=null", "executor=null"])
def test_what_is_chosen_from_a_group_can_not_be_nothing(argument):
    with pytest.raises(UsageError) as caught:
        config.options([argument], config.SWEEP_OPTIONS)
    assert caught.value.codes == ("E_CONFIG",)


@pytest.mark.parametrize(("minutes", "seconds", "fits"), [(240, 14400, False), (241, 14400, True), (1, 60.0, False)])
def test_a_task_has_more_time_than_a_cell(minutes, seconds, fits):
    arguments = [SLURM, f"executor.time_minutes={minutes}", f"executor.timeout_seconds={seconds}"]
    if fits:
        config.options(arguments, config.SWEEP_OPTIONS)
        return
    with pytest.raises(UsageError, match="more than the") as caught:
        config.options(arguments, config.SWEEP_OPTIONS)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("E_CONFIG", "executor.time_minutes")
    ]


@pytest.mark.parametrize(
    ("argument", "near"),
    [("swep=calibration", "sweep="), ("preste=auto", "preset="), ("executr.slots=2", "executor="), ("sweep", "sweep=")],
)
def test_a_misspelt_option_of_a_sweep_names_the_nearest(argument, near):
    with pytest.raises(UsageError) as caught:
        config.options([argument], config.SWEEP_OPTIONS, beside=("preset",))
    (problem,) = caught.value.problems
    assert problem.found == f"{argument!r} (did you mean {near!r}?)"
    assert problem.expected.endswith(", preset")


@pytest.mark.parametrize("argument", ["threads=abc", "threads=0", "executor.slots=0", "phase=foo", "swep=calibration"])
def test_the_command_ends_with_usage(argument, tmp_path, monkeypatch, capsys):
    """No traceback, nothing written."""
    monkeypatch.chdir(tmp_path)
    assert guarded(main, ["sweep", "device=cpu", "data=patches", argument]) == 2
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert "preset" in errors or "E_CONFIG" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["sweep", "--help"], ["run", "-h"], ["sweep", "device=cpu", "--help"]])
def test_help_is_the_usage_text(arguments, capsys):
    assert guarded(main, arguments) == 0
    assert capsys.readouterr().out == f"{USAGE}\n"
