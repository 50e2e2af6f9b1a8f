"""A confirmatory campaign answers the question that was prescribed, and no other."""

import json

import numpy as np
import pytest
import simulate
from simulate import arm

from runner.sweep import calibrated
from vqkit.analysis import effects, load
from vqkit.analysis.__main__ import main
from vqkit.errors import Refused
from vqkit.formats import calibration, campaign

RECORD = {"digest": "sha256:" + "1" * 64, "budget_mark": 5, "primary_metric": "utilization"}
BOTH_WAYS = [arm("better", {2: 0.1, 5: 0.1, 10: 0.1}), arm("worse", {2: -0.1, 5: -0.1, 10: -0.1})]
ARMS = [arm("better", {2: 0.1, 5: 0.1, 10: 0.1}), arm("flat", 0.0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("confirmatory") / "campaign"
    simulate.write_campaign(folder, ARMS, seeds=8, phase="confirmatory", calibration=RECORD, exhibits=True)
    campaign.append_event(folder, "planned")
    main(["calibrate", str(folder)])
    main(["report", str(folder)])
    return folder


@pytest.fixture(scope="module")
def value(folder):
    return json.loads((folder / "calibration.json").read_bytes())


def test_budget_and_metric_are_those_prescribed(value):
    decision = value["decision"]
    assert (decision["status"], decision["budget_mark"], decision["primary_metric"]) == (
        "confirmatory",
        5,
        "utilization",
    )
    assert (decision["known_better"], decision["known_worse"]) == (["better"], [])
    assert RECORD["digest"] in decision["reasons"][0]["text"]


def test_the_family_is_the_prescribed_metric_at_the_prescribed_mark(folder, value):
    """Its p-values are those of a family that was never told of another metric or mark."""
    assert value["test"]["family_cells"] == 2
    loaded = load.load(folder)
    t = loaded.marks.index(5)
    alone = effects.compare({"m": loaded.values["utilization"][:, [t]]}, ("m",), (5,), rules(loaded)).effects["m"]
    found = {(one["arm"], one["mark"], one["metric"]): one for one in value["effects"]}
    for a, label in enumerate(("better", "flat")):
        assert found[label, 5, "utilization"]["p_adjusted"] == pytest.approx(alone.adjusted[a, 0])
        assert found[label, 5, "utilization"]["verdict"] == alone.verdict[a, 0]
        for mark in (0, 2, 10):
            assert found[label, mark, "utilization"]["p"] is None
            assert found[label, mark, "utilization"]["verdict"] is None
            assert np.isfinite(found[label, mark, "utilization"]["mean"])
        assert found[label, 5, "normalized_perplexity"]["p"] is not None


def rules(loaded):
    plan = loaded.contract.analysis
    return plan | {"delta_min": {"m": plan["delta_min"]["utilization"]}}


def test_the_report_says_that_it_is_a_trial(folder, capsys):
    main(["report", str(folder)])
    printed = capsys.readouterr().out
    assert (
        "Confirmatory (24 of 24 cells complete, 0 failed, 0 missing): utilization at epoch 5, as prescribed" in printed
    )
    assert "  detected as better: better\n" in printed
    text = (folder / "report.html").read_text()
    assert "Report of a confirmatory trial" in text
    assert 'class="decision confirmatory"' in text
    assert 'id="why"' not in text  # nothing was chosen here


@pytest.fixture(scope="module")
def unprescribed(tmp_path_factory):
    """A trial that could well choose: an arm improves and one worsens, on every seed."""
    folder = tmp_path_factory.mktemp("unprescribed") / "campaign"
    simulate.write_campaign(folder, BOTH_WAYS, seeds=8, phase="confirmatory")
    return folder


def test_a_trial_chooses_nothing_by_itself(unprescribed, capsys):
    main(["calibrate", str(unprescribed)])
    value = calibration.parse((unprescribed / "calibration.json").read_bytes())
    decision = value["decision"]
    assert (decision["status"], decision["budget_mark"], decision["primary_metric"]) == ("refused", None, None)
    assert [one["code"] for one in decision["reasons"]] == ["not_prescribed"]
    assert [one["code"] for one in decision["what_to_change"]] == ["plan_from_calibration"]
    assert (decision["known_better"], decision["known_worse"]) == ([], [])
    assert any(decision["responsive_marks"].values())
    verdicts = {(one["arm"], one["mark"]): one["verdict"] for one in value["effects"] if one["metric"] == "utilization"}
    assert verdicts["better", 10] == verdicts["worse", 10] == "detected"
    assert [one["stance"] for one in value["stance"]] == ["supported", "contradicted"]
    assert value["sample_size"]
    printed = capsys.readouterr().out
    assert "a confirmatory campaign doesn't choose the budget and the metric that it is judged by" in printed
    assert "to change: plan the trial from a calibration: calibration=FILE" in printed


def test_its_report_is_that_of_a_trial(unprescribed):
    main(["calibrate", str(unprescribed)])
    main(["report", str(unprescribed)])
    text = (unprescribed / "report.html").read_text()
    assert "Report of a confirmatory trial" in text
    assert 'class="decision refused"' in text


def test_a_calibration_that_was_written_here_prescribes(tmp_path):
    """What the analysis writes and the evaluator logs is what a plan asks for."""
    folder = simulate.write_campaign(tmp_path / "c", BOTH_WAYS, seeds=8)
    found = load.load(folder)
    logged = [(key, None, {"digest": found.digests[key]}) for key in ("frozen", "unblinded")]
    campaign.append_events(folder, [("planned", None, {}), *logged])
    main(["calibrate", str(folder)])
    path = folder / "calibration.json"
    setting = found.plan["dataset"], "cpu", simulate.ENVIRONMENT, "confirmatory"
    prescribed = calibrated.read(path, found.contract, *setting, None, None)
    decision = calibration.parse(path.read_bytes())["decision"]
    assert prescribed.record["budget_mark"] == decision["budget_mark"] == 2
    assert prescribed.record["digest"] == calibration.digest(path.read_bytes())


def test_the_ledger_names_each_calibration_once(folder, value):
    main(["calibrate", str(folder)])
    noted = [event["detail"] for event in campaign.ledger_events(folder) if event["event"] == "calibrated"]
    assert noted == [{"digest": calibration.digest((folder / "calibration.json").read_bytes())}]


@pytest.mark.parametrize(
    "options",
    [{"phase": "development"}, {"calibration": RECORD | {"budget_mark": 3}}],
    ids=["development", "a mark that was not measured"],
)
def test_a_prescription_that_does_not_fit_is_refused(tmp_path, options):
    wanted = {"phase": "confirmatory", "calibration": RECORD} | options
    folder = simulate.write_campaign(tmp_path / "c", ARMS, seeds=6, **wanted)
    with pytest.raises(Refused) as caught:
        load.load(folder)
    assert [(one.code, one.where) for one in caught.value.problems] == [
        ("E_ANALYSIS_INPUT", "campaign.json.calibration")
    ]
