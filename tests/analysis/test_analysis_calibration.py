"""calibration.json: closed, canonical, coherent; and the commands around it."""

import copy
import json
import shutil

import pytest
import simulate
from conftest import contract_spec
from scipy import stats
from simulate import arm

from vqkit.analysis.__main__ import main
from vqkit.errors import Refused, Rejected, guarded
from vqkit.formats import calibration, canonical, schema

ARMS = [
    arm("better", {2: 0.0, 5: 0.1, 10: 0.2}, knobs={"projection_lr_multiplier": 10.0}),
    arm("worse", {2: 0.0, 5: -0.1, 10: -0.2}, knobs={"projection_lr_multiplier": 0.1}),
    arm("costly", {2: 0.2, 5: 0.2, 10: 0.2}, quality=-3.0, knobs={"latent_normalization": "l2"}),
    arm("flat", 0.0, knobs={"basis_init": "orthogonal"}, expected=("psnr", "increase")),
]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration") / "campaign"
    simulate.write_campaign(folder, ARMS, seeds=8, states={("flat", 2): "nonfinite"})
    main(["calibrate", str(folder)])
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "campaign")


@pytest.fixture
def value(pristine):
    return json.loads((pristine / "calibration.json").read_bytes())


def test_what_was_planted_is_decided(value):
    decision = value["decision"]
    assert (decision["status"], decision["budget_mark"]) == ("calibrated", 5)
    assert (decision["known_better"], decision["known_worse"]) == (["better"], ["worse"])
    assert value["cells"] == {"planned": 40, "complete": 39, "failed": 1, "missing": 0}
    costly = [one for one in value["assessments"] if one["mark"] == 5]
    assert all("costly" in one["blocked"] for one in costly)
    stances = {one["arm"]: (one["stance"], one["reason"]) for one in value["stance"]}
    assert stances["better"] == ("supported", "as_expected")
    assert stances["worse"] == ("contradicted", "opposite")
    assert len(value["effects"]) == 4 * 4 * 5
    assert len(value["guardrails"]) == 4 * 4 * 2


def test_sample_size_and_cost_follow_from_what_was_measured(value):
    size = next(one for one in value["sample_size"] if one["metric"] == value["decision"]["primary_metric"])
    assert size["mark"] == 5
    assert size["arms"] == ["better", "worse", "costly"]  # every arm that completed on every seed
    assert size["sigma_interval"][0] < size["sigma"] < size["sigma_upper"] < size["sigma_interval"][1]
    cost = value["confirmatory"]
    assert cost["seeds"] == size["at_sigma_upper"]["plan"]
    assert cost["cells"] == 2 * cost["seeds"]
    assert cost["measured_cells"] == 39
    assert cost["hours"] == pytest.approx(cost["cells"] * cost["seconds_per_cell"] * 5 / 10 / 3600)
    assert cost["unit"] == "CPU hours"


def test_same_scores_give_the_same_bytes(pristine, folder):
    main(["calibrate", str(folder)])
    for name in ("calibration.json", "results.csv", "results.parquet"):
        assert (folder / name).read_bytes() == (pristine / name).read_bytes()


def test_file_is_canonical_and_reads_back(pristine, value):
    data = (pristine / "calibration.json").read_bytes()
    assert calibration.parse(data) == value
    assert calibration.encode(value) == data
    assert calibration.digest(data) != calibration.table_digest(data)


def test_command_prints_the_digest_and_the_decision(folder, capsys):
    main(["calibrate", str(folder)])
    printed = capsys.readouterr().out
    assert calibration.digest((folder / "calibration.json").read_bytes()) in printed
    assert "Calibrated (39 of 40 cells complete, 1 failed, 0 missing): train 5 epochs" in printed
    main(["calibrate", str(folder), "--json"])
    assert json.loads(capsys.readouterr().out)["decision"]["budget_mark"] == 5


def test_a_refusal_is_an_answer_not_an_error(tmp_path, capsys):
    folder = simulate.write_campaign(tmp_path / "c", [arm("a", 0.2), arm("b", -0.2)], seeds=4)
    assert guarded(main, ["calibrate", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "Refused (12 of 12 cells complete" in printed
    assert "run at least 6 seeds" in printed
    found = json.loads((folder / "calibration.json").read_bytes())
    assert found["decision"]["status"] == "refused"
    assert {one["verdict"] for one in found["effects"] if one["mark"]} == {"underpowered"}
    assert found["confirmatory"]["hours"] is None


def test_one_seed_one_arm_is_described_without_a_claim(tmp_path):
    folder = simulate.write_campaign(tmp_path / "c", [arm("a", 0.2)], seeds=1)
    main(["calibrate", str(folder)])
    found = json.loads((folder / "calibration.json").read_bytes())
    assert found["test"]["p_attainable"] == 1
    one = next(one for one in found["effects"] if one["mark"] == 5)
    assert (one["sd"], one["t_interval"], one["bootstrap_interval"], one["p"]) == (None, None, None, 1)
    assert [size["sigma"] for size in found["sample_size"]] == [None, None]
    main(["report", str(folder)])


def test_a_difference_nobody_can_afford_to_show_has_no_number_of_seeds(tmp_path):
    spec = contract_spec()
    spec["name"], spec["analysis"]["delta_min"] = "strict", {"normalized_perplexity": 1e-7, "utilization": 1e-7}
    folder = simulate.write_campaign(tmp_path / "c", [arm("a", 0.2), arm("b", -0.2)], spec=spec, seeds=6)
    main(["calibrate", str(folder)])
    found = json.loads((folder / "calibration.json").read_bytes())
    assert found["sample_size"][0]["at_sigma"] is None
    main(["report", str(folder)])


def test_missing_stages_have_their_exit_code(folder, capsys):
    (folder / "frozen.json").unlink()
    assert guarded(main, ["calibrate", str(folder)]) == 7
    assert guarded(main, ["report", str(folder)]) == 7
    assert capsys.readouterr().err.count("error[E_STAGE_MISSING]") == 2
    assert guarded(main, []) == 2


@pytest.mark.parametrize("name", ["results.csv", "frozen.json"])
def test_report_refuses_what_the_calibration_does_not_name(folder, name):
    path = folder / name
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"nonfinite", b"cancelled"))
    with pytest.raises(Refused) as caught:
        main(["report", str(folder)])
    assert caught.value.codes == ("E_ANALYSIS_BINDING",)
    assert caught.value.problems[0].where == name


# the format


def test_schema_is_closed_everywhere():
    """Every object of the schema forbids other keys, but for the analysis plan, which its own digest binds."""
    open_objects = []

    def walk(node, path):
        if isinstance(node, dict):
            if node.get("type") == "object" and "additionalProperties" not in node:
                open_objects.append(path)
            for key, child in node.items():
                walk(child, f"{path}.{key}")
        elif isinstance(node, list):
            for i, child in enumerate(node):
                walk(child, f"{path}[{i}]")

    walk(calibration.SCHEMA, "")
    assert open_objects == [".properties.analysis.properties.plan"]


CONTRADICTIONS = {
    "unknown_arm_in_stance": lambda v: v["stance"][0].update(arm="nobody"),
    "unknown_arm_in_effects": lambda v: v["effects"][0].update(arm="nobody"),
    "unknown_arm_in_decision": lambda v: v["decision"].update(known_better=["nobody"]),
    "unknown_arm_in_assessment": lambda v: v["assessments"][0]["blocked"].append("nobody"),
    "unknown_mark_in_stance": lambda v: v["stance"][0].update(mark=7),
    "two_references": lambda v: v["arms"][1].update(role="reference"),
    "cells_do_not_add_up": lambda v: v["cells"].update(missing=1),
    "budget_not_responsive": lambda v: v["decision"].update(budget_mark=2),
    "calibrated_without_a_budget": lambda v: v["decision"].update(budget_mark=None),
    "calibrated_without_a_worse_arm": lambda v: v["decision"].update(known_worse=[]),
    "refused_with_a_budget": lambda v: v["decision"].update(status="refused"),
    "metric_outside_the_plan": lambda v: v["analysis"]["plan"].update(metrics=["utilization"]),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_calibration_must_not_contradict_itself(value, name):
    changed = copy.deepcopy(value)
    CONTRADICTIONS[name](changed)
    with pytest.raises(Rejected) as caught:
        calibration.encode(changed)
    assert set(caught.value.codes) == {"E_SCHEMA_VALUE"}


# readers that large campaigns need to be fast


def test_quick_check_never_accepts_what_jsonschema_rejects(value):
    """Every node of a calibration replaced by values of other kinds: what the quick check accepts, jsonschema does."""
    accepted = rejected = 0
    small = copy.deepcopy(value)
    for key in ("effects", "guardrails", "assessments", "arms", "stance", "surface", "sample_size"):
        small[key] = small[key][:1]
    assert schema._accepts(small, calibration.SCHEMA)

    def places(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield node, key
            if isinstance(node[key], (dict, list)):
                yield from places(node[key])

    for parent, key in list(places(small)):
        kept = parent[key]
        for other in (None, True, 1, 1.0, -1, 1e9, "", "x", [], ["a", "a"], [1, 1], {}, {"extra": 1}):
            parent[key] = other
            if schema._accepts(small, calibration.SCHEMA):
                accepted += 1
                assert not list(schema._validator()(calibration.SCHEMA).iter_errors(small)), (key, other)
            else:
                rejected += 1
        parent[key] = kept
    assert accepted > 100
    assert rejected > 1000


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1.0}',
        b'{"a":1e2}',
        b'{"a":1E2}',
        b'{"a":0.00001}',
        b'{"a":1e-7}',
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":"\\u00e9"}',
        '{"a":"é"}'.encode(),
        b'{"a":"1.0 \\" 1e5"}',
        b'{"a":"\\/"}',
        b'{"a":"\\n\\u0007"}',
        b"[0.1,12,true,null]",
        b"[1.50]",
        b'{"a":"\\u007f"}',
        b"[100000000000000000000]",
        b"[1e21]",
    ],
)
def test_quick_canonical_check_equals_the_writer(text):
    try:
        value = canonical.loads(text)
    except Rejected:
        return
    if canonical.dumps(value) == text:
        assert canonical.loads_canonical(text) == value
    else:
        with pytest.raises(Rejected) as caught:
            canonical.loads_canonical(text)
        assert caught.value.codes == ("E_JSON_CANONICAL",)


def test_a_trial_that_the_contract_has_no_seeds_for_is_said(tmp_path):
    """σ of the planted differences asks for more than 32 evaluation seeds: the decision stands, with what to change."""
    folder = simulate.write_campaign(tmp_path / "c", [arm("a", 0.4, quality=3.0), arm("b", -0.25)], seeds=8, sigma=0.08)
    main(["calibrate", str(folder)])
    value = json.loads((folder / "calibration.json").read_bytes())
    size = next(one for one in value["sample_size"] if one["metric"] == value["decision"]["primary_metric"])
    needed = size["at_sigma_upper"]["plan"]
    assert needed > 32
    assert value["decision"]["status"] == "calibrated"
    reason = next(one for one in value["decision"]["reasons"] if one["code"] == "too_few_seeds")
    assert f"has 32 evaluation seeds, the trial needs {needed}; 32 seeds would show a difference of" in reason["text"]
    assert [(one["code"], one["seeds"]) for one in value["decision"]["what_to_change"]] == [("add_seeds", needed)]
    shown = float(reason["text"].rsplit(" ", 1)[1])
    noncentral = shown / size["sigma_upper"] * 32**0.5
    cut = stats.t.ppf(0.975, 31)
    power = stats.nct.sf(cut, 31, noncentral) + stats.nct.cdf(-cut, 31, noncentral)
    assert power == pytest.approx(0.8, abs=0.01)
