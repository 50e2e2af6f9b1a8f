"""A confirmatory campaign planned from a calibration: what it takes from it, and when it is refused."""

import copy
import json

import fake_runs
import pytest
from conftest import REPOSITORY, tiny_spec
from playground import definition

from runner.sweep import command, plan
from vqkit.errors import Refused, Rejected
from vqkit.formats import calibration, campaign, canonical, dataset, digests
from vqkit.formats.contract import Contract

VECTOR = json.loads((REPOSITORY / "tests" / "vectors" / "valid" / "calibration-calibrated.json").read_bytes())
SPEC = tiny_spec() | {"marks": VECTOR["marks"]}
CONTRACT = Contract(SPEC)
BESIDE = {  # file beside a calibration → its content here (calibrations bind bytes) and the kind of its digest
    "campaign.json": (b"a campaign", "campaign"),
    "frozen.json": (b"frozen scores", "score"),
    "unblinded.json": (b"the arms", "campaign"),
    "results.csv": (b"a table", "results"),
}


@pytest.fixture
def value(tiny_data):
    """A calibration that fits: this contract, dataset and device, 7 seeds to plan."""
    counts = dataset.contract_counts(CONTRACT)
    value = copy.deepcopy(VECTOR)
    value["contract"] = {"name": CONTRACT.name, "digest": CONTRACT.digest}
    value["dataset"] = {"id": "noise", "digest": dataset.open_dataset(tiny_data).digest(counts)}
    value["device"]["device_class"] = "cpu imagined"
    found = {name: digests.digest(kind, content) for name, (content, kind) in BESIDE.items()}
    value["campaign"] |= {"digest": found["campaign.json"], "frozen": found["frozen.json"]}
    value["campaign"] |= {"unblinded": found["unblinded.json"]}
    value["results"] = found["results.csv"]
    for size in value["sample_size"]:
        size["at_sigma_upper"] = {"normal": 5, "t": 7, "permutation_floor": 6, "plan": 7}
    return value


@pytest.fixture(autouse=True)
def told(tmp_path, monkeypatch):
    """Where the stand-in for training looks for what it is told: nothing."""
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))


@pytest.fixture
def terms(tmp_path, tiny_data):
    """A function: the terms of a sweep with a calibration as it lies in its campaign's folder."""

    def terms_of(value, *, logged=None, **options):
        lay(tmp_path / "earlier", value, logged)
        chosen = asked(tmp_path / "earlier")
        return command.terms_of(chosen | options, CONTRACT, tiny_data, "sweep", fake_runs.HOST)

    return terms_of


def lay(folder, value, logged=None):
    """A calibration into the folder of its campaign, whose ledger names it, or ``logged`` in its place."""
    folder.mkdir(exist_ok=True)
    (folder / calibration.NAME_ON_DISK).write_bytes(canonical.dumps(value))
    for name, (content, _) in BESIDE.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
    bound = {key: {"digest": value["campaign"][key]} for key in ("frozen", "unblinded")}
    bound["calibrated"] = {"digest": calibration.digest(canonical.dumps(value if logged is None else logged))}
    campaign.append_events(folder, [("planned", None, {}), *((name, None, bound[name]) for name in bound)])


def asked(folder):
    """The options of a trial that is planned from the calibration in a folder."""
    sweep = {key: part for key, part in definition(arms=1).items() if key != "seeds"}
    chosen = {"sweep": sweep, "device": "cpu", "threads": 1, "phase": "confirmatory", "seeds": None, "marks": None}
    return chosen | {"calibration": str(folder / calibration.NAME_ON_DISK)}


def refused(terms, value, **options):
    with pytest.raises(Refused) as caught:
        terms(value, **options)
    assert set(caught.value.codes) == {"E_CALIBRATION"}
    return [problem.where.removeprefix("calibration.json ") for problem in caught.value.problems]


def test_marks_seeds_and_the_record_come_from_it(terms, value, tmp_path):
    found = terms(value)
    mark, metric = value["decision"]["budget_mark"], value["decision"]["primary_metric"]
    assert found.sweep.marks == (0, mark)
    assert found.sweep.seeds == CONTRACT.seeds("confirmatory")[:7]
    plan.create(tmp_path / "trial", found)
    planned, _ = campaign.read(tmp_path / "trial", campaign.CAMPAIGN)
    digest = calibration.digest(canonical.dumps(value))
    assert planned["calibration"] == {"digest": digest, "budget_mark": mark, "primary_metric": metric}
    assert plan.require_same(tmp_path / "trial", found) == planned


def test_what_the_command_line_says_wins(terms, value):
    seeds, marks = list(CONTRACT.seeds("confirmatory")[:9]), list(CONTRACT.marks)
    found = terms(value, seeds=seeds, marks=marks)
    assert (list(found.sweep.seeds), list(found.sweep.marks)) == (seeds, marks)


def test_without_one_the_campaign_says_nothing_of_it(terms, value, tmp_path):
    plan.create(tmp_path / "trial", terms(value, calibration=None, seeds={"count": 2}))
    assert "calibration" not in campaign.read(tmp_path / "trial", campaign.CAMPAIGN)[0]


@pytest.mark.parametrize(
    ("where", "edit"),
    [
        ("contract", lambda value: value["contract"].update(digest="sha256:" + "0" * 64)),
        ("dataset", lambda value: value["dataset"].update(digest="sha256:" + "0" * 64)),
        ("device", lambda value: value["device"].update(device="cuda")),
        ("device class", lambda value: value["device"].update(device_class="cpu another")),
    ],
)
def test_another_contract_dataset_or_device_is_refused(terms, value, where, edit):
    edit(value)
    assert refused(terms, value) == [where]


def test_more_seeds_than_the_contract_has_are_refused(terms, value):
    for size in value["sample_size"]:
        size["at_sigma_upper"]["plan"] = 33
    assert refused(terms, value) == ["seeds"]
    for size in value["sample_size"]:
        size["at_sigma_upper"] = None
    assert refused(terms, value) == ["seeds"]


def test_a_refused_calibration_is_refused(terms, value):
    other = json.loads((REPOSITORY / "tests" / "vectors" / "valid" / "calibration-refused.json").read_bytes())
    other |= {name: value[name] for name in ("contract", "dataset", "device", "campaign", "results")}
    assert refused(terms, other) == ["status"]


def test_a_changed_file_is_refused(terms, value):
    """Its campaign's ledger names the digest that was calibrated, the last time that it was."""
    changed = copy.deepcopy(value)
    changed["decision"]["known_worse"] = changed["decision"]["known_worse"][:1]
    changed["cells"]["planned"] += 1
    changed["cells"]["complete"] += 1
    assert refused(terms, changed, logged=value) == ["digest"]


def test_a_file_apart_from_its_campaign_is_refused(terms, value, tmp_path):
    terms(value)
    (tmp_path / "apart").mkdir()
    copied = tmp_path / "apart" / "calibration.json"
    copied.write_bytes(canonical.dumps(value))
    with pytest.raises(Refused) as caught:
        terms(value, calibration=str(copied))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("E_CALIBRATION", "calibration.json folder")
    assert problem.expected.startswith("calibration.json in the folder of its campaign")
    names = "campaign.json, frozen.json, unblinded.json, results.csv, ledger.jsonl"
    assert problem.found == f"no {names} in {copied.parent}"


@pytest.mark.parametrize("name", BESIDE)
def test_another_file_than_the_calibration_names_is_refused(terms, value, tmp_path, name):
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / name).write_bytes(BESIDE[name][0] + b" ")
    assert refused(terms, value) == [name]


@pytest.mark.parametrize("event", ["frozen", "unblinded"])
@pytest.mark.parametrize("other", [True, False], ids=["another", "none"])
def test_a_ledger_that_does_not_name_frozen_scores_and_arms_is_refused(value, tmp_path, tiny_data, event, other):
    """Written anew, the chain whole: the event names something else, or is not there."""
    folder = tmp_path / "earlier"
    lay(folder, value)
    entries = [(one["event"], one["run_id"], one["detail"]) for one in campaign.ledger_events(folder)]
    (folder / campaign.LEDGER).unlink()
    zeros = {"digest": "sha256:" + "0" * 64}
    kept = [one if one[0] != event else (event, None, zeros) for one in entries if other or one[0] != event]
    campaign.append_events(folder, kept)
    with pytest.raises(Refused) as caught:
        command.terms_of(asked(folder), CONTRACT, tiny_data, "sweep", fake_runs.HOST)
    where = f"calibration.json {campaign.LEDGER} {event}"
    assert [(one.code, one.where) for one in caught.value.problems] == [("E_CALIBRATION", where)]


def test_what_a_trial_found_prescribes_nothing(terms, value):
    value["campaign"]["phase"] = "confirmatory"
    assert refused(terms, value) == ["campaign.phase"]


@pytest.mark.parametrize("seeds", [{"count": 6}, list(CONTRACT.seeds("confirmatory")[:6])], ids=["count", "list"])
def test_fewer_seeds_than_prescribed_are_refused(terms, value, seeds):
    with pytest.raises(Refused) as caught:
        terms(value, seeds=seeds)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("E_CALIBRATION", "calibration.json seeds")
    assert (problem.expected, problem.found) == ("at least the 7 that it prescribes", "6 asked for")


def test_seeds_that_cannot_be_counted_are_no_matter_of_the_calibration(terms, value):
    for seeds in ({"count": "many"}, "many"):
        with pytest.raises(Rejected) as caught:
            terms(value, seeds=seeds)
        assert set(caught.value.codes) == {"E_SCHEMA_TYPE"}


@pytest.mark.parametrize(
    ("named", "options", "said"),
    [
        ({"seeds": [1], "marks": [0, 1]}, {}, "seeds and marks of the sweep are not used"),
        ({"marks": [0, 1]}, {}, "notice: marks of the sweep are not used"),
        ({"seeds": [1]}, {"seeds": {"count": 8}}, None),
        ({}, {}, None),
    ],
)
def test_seeds_and_marks_of_the_sweep_are_not_used_and_that_is_said(
    value, tmp_path, tiny_data, capsys, named, options, said
):
    lay(tmp_path / "earlier", value)
    chosen = asked(tmp_path / "earlier")
    chosen |= {"out": None, "executor": {"name": "local", "slots": 1}, "dry_run": True} | options
    chosen["sweep"] |= named
    assert command.sweep(chosen, CONTRACT, tiny_data, host=fake_runs.HOST) == 0
    printed = capsys.readouterr()
    assert f"marks [0, {value['decision']['budget_mark']}]" in printed.out
    assert f"2 arms × {options['seeds']['count'] if options else 7} seeds" in printed.out
    assert printed.err.count("not used") == (said is not None)
    assert (said or "") in printed.err


def test_a_file_that_is_no_calibration_is_rejected(terms, value):
    value["decision"]["budget_mark"] = 3
    with pytest.raises(Rejected) as caught:
        terms(value)
    assert set(caught.value.codes) == {"E_SCHEMA_VALUE"}


def test_marks_without_the_budget_and_another_phase_are_refused(terms, value):
    assert refused(terms, value, marks=[0]) == ["budget"]
    assert refused(terms, value, phase="development") == ["phase"]


def test_another_calibration_under_the_same_campaign_is_refused(terms, value, tmp_path):
    plan.create(tmp_path / "trial", terms(value))
    value["confirmatory"]["measured_cells"] += 1
    with pytest.raises(Refused) as caught:
        plan.require_same(tmp_path / "trial", terms(value))
    assert [(one.code, one.where) for one in caught.value.problems] == [
        ("E_CAMPAIGN_CHANGED", "calibration"), ("E_CAMPAIGN_CHANGED", "out"),
    ]  # fmt: skip
