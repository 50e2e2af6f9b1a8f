"""Options: everything composes, everything frozen is refused by its field, everything unknown names the nearest."""

import pytest
from conftest import contract_spec

from runner import config
from runner.__main__ import main
from runner.config import OPEN
from vqkit.errors import Refused, Rejected, UsageError, guarded
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
    with pytest.raises(UsageError, match="did you mean 'intervention'"):
        config.options(["intervntion=x.json"], config.RUN_OPTIONS)


@pytest.mark.parametrize("value", ["[1", "{", "'", "1,2", "range(1,3)", "${threads}", "${oc.env:HOME}", "???", "1 2"])
@pytest.mark.parametrize("key", ["seed", "marks"])
def test_what_is_no_value_in_hydras_grammar_is_a_value_of_another_type(key, value):
    with pytest.raises(UsageError) as caught:
        config.options([f"{key}={value}"], config.RUN_OPTIONS)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where, problem.found) == ("E_CONFIG", key, repr(value))


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
    config.locked_contract("quick-v1", tmp_path)
    text = (tmp_path / "quick-v1.yaml").read_text()
    (tmp_path / "quick-v1.yaml").write_text(text.replace("learning_rate: 0.0005", "learning_rate: 0.0006"))
    with pytest.raises(Refused) as caught:
        config.locked_contract("quick-v1", tmp_path)
    assert caught.value.codes == ("E_CONTRACT_LOCK",)


def test_a_key_twice_in_a_yaml_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_text("name: a\nname: b\n")
    with pytest.raises(Rejected, match="duplicate") as caught:
        config.load_yaml(tmp_path / "x.yaml")
    assert caught.value.codes == ("E_YAML",)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "E_FILE_MISSING"),
        (b"{", "E_YAML"),
        (b"\xff\xfe", "E_YAML"),
        (b"a: \0", "E_YAML"),
        (b"a: ${b}", "E_YAML"),
        (b"a: !!python/object:os.system x", "E_YAML"),
        (b"a: &x [*x]", "E_YAML"),
        (b"[" * 3000, "E_YAML"),
        (b"a: " + b"x" * config.MAX_BYTES, "E_FILE_SIZE"),
    ],
)
def test_a_sweep_that_can_not_be_read_is_rejected(content, code, tmp_path):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Rejected) as caught:
        config.options([f"sweep={path}"], config.SWEEP_OPTIONS)
    assert caught.value.codes == (code,)
    assert len(str(caught.value).splitlines()) == 1


SLURM = "executor=slurm"
DISTINCT = "null or a list of one or more distinct integers ≥ 0"
FLAGS = "a mapping of names to texts, finite numbers, true or false"
SWEEPS = "one of calibration or a file that ends in .yaml"


@pytest.mark.parametrize(
    ("arguments", "where", "expected", "found"),
    [
        (["threads=0"], "threads", "an integer from 1 to 1024", "0"),
        (["threads=abc"], "threads", "an integer from 1 to 1024", "'abc'"),
        (["threads=true"], "threads", "an integer from 1 to 1024", "True"),
        (["threads=1.0"], "threads", "an integer from 1 to 1024", "1.0"),
        (["threads=1025"], "threads", "an integer from 1 to 1024", "1025"),
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
        (["seeds=3"], "seeds", DISTINCT, "3"),
        (["seeds=[]"], "seeds", DISTINCT, "[]"),
        (["seeds=[1,1]"], "seeds", DISTINCT, "[1, 1]"),
        (["seeds=[-1]"], "seeds", DISTINCT, "[-1]"),
        (["seeds=[a]"], "seeds", DISTINCT, "['a']"),
        (["seeds=[true]"], "seeds", DISTINCT, "[True]"),
        (["seeds={count: 3}"], "seeds", DISTINCT, "{'count': 3}"),
        (["marks=2"], "marks", DISTINCT, "2"),
        (["marks=[]"], "marks", DISTINCT, "[]"),
        (["marks=[0,0]"], "marks", DISTINCT, "[0, 0]"),
        (["marks=[0,x]"], "marks", DISTINCT, "[0, 'x']"),
        (["out="], "out", "null or a path", "''"),
        (["data="], "data", "a path", "''"),
        (["root="], "root", "a path", "''"),
        (["calibration="], "calibration", "null or a path", "''"),
        (["executor=locl"], "executor", "one of local, ray, slurm", "'locl' (did you mean 'local'?)"),
        (["executor=[local]"], "executor", "one of local, ray, slurm", "'[local]' (did you mean 'local'?)"),
        (["executor=../executor/local"], "executor", "one of local, ray, slurm", "'../executor/local'"),
        (["sweep=calib"], "sweep", SWEEPS, "'calib' (did you mean 'calibration'?)"),
        ([SLURM, "executor.cluster=foo"], "executor.cluster", "one of slurm, local", "'foo'"),
        ([SLURM, "executor.time_minutes=abc"], "executor.time_minutes", "an integer ≥ 1", "'abc'"),
        ([SLURM, "executor.cpus=0"], "executor.cpus", "null or an integer ≥ 1", "0"),
        ([SLURM, "executor.gpus=-1"], "executor.gpus", "null or an integer ≥ 0", "-1"),
        ([SLURM, "executor.memory_gb=0"], "executor.memory_gb", "null or a number > 0", "0"),
        ([SLURM, "executor.poll_seconds=0"], "executor.poll_seconds", "a number > 0", "0"),
        ([SLURM, f"{OPEN}=low"], OPEN, FLAGS, "'low'"),
        ([SLURM, f"{OPEN}.qos=inf"], OPEN, FLAGS, "{'qos': inf}"),
        ([SLURM, f"{OPEN}.qos=nan"], OPEN, FLAGS, "{'qos': nan}"),
        ([SLURM, f"{OPEN}.qos=null"], OPEN, FLAGS, "{'qos': None}"),
        ([SLURM, f"{OPEN}={{1: a}}"], OPEN, FLAGS, "{1: 'a'}"),
        (["executor=ray", "executor.address=1"], "executor.address", "null or a name", "1"),
    ],
)
def test_a_value_of_another_type_or_range_is_refused(arguments, where, expected, found):
    with pytest.raises(UsageError) as caught:
        config.options(arguments, config.SWEEP_OPTIONS)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where, problem.expected, problem.found) == ("E_CONFIG", where, expected, found)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["-1", "abc", "1.5", "true", "9" * 5000])
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


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["executor.foo=1"], "executor"),
        (["+executor.slots=1"], "executor.slots"),
        (["~executor.slots"], "executor.slots"),
        (["executor.slot=1"], "executor.slots"),
        (["executor.slots.x=1"], "executor.slots"),
        (["executor.name=slurm"], "executor"),
        (["executor.additional_parameters.qos=low"], ""),
        ([SLURM, "executor.additional_parameters.=1"], OPEN),
        ([SLURM, "executor.time_minute=5"], "executor.time_minutes"),
        (["sweep.name=x"], "sweep"),
        (["threads.x=1"], "threads"),
    ],
)
def test_an_option_takes_the_keys_that_its_file_has(arguments, near):
    with pytest.raises(UsageError) as caught:
        config.options(arguments, config.SWEEP_OPTIONS)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("E_USAGE", "arguments")
    assert ("executor.partition" in problem.expected) == (SLURM in arguments)
    assert problem.found == repr(arguments[-1]) + (f" (did you mean {near!r}?)" if near else "")


@pytest.mark.parametrize("name", ["null", "", "nope", "../contract/quick-v1"])
@pytest.mark.parametrize(
    ("group", "code"), [("contract", "E_CONTRACT_UNKNOWN"), ("sweep", "E_CONFIG"), ("executor", "E_CONFIG")]
)
def test_what_a_group_does_not_have_is_refused_with_what_it_has(group, code, name):
    with pytest.raises(UsageError) as caught:
        config.options([f"{group}={name}"], config.SWEEP_OPTIONS)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == (code, group)
    assert all(path.stem in problem.expected for path in (CONFIGS / group).glob("*.yaml"))


def test_a_key_is_given_once():
    with pytest.raises(UsageError) as caught:
        config.options(["seed=101", "data=a", "seed=102", "data=a"], config.RUN_OPTIONS)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("E_USAGE", "seed"), ("E_USAGE", "data"),
    ]  # fmt: skip


def test_what_has_no_default_is_asked_for():
    with pytest.raises(UsageError) as caught:
        config.options(["device=cpu"], config.RUN_OPTIONS, needed=("intervention", "seed"))
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("E_USAGE", "intervention"), ("E_USAGE", "seed"),
    ]  # fmt: skip


def test_everything_that_is_wrong_at_once_and_usage_before_rules():
    wrong = ["foo=1", "threads=0", "threads=1", "lr=1", "contract=nope", "executor=nope", "executor.cpus=2", "seeds=3"]
    with pytest.raises(UsageError) as caught:
        config.options(wrong, config.SWEEP_OPTIONS)
    assert sorted((problem.code, problem.where) for problem in caught.value.problems) == [
        ("E_CONFIG", "executor"), ("E_CONFIG", "seeds"), ("E_CONFIG", "threads"),
        ("E_CONTRACT_FROZEN", "contract.training.learning_rate"), ("E_CONTRACT_UNKNOWN", "contract"),
        ("E_USAGE", "arguments"), ("E_USAGE", "threads"),
    ]  # fmt: skip


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
    [
        ("swep=calibration", "sweep"),
        ("preste=auto", "preset"),
        ("executr.slots=2", "executor.slots"),
        ("sweep", "sweep"),
        ("seed=101", "seeds"),
        ("~seeds", "seeds"),
        ("+seeds=[101]", "seeds"),
        ("--seeds=1", "seeds"),
    ],
)
def test_a_misspelt_option_of_a_sweep_names_the_nearest(argument, near):
    with pytest.raises(UsageError) as caught:
        config.options([argument], config.SWEEP_OPTIONS)
    (problem,) = caught.value.problems
    assert problem.found == f"{argument!r} (did you mean {near!r}?)"
    assert all(option in problem.expected for option in config.SWEEP_OPTIONS)


@pytest.mark.parametrize("arguments", [["sweep", "--help"], ["run", "-h"], ["sweep", "device=cpu", "--help"]])
def test_help_lists_every_option(arguments, capsys):
    assert guarded(main, arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"usage: python -m runner {arguments[0]} key=value …"
    for option in {*config.RUN_OPTIONS, *config.SWEEP_OPTIONS}:
        assert any(line.strip().removeprefix("- ").startswith(f"{option}: ") for line in lines), option
