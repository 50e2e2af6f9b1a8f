"""A confirmatory campaign planned from a calibration: what it takes from it, and when it is refused."""

import copy
import json

import fake_runs
import pytest
from conftest import REPOSITORY, tiny_spec
from playground import definition

from runner.sweep import command, plan
from vqkit.errors import Refused, Rejected
from vqkit.formats import calibration, campaign, canonical, dataset
from vqkit.formats.contract import Contract

VECTOR = json.loads((REPOSITORY / "tests" / "vectors" / "valid" / "calibration-calibrated.json").read_bytes())
SPEC = tiny_spec() | {"marks": VECTOR["marks"]}
CONTRACT = Contract(SPEC)


@pytest.fixture
def value(tiny_data):
    """A calibration that fits: this contract, dataset and device, 7 seeds to plan."""
    counts = dataset.contract_counts(CONTRACT)
    value = copy.deepcopy(VECTOR)
    value["contract"] = {"name": CONTRACT.name, "digest": CONTRACT.digest}
    value["dataset"] = {"id": "noise", "digest": dataset.open_dataset(tiny_data).digest(counts)}
    value["device"]["device_class"] = "cpu imagined"
    for size in value["sample_size"]:
        size["at_sigma_upper"] = {"normal": 5, "t": 7, "permutation_floor": 6, "plan": 7}
    return value


@pytest.fixture
def terms(tmp_path, tiny_data, monkeypatch):
    """A function: the terms of a sweep with a calibration as it lies in its campaign's folder."""
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))

    def terms_of(value, *, logged=None, **options):
        folder = tmp_path / "earlier"
        folder.mkdir(exist_ok=True)
        (folder / calibration.NAME_ON_DISK).write_bytes(canonical.dumps(value))
        digest = calibration.digest(canonical.dumps(value if logged is None else logged))
        campaign.append_events(folder, [("planned", None, {}), ("calibrated", None, {"digest": digest})])
        sweep = {key: part for key, part in definition(arms=1).items() if key != "seeds"}
        chosen = {"sweep": sweep, "device": "cpu", "threads": 1, "phase": "confirmatory", "seeds": None, "marks": None}
        chosen["calibration"] = str(folder / calibration.NAME_ON_DISK)
        return command.terms_of(chosen | options, CONTRACT, tiny_data, "sweep", fake_runs.HOST)

    return terms_of


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
    other |= {name: value[name] for name in ("contract", "dataset", "device")}
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
    assert refused(terms, value, calibration=str(copied)) == ["digest"]


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
