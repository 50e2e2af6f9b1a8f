"""Blind scoring, freezing and unblinding of made-up campaigns."""

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path

import fabricate
import numpy as np
import pytest
from safetensors.numpy import load_file

from evaluator.exhibit import curve
from evaluator.held import Held
from evaluator.score import score_campaign, score_path, score_run
from evaluator.unblind import unblind_campaign, unblind_run
from vqkit.errors import Incomplete, Refused, VerificationFailed
from vqkit.formats import campaign, canonical, dataset, digests, run

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def held(tmp_path, tiny, tiny_data):
    return Held(data=tiny_data, lock=fabricate.write_lock(tmp_path / "LOCK.json", tiny))


@pytest.fixture
def planned(tmp_path, tiny, tiny_data):
    """A function that writes the campaign of two seeds and three arms, with ``write_campaign``'s options."""
    return lambda **options: fabricate.write_campaign(tmp_path / "campaign", tiny, tiny_data, **options)


def cells(folder):
    return campaign.read(folder, campaign.CAMPAIGN)[0]["cells"]


def score_of(folder, run_id):
    return campaign.read_score(folder / campaign.SCORES / f"{run_id}.json")[0]


def failed(score):
    return {check["id"] for check in score["verification"]["checks"] if check["status"] == "failed"}


def events(folder):
    return [(event["event"], event["run_id"]) for event in campaign.ledger_events(folder)]


def totals(frozen):
    return tuple(frozen[name] for name in ("planned", "complete", "failed", "missing"))


def test_a_campaign_is_scored_frozen_and_unblinded(planned, held):
    folder = planned()
    frozen, problems = score_campaign(folder, held)
    assert problems == []
    assert totals(frozen) == (6, 6, 0, 0)
    for cell in cells(folder):
        score = score_of(folder, cell["run_id"])
        assert (score["state"], score["seed"]) == ("complete", cell["seed"])
        assert score["verification"]["level"] == "V3"
        assert [mark["mark"] for mark in score["marks"]] == [0, 1, 2]
        assert score["digests"]["intervention"] == cell["intervention"]
    assert events(folder).count(("frozen", None)) == 1
    assert {run_id for event, run_id in events(folder) if event == "scored"} == {
        cell["run_id"] for cell in cells(folder)
    }

    value = unblind_campaign(folder)
    arms = canonical.loads((folder / campaign.ARMS).read_bytes())
    assert {cell["run_id"]: cell["arm"] for cell in value["cells"]} == {
        cell["run_id"]: cell["arm"] for cell in arms["cells"]
    }
    labels = {arm["label"]: arm for arm in value["arms"]}
    assert labels["reference"]["role"] == "reference"
    assert labels["beta-high"]["effective"]["commitment_weight"] == 1.0
    assert labels["beta-high"]["expected"] == {"metric": "utilization", "direction": "increase"}
    assert labels["frozen"]["rationale"] == "made up"


def test_a_second_call_finds_the_same_bytes(planned, held):
    folder = planned()
    score_campaign(folder, held)
    unblind_campaign(folder)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
    score_campaign(folder, held)
    unblind_campaign(folder)
    assert before == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }


def test_no_score_names_an_arm(planned, held):
    folder = planned()
    score_campaign(folder, held)
    texts = [path.read_text() for path in (folder / campaign.SCORES).iterdir()] + [
        (folder / campaign.FROZEN).read_text()
    ]
    assert len(texts) == 7
    for text in texts:
        for secret in ("beta-high", "reference", "commitment_weight", "trainability", fabricate.SALT.hex()):
            assert secret not in text


def test_an_exhibit_shows_the_step_log_and_some_of_the_images(planned, held, tiny):
    """Recomputed here from the evidence by other means: epoch means of the log, pixels of images 0, 2, … 14 of 16."""
    folder = planned()
    frozen, _ = score_campaign(folder, held)
    for cell in cells(folder):
        run_id = cell["run_id"]
        data = (folder / campaign.EXHIBITS / f"{run_id}.json").read_bytes()
        assert score_of(folder, run_id)["digests"]["exhibit"] == digests.digest("exhibit", data)
        exhibit = campaign.parse_exhibit(data, run_id)
        assert exhibit["run_id"] == run_id
        evidence = folder / campaign.RUNS / run_id / run.EVIDENCE
        log = load_file(evidence / run.STEPS)
        for name in run.STEP_COLUMNS:
            epochs = log[name].astype(np.float64).reshape(2, 4).mean(1)
            assert exhibit["curve"][name] == pytest.approx(epochs.tolist(), rel=1e-12), name
        assert [one["mark"] for one in exhibit["samples"]] == [1, 2]
        for one in exhibit["samples"]:
            found = np.frombuffer(base64.b64decode(one["reconstruction"]), np.uint8).reshape(8, 32, 32, 3)
            assert (found == load_file(evidence / run.mark_file(one["mark"]))["reconstruction"][::2]).all()
    setting, data = campaign.read(folder, campaign.SETTING)
    assert frozen["setting"] == digests.digest("exhibit", data)
    assert setting["images"] == list(range(0, 16, 2))
    originals = np.frombuffer(base64.b64decode(setting["originals"]), np.uint8).reshape(8, 32, 32, 3)
    assert (originals == held.dataset(tiny).originals.images[::2]).all()
    plan, _ = campaign.read(folder, campaign.CAMPAIGN)
    assert digests.digest_json("environment", setting["environment"]) == plan["digests"]["environment"]


def test_a_mean_that_json_cannot_carry_is_null():
    steps = {name: np.array([1, 2, 3e38, 3e38, -0.0, -0.0], np.float32) for name in run.STEP_COLUMNS}
    assert curve(steps, 2)["loss"] == [1.5, None, 0.0]
    assert canonical.dumps(curve(steps, 2))


def test_only_complete_verified_runs_have_an_exhibit(planned, held):
    folder = planned()
    ids = [cell["run_id"] for cell in cells(folder)]
    spoilt = folder / campaign.RUNS / ids[0] / run.EVIDENCE / run.STEPS
    fabricate.replace(spoilt, spoilt.read_bytes()[:-4] + b"\0\0\0\1")
    shutil.rmtree(folder / campaign.RUNS / ids[1])
    score_campaign(folder, held, final=True)
    assert {path.stem for path in (folder / campaign.EXHIBITS).iterdir()} == set(ids[2:])
    assert [("exhibit" in score_of(folder, run_id)["digests"]) for run_id in ids] == [False, False, *[True] * 4]


def test_while_a_cell_has_no_outcome_there_are_scores_and_no_exhibits(planned, held):
    """A training curve gives the arm away to a person, who must not decide by it what to try again."""
    folder = planned()
    shutil.rmtree(folder / campaign.RUNS / cells(folder)[0]["run_id"])
    with pytest.raises(Incomplete):
        score_campaign(folder, held)
    assert len(list((folder / campaign.SCORES).iterdir())) == 5
    assert not (folder / campaign.EXHIBITS).exists()


def test_scores_are_frozen_once_whatever_becomes_of_the_file(planned, held):
    folder = planned()
    score_campaign(folder, held)
    ids = [cell["run_id"] for cell in cells(folder)]
    for path in (campaign.FROZEN, f"{campaign.SCORES}/{ids[0]}.json", f"{campaign.EXHIBITS}/{ids[0]}.json"):
        (folder / path).unlink()
    shutil.rmtree(folder / campaign.RUNS / ids[0])
    with pytest.raises(Refused) as caught:
        score_campaign(folder, held, final=True)
    assert caught.value.codes == ("E_FROZEN",)
    assert not (folder / campaign.FROZEN).exists()


@pytest.mark.parametrize("name", [campaign.SCORES, campaign.EXHIBITS])
def test_a_file_where_a_folder_belongs(planned, held, name):
    folder = planned()
    (folder / name).write_bytes(b"")
    with pytest.raises(VerificationFailed) as caught:
        score_campaign(folder, held)
    assert [(problem.where, problem.found) for problem in caught.value.problems] == [(name, "a file")]


@pytest.mark.parametrize("name", ["exhibit", "setting"])
def test_a_changed_exhibit_is_an_error(planned, held, name):
    folder = planned()
    score_campaign(folder, held)
    place = f"{campaign.EXHIBITS}/{cells(folder)[2]['run_id']}.json" if name == "exhibit" else campaign.SETTING
    data = (folder / place).read_bytes()
    fabricate.replace(folder / place, data.replace(b"vqkit", b"VQKIT"))
    with pytest.raises(VerificationFailed) as caught:
        score_campaign(folder, held)
    assert [problem.where.split("/")[-1] for problem in caught.value.problems] == [place.split("/")[-1]]


def test_a_changed_score_is_an_error(planned, held):
    folder = planned()
    score_campaign(folder, held)
    run_id = cells(folder)[2]["run_id"]
    path = folder / campaign.SCORES / f"{run_id}.json"
    value = json.loads(path.read_bytes())
    value["marks"][0]["psnr"] += 1
    fabricate.replace(path, canonical.dumps(value))
    with pytest.raises(VerificationFailed) as caught:
        score_campaign(folder, held)
    assert [problem.where for problem in caught.value.problems] == [f"scores/{run_id}.json"]
    with pytest.raises(Refused) as caught:
        unblind_campaign(folder)
    assert caught.value.codes == ("E_NOT_FROZEN",)
    assert not (folder / campaign.UNBLINDED).exists()


def test_cells_without_an_outcome_keep_the_scores_from_freezing(planned, held):
    folder = planned()
    lost = [cell["run_id"] for cell in cells(folder)[:2]]
    for run_id in lost:
        shutil.rmtree(folder / campaign.RUNS / run_id)
    with pytest.raises(Incomplete) as caught:
        score_campaign(folder, held)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("E_CAMPAIGN_INCOMPLETE", run_id) for run_id in lost
    ]
    assert not (folder / campaign.FROZEN).exists()
    assert len(list((folder / campaign.SCORES).iterdir())) == 4
    frozen, _ = score_campaign(folder, held, final=True)
    assert totals(frozen) == (6, 4, 0, 2)
    assert score_of(folder, lost[0])["state"] == "missing"
    again, _ = score_campaign(folder, held)
    assert again == frozen
    unblind_campaign(folder)


@pytest.mark.parametrize("outcome", ["timeout", "crashed"])
def test_a_failed_cell_has_an_outcome(planned, held, outcome):
    folder = planned()
    run_id = cells(folder)[0]["run_id"]
    (folder / campaign.RUNS / run_id / run.MANIFEST).unlink()
    campaign.append_events(folder, [("claimed", run_id, {}), ("failed", run_id, {"outcome": outcome})])
    frozen, _ = score_campaign(folder, held)
    assert totals(frozen) == (6, 5, 1, 0)
    score = score_of(folder, run_id)
    assert (score["state"], score["marks"], score["digests"]) == (outcome, [], {})


@pytest.mark.parametrize("again", ["claimed", "retried"])
def test_a_cell_that_is_tried_again_has_no_outcome_yet(planned, held, again):
    folder = planned()
    run_id = cells(folder)[0]["run_id"]
    (folder / campaign.RUNS / run_id / run.MANIFEST).unlink()
    campaign.append_events(folder, [("failed", run_id, {"outcome": "timeout"}), (again, run_id, {})])
    with pytest.raises(Incomplete) as caught:
        score_campaign(folder, held)
    assert caught.value.codes == ("E_CAMPAIGN_INCOMPLETE",)


def test_a_run_that_comes_after_freezing_is_refused(planned, held):
    folder = planned()
    run_id = cells(folder)[0]["run_id"]
    (folder / campaign.RUNS / run_id).rename(folder / "late")
    score_campaign(folder, held, final=True)
    (folder / "late").rename(folder / campaign.RUNS / run_id)
    with pytest.raises(Refused) as caught:
        score_campaign(folder, held)
    assert caught.value.codes == ("E_FROZEN",)


def test_a_diverged_run_keeps_its_place(planned, held):
    folder = planned(state="nonfinite", measured=2)
    frozen, problems = score_campaign(folder, held)
    assert (totals(frozen), problems) == ((6, 0, 6, 0), [])
    score = score_of(folder, cells(folder)[0]["run_id"])
    assert (score["state"], score["marks"]) == ("nonfinite", [])
    assert (score["verification"]["status"], score["verification"]["level"]) == ("passed", "V2")
    unblind_campaign(folder)


def test_a_tampered_run_is_unverified_and_keeps_its_place(planned, held):
    folder = planned()
    run_id = cells(folder)[1]["run_id"]
    path = folder / campaign.RUNS / run_id / "evidence" / run.mark_file(1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    fabricate.replace(path, bytes(data))
    frozen, problems = score_campaign(folder, held)
    assert totals(frozen) == (6, 5, 1, 0)
    assert {problem.code for problem in problems} == {"E_VERIFY"}
    assert any(run_id in problem.where and run.mark_file(1) in problem.where for problem in problems)
    score = score_of(folder, run_id)
    assert (score["state"], score["marks"], score["resources"]) == ("unverified", [], None)
    assert f"V1.content.{run.mark_file(1)}" in failed(score)
    unblind_campaign(folder)


def test_two_swapped_runs_are_not_their_cells(planned, held):
    folder = planned()
    first, second = (folder / campaign.RUNS / cell["run_id"] for cell in cells(folder)[:2])
    first.rename(folder / "swap")
    second.rename(first)
    (folder / "swap").rename(second)
    score_campaign(folder, held)
    for path in (first, second):
        assert "V2.campaign" in failed(score_of(folder, path.name))


@pytest.mark.parametrize("name", ["seed", "source", "environment", "intervention", "marks", "threads", "phase"])
def test_a_run_with_another_plan_than_its_cell(planned, held, name):
    def edit(plan):
        if name in plan["digests"]:
            plan["digests"][name] = digests.digest(name, b"other")
        else:
            plan[name] = {"seed": 103, "marks": [0, 2], "threads": 2, "phase": "confirmatory"}[name]

    folder = planned(edit_plan=edit) if name != "marks" else planned(marks=[0, 2])
    score_campaign(folder, held)
    score = score_of(folder, cells(folder)[0]["run_id"])
    assert "V2.campaign" in failed(score)
    (check,) = [check for check in score["verification"]["checks"] if check["id"] == "V2.campaign"]
    assert name in check["found"]


def test_one_evidence_under_two_seeds_fails_both(planned, held, tiny, tiny_data):
    images = dataset.open_dataset(tiny_data, dataset.contract_counts(tiny)).images["evaluation"]
    folder = planned()
    first, second = cells(folder)[0], next(cell for cell in cells(folder) if cell["seed"] != cells(folder)[0]["seed"])
    arms = canonical.loads((folder / campaign.ARMS).read_bytes())
    label = {cell["run_id"]: cell["arm"] for cell in arms["cells"]}
    raw = {arm["label"]: arm["proposal"].encode() for arm in arms["arms"]}
    for cell in (first, second):
        shutil.rmtree(folder / campaign.RUNS / cell["run_id"])
        fabricate.write_run(
            folder / campaign.RUNS / cell["run_id"],
            tiny,
            tiny_data,
            raw=raw[label[cell["run_id"]]],
            seed=cell["seed"],
            run_id=cell["run_id"],
            evidence=fabricate.invented(tiny, images, 99),
        )
    frozen, _ = score_campaign(folder, held)
    assert totals(frozen) == (6, 4, 2, 0)
    for cell in (first, second):
        score = score_of(folder, cell["run_id"])
        assert failed(score) == {"V2.duplicate"}
        assert (score["state"], score["marks"]) == ("unverified", [])


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("digests.analysis", lambda plan: plan["digests"].update(analysis=plan["digests"]["source"])),
        ("digests.contract", lambda plan: plan["digests"].update(contract=plan["digests"]["source"])),
        ("digests.dataset", lambda plan: plan["digests"].update(dataset=plan["digests"]["source"])),
        ("seeds", lambda plan: plan["seeds"].append(103)),
        ("seeds of the phase", lambda plan: plan.update(phase="confirmatory")),
        ("marks", lambda plan: plan["marks"].append(9)),
        (
            "calibration",
            lambda plan: plan.update(
                calibration={"digest": plan["sweep"], "budget_mark": 2, "primary_metric": "utilization"}
            ),
        ),
        ("run ids", lambda plan: plan["cells"].append({**plan["cells"][0], "seed": 102})),
        ("cells", lambda plan: plan["cells"].append({**plan["cells"][0], "run_id": "run-00000000000000ff"})),
    ],
)
def test_a_campaign_that_contradicts_itself(planned, held, name, edit):
    folder = planned(runs=False, edit_campaign=edit)
    with pytest.raises(VerificationFailed) as caught:
        score_campaign(folder, held, final=True)
    assert f"campaign.json {name}" in [problem.where for problem in caught.value.problems]
    assert not (folder / campaign.SCORES).exists()


def test_without_data_nothing_is_scored(planned, tmp_path, tiny):
    folder = planned()
    with pytest.raises(Incomplete) as caught:
        score_campaign(folder, Held(lock=fabricate.write_lock(tmp_path / "LOCK.json", tiny)))
    assert set(caught.value.codes) == {"E_VERIFY_NOT_RUN"}
    assert not (folder / campaign.SCORES).exists()


@pytest.mark.parametrize("what", ["source", "dataset", "contract"])
def test_a_verifier_with_other_inputs_freezes_nothing(planned, held, tmp_path, tiny_data, what):
    """A wrong checkout would fail every cell, and frozen scores can't be made again."""
    folder = planned()
    if what == "source":
        held.listing = [*held.listing[1:]]
    elif what == "contract":
        held.lock = {"tiny": "sha256:" + "0" * 64}
    else:
        opened = dataset.open_dataset(tiny_data)
        changed = {split: 255 - images for split, images in opened.images.items()}
        other = dataset.Dataset(id="noise", source="other", images=changed, labels=opened.labels)
        dataset.write(tmp_path / "noise", other)
        held.data = tmp_path / "noise"
    with pytest.raises(Refused) as caught:
        score_campaign(folder, held)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("E_VERIFIER_INPUT", f"campaign.json {what}")
    ]
    assert not (folder / campaign.SCORES).exists()


def test_unblinding_before_freezing_is_refused(planned):
    folder = planned()
    with pytest.raises(Refused) as caught:
        unblind_campaign(folder)
    assert caught.value.codes == ("E_NOT_FROZEN",)


def test_frozen_scores_of_another_campaign(planned, held):
    folder = planned()
    score_campaign(folder, held)
    value, _ = campaign.read(folder, campaign.FROZEN)
    value["campaign"] = digests.digest("campaign", b"other")
    fabricate.replace(folder / campaign.FROZEN, canonical.dumps(value))
    with pytest.raises(Refused) as caught:
        unblind_campaign(folder)
    assert caught.value.codes == ("E_NOT_FROZEN",)


def test_a_missing_score_file(planned, held):
    folder = planned()
    score_campaign(folder, held)
    run_id = cells(folder)[0]["run_id"]
    (folder / campaign.SCORES / f"{run_id}.json").unlink()
    with pytest.raises(Refused) as caught:
        unblind_campaign(folder)
    assert [(p.code, p.where) for p in caught.value.problems] == [("E_NOT_FROZEN", f"scores/{run_id}.json")]


def swap_two_labels(arms):
    first = arms["cells"][0]
    second = next(cell for cell in arms["cells"] if cell["arm"] != first["arm"])
    first["arm"], second["arm"] = second["arm"], first["arm"]


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (swap_two_labels, "intervention"),
        (lambda arms: arms["cells"].pop(), "cells"),
        (lambda arms: arms["cells"].append(arms["cells"][0]), "cells"),
        (lambda arms: arms.update(salt="00" * 32), "intervention"),
        (lambda arms: arms["arms"][1]["effective"].update(commitment_weight=2.0), "effective"),
        (lambda arms: arms["arms"][1].update(status="no_effect"), "status"),
        (lambda arms: arms["arms"][1].update(role="reference"), "reference arms"),
        (lambda arms: arms["arms"][1].update(proposal=arms["arms"][2]["proposal"]), "effective"),
        (lambda arms: arms["arms"][1].update(proposal="{}"), "arm beta-high"),
        (lambda arms: arms["arms"][1].update(proposal=arms["arms"][1]["proposal"] + " "), "proposal"),
    ],
)
def test_sealed_arms_that_are_not_what_ran(planned, held, edit, where):
    """The map is consistent with campaign.json's digest: planned so, and at odds with what ran."""
    folder = planned(edit_arms=edit)
    score_campaign(folder, held)
    with pytest.raises(VerificationFailed) as caught:
        unblind_campaign(folder)
    assert any(where in problem.where for problem in caught.value.problems), caught.value
    assert not (folder / campaign.UNBLINDED).exists()


def test_arms_that_were_changed_after_planning(planned, held):
    folder = planned()
    score_campaign(folder, held)
    arms = canonical.loads((folder / campaign.ARMS).read_bytes())
    arms["cells"].reverse()
    fabricate.replace(folder / campaign.ARMS, canonical.dumps(arms))
    with pytest.raises(VerificationFailed) as caught:
        unblind_campaign(folder)
    assert [problem.where for problem in caught.value.problems] == ["sealed/arms.json digest"]


@pytest.mark.parametrize("change", ["remove", "effective", "salt"])
def test_a_reveal_that_is_not_the_arms(planned, held, change):
    folder = planned()
    score_campaign(folder, held)
    run_id = cells(folder)[3]["run_id"]
    path = folder / campaign.RUNS / run_id / run.REVEAL
    value = canonical.loads(path.read_bytes())
    if change == "remove":
        path.unlink()
    else:
        value["effective"]["commitment_weight"] = 9.0
        value["salt"] = "11" * 32 if change == "salt" else value["salt"]
        fabricate.replace(path, canonical.dumps(value))
    with pytest.raises(VerificationFailed) as caught:
        unblind_campaign(folder)
    assert all(problem.where.startswith(run_id) for problem in caught.value.problems)


def test_a_single_run_is_scored_beside_itself(tmp_path, tiny, tiny_data, held):
    folder = fabricate.write_run(tmp_path / "one", tiny, tiny_data)
    with pytest.raises(Refused) as caught:
        unblind_run(folder)
    assert caught.value.codes == ("E_NOT_FROZEN",)
    value, path = score_run(folder, held)
    assert path == score_path(folder) == tmp_path / "one.score.json"
    assert score_run(folder, held)[0] == value
    reveal = unblind_run(folder)
    assert reveal["effective"]["commitment_weight"] == 1.0


def test_a_single_run_that_failed_is_not_scored(tmp_path, tiny, tiny_data, held):
    folder = fabricate.write_run(tmp_path / "one", tiny, tiny_data, edit_plan=lambda plan: plan.update(seed=201))
    with pytest.raises(VerificationFailed):
        score_run(folder, held)
    assert not score_path(folder).exists()


@pytest.mark.parametrize("name", ["salt", "effective", "proposal"])
def test_a_single_reveal_must_match_its_plan(tmp_path, tiny, tiny_data, held, name):
    folder = fabricate.write_run(tmp_path / "one", tiny, tiny_data)
    score_run(folder, held)
    value = canonical.loads((folder / run.REVEAL).read_bytes())
    value[name] = {"salt": "00" * 32, "proposal": value["proposal"] + " "}.get(name, value[name])
    if name == "effective":
        value["effective"]["commitment_weight"] = 2.0
    fabricate.replace(folder / run.REVEAL, canonical.dumps(value))
    with pytest.raises(VerificationFailed) as caught:
        unblind_run(folder)
    assert any("digest" in problem.where for problem in caught.value.problems)


def test_a_single_run_that_changed_since_its_score(tmp_path, tiny, tiny_data, held):
    folder = fabricate.write_run(tmp_path / "one", tiny, tiny_data)
    score_run(folder, held)
    shutil.rmtree(folder)
    fabricate.write_run(folder, tiny, tiny_data, seed=102)
    with pytest.raises(Refused) as caught:
        unblind_run(folder)
    assert caught.value.codes == ("E_NOT_FROZEN",)


WATCH = """
import sys
seen = []
def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and "sealed" in str(arguments[0]):
        seen.append(str(arguments[0]))
sys.addaudithook(hook)
from evaluator.__main__ import main
main(sys.argv[2:])
if sys.argv[1] == "peek":
    import os
    folder = os.open(sys.argv[3], os.O_RDONLY)
    os.close(os.open("sealed", os.O_RDONLY, dir_fd=folder))
sys.exit(9 if seen else 0)
"""


def watched(mode, *arguments):
    """The exit code of the evaluator under a hook that notes each opening of anything named sealed: 9 if it did."""
    command = [sys.executable, "-c", WATCH, mode, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False).returncode


def test_scoring_does_not_open_what_is_sealed(planned, tmp_path, tiny, tiny_data):
    folder, lock = planned(), fabricate.write_lock(tmp_path / "LOCK.json", tiny)
    inputs = ["--data", tiny_data, "--lock", lock]
    assert watched("score", "score", folder, *inputs) == 0
    assert (folder / campaign.FROZEN).exists()
    one = folder / campaign.RUNS / cells(folder)[0]["run_id"]
    assert watched("verify", "verify", one, "--level", "V3", *inputs) == 0


def test_the_hook_would_see_it(planned, tmp_path, tiny, tiny_data):
    folder, lock = planned(), fabricate.write_lock(tmp_path / "LOCK.json", tiny)
    assert watched("peek", "score", folder, "--data", tiny_data, "--lock", lock) == 9
    assert watched("unblind", "unblind", folder) == 9
