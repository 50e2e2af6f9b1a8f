"""Campaign folder → table: what is bound by digest can't be exchanged, and nothing lost leaves the table."""

import base64
import io
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import simulate
from conftest import contract_spec
from simulate import arm

from vqkit.analysis import load, results, shown
from vqkit.errors import Incomplete, Refused, Rejected
from vqkit.formats import canonical, digests, knobs

ARMS = [arm("better", 0.1), arm("worse", -0.1), arm("flat", 0.0)]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    states = {("better", 1): "nonfinite", ("worse", 2): "missing", ("flat", 0): "crashed"}
    folder = tmp_path_factory.mktemp("load") / "campaign"
    return simulate.write_campaign(folder, ARMS, seeds=6, states=states, unverified={("flat", 3)})


@pytest.fixture
def folder(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "campaign")


def rewrite(path, change):
    """Change a canonical JSON file in place."""
    value = json.loads(path.read_bytes())
    change(value)
    path.chmod(0o644)
    path.write_bytes(canonical.dumps(value))


def rebind(folder):
    """Make frozen.json and unblinded.json name what now lies there, as somebody with write access would."""
    entries = {path.stem: digests.digest("score", path.read_bytes()) for path in (folder / "scores").iterdir()}

    def scores(frozen):
        for entry in frozen["scores"]:
            entry["score"] = entries[entry["run_id"]]

    rewrite(folder / "frozen.json", scores)
    frozen = digests.digest("score", (folder / "frozen.json").read_bytes())
    rewrite(folder / "unblinded.json", lambda unblinded: unblinded.update(frozen=frozen))


def a_score(folder, state="complete"):
    for path in sorted((folder / "scores").iterdir()):
        score = json.loads(path.read_bytes())
        if score["state"] == state and score["verification"]["status"] == "passed":
            return path
    raise AssertionError(state)


def refused(folder, kind=Refused):
    with pytest.raises(kind) as caught:
        load.load(folder)
    return caught.value


def test_table_has_one_row_for_each_cell_and_mark(pristine):
    loaded = load.load(pristine)
    table = loaded.table
    assert len(table) == 4 * 6 * 4
    assert not table.duplicated(["arm", "seed", "mark"]).any()
    assert list(table.columns) == [
        "campaign", "contract", "dataset", "device", "run_id", "arm", "role", *knobs.KNOBS, "seed", "mark", "state",
        "verification_status",
        "verification_level", "manipulation_status", "tokens", "perplexity", "normalized_perplexity", "utilization",
        "mse", "psnr", "ssim", "guardrail_psnr", "guardrail_ssim", "imputed", "digest_campaign", "digest_score",
        "digest_source", "digest_intervention", "digest_proposal", "digest_dataset", "digest_environment",
        "digest_contract", "digest_plan", "digest_evidence", "digest_manifest", "digest_exhibit",
    ]  # fmt: skip
    assert set(table.loc[table["role"] == "reference", "arm"]) == {"reference"}


def test_cells_that_did_not_complete_keep_their_rows(pristine):
    loaded = load.load(pristine)
    assert loaded.tally == {"planned": 24, "complete": 20, "failed": 3, "missing": 1}
    states = loaded.table.groupby(["arm", "seed"])["state"].first()
    assert states["better"].tolist() == ["complete", "nonfinite", *["complete"] * 4]
    assert states["worse"].tolist() == ["complete", "complete", "missing", *["complete"] * 3]
    assert states["flat"].tolist() == ["crashed", "complete", "complete", "unverified", "complete", "complete"]
    lost = loaded.table[loaded.table["imputed"]]
    assert len(lost) == 4 * 4
    assert lost[["utilization", "psnr", "guardrail_psnr"]].isna().all(axis=None)


def test_intention_to_treat_values_stand_in_the_arrays(pristine):
    loaded = load.load(pristine)
    a = loaded.labels.index("better")
    assert loaded.imputed[a].tolist() == [False, True, False, False, False, False]
    treat = contract_spec()["analysis"]["intention_to_treat"]
    for metric, value in treat.items():
        assert (loaded.values[metric][a, :, 1] == value).all()
        assert np.isfinite(loaded.values[metric]).all()
    row = loaded.table.query("arm == 'better' and seed == 101 and mark == 5").iloc[0]
    assert loaded.values["psnr"][a, 2, 0] == row["psnr"]
    assert not loaded.verified[loaded.labels.index("flat"), 3]


def test_an_unscored_cell_is_missing(folder):
    path = a_score(folder)
    path.unlink()
    rewrite(
        folder / "frozen.json",
        lambda frozen: frozen.update(
            scores=[entry for entry in frozen["scores"] if entry["run_id"] != path.stem], complete=19, missing=2
        ),
    )
    rebind(folder)
    loaded = load.load(folder)
    assert loaded.tally == {"planned": 24, "complete": 19, "failed": 3, "missing": 2}


def test_the_order_of_files_does_not_matter(folder, pristine):
    def turn(unblinded):
        unblinded["cells"].reverse()

    rewrite(folder / "unblinded.json", turn)
    before, after = load.load(pristine), load.load(folder)
    columns = [name for name in before.table if name != "digest_campaign"]
    pd.testing.assert_frame_equal(before.table[columns], after.table[columns])


def test_csv_reads_back_to_the_same_table(pristine):
    table = load.load(pristine).table
    data = results.write(table)
    assert data == results.write(table)
    back = results.read(data)
    first = results.arrays(table, (0, 2, 5, 10), range(6), {"psnr": 6.0})
    second = results.arrays(back, (0, 2, 5, 10), range(6), {"psnr": 6.0})
    assert first.labels == second.labels
    assert (first.imputed == second.imputed).all()
    for metric in first.values:
        np.testing.assert_array_equal(first.values[metric], second.values[metric])
    assert back["latent_normalization"].tolist() == table["latent_normalization"].tolist()


@pytest.mark.parametrize("name", ["null", "nan", "none", "n-a", "na"])
def test_an_arm_may_have_any_name(tmp_path, name):
    folder = simulate.write_campaign(tmp_path / "c", [arm(name, 0.1)], seeds=6)
    table = load.load(folder).table
    assert set(results.read(results.write(table))["arm"]) == {"reference", name}


def test_plain_pandas_reads_the_parquet(pristine):
    file = io.BytesIO()
    table = load.load(pristine).table
    table.to_parquet(file, index=False)
    back = pd.read_parquet(io.BytesIO(file.getvalue()))
    assert back.shape == table.shape
    assert back["imputed"].sum() == 16


# refusals


@pytest.mark.parametrize("name", ["frozen.json", "unblinded.json"])
def test_a_stage_that_is_missing_is_named(folder, name):
    (folder / name).unlink()
    error = refused(folder, Incomplete)
    assert error.codes == ("E_STAGE_MISSING",)
    assert error.problems[0].where == name


def test_every_missing_stage_is_named(folder):
    for name in ("frozen.json", "unblinded.json"):
        (folder / name).unlink()
    assert refused(folder, Incomplete).codes == ("E_STAGE_MISSING",) * 2
    (folder / "campaign.json").unlink()
    assert refused(folder, Rejected).codes == ("E_CAMPAIGN_MISSING",)


def test_a_changed_score_is_refused(folder):
    path = a_score(folder)
    rewrite(path, lambda score: score["marks"][1].update(utilization=0.99))
    error = refused(folder)
    assert error.codes == ("E_ANALYSIS_BINDING",)
    assert error.problems[0].where == path.name


def test_a_deleted_score_is_refused(folder):
    path = a_score(folder)
    path.unlink()
    assert refused(folder).codes == ("E_ANALYSIS_BINDING",)


def test_changed_frozen_scores_are_refused(folder):
    rewrite(folder / "frozen.json", lambda frozen: frozen.update(complete=21, failed=2))
    assert refused(folder).codes == ("E_ANALYSIS_BINDING",)


@pytest.mark.parametrize("name", ["frozen.json", "unblinded.json"])
def test_files_of_another_campaign_are_refused(folder, name):
    rewrite(folder / name, lambda value: value.update(campaign="sha256:" + "0" * 64))
    assert "E_ANALYSIS_BINDING" in refused(folder).codes


def test_scores_of_another_analysis_plan_are_refused(folder):
    """Somebody lowers δ_min after the data and rebinds everything that he can reach."""
    rewrite(folder / "campaign.json", lambda plan: plan["contract"]["analysis"]["delta_min"].update(utilization=0.001))
    campaign = digests.digest("campaign", (folder / "campaign.json").read_bytes())
    for name in ("frozen.json", "unblinded.json"):
        rewrite(folder / name, lambda value: value.update(campaign=campaign))
    rebind(folder)
    assert refused(folder).codes == ("E_ANALYSIS_BINDING", "E_ANALYSIS_PLAN")


def test_swapped_arms_are_refused(folder):
    def swap(unblinded):
        better, worse = (next(a for a in unblinded["arms"] if a["label"] == name) for name in ("better", "worse"))
        better["label"], worse["label"] = worse["label"], better["label"]

    rewrite(folder / "unblinded.json", swap)
    assert set(refused(folder).codes) == {"E_ANALYSIS_BINDING"}


def test_a_grid_with_a_hole_is_refused(folder):
    def move(unblinded):
        owner = {cell["run_id"]: cell for cell in unblinded["cells"]}
        first = next(run_id for run_id, cell in owner.items() if cell["arm"] == "better")
        owner[first]["arm"] = "worse"

    rewrite(folder / "unblinded.json", move)
    assert "E_ANALYSIS_INPUT" in refused(folder).codes


def test_two_references_are_refused(folder):
    rewrite(folder / "unblinded.json", lambda unblinded: unblinded["arms"][1].update(role="reference"))
    assert refused(folder).codes == ("E_ANALYSIS_INPUT",)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda score: score.update(seed=999), "seed"),
        (lambda score: score["marks"].pop(), "marks"),
        (lambda score: score["marks"][0].update(mark=1), "marks"),
        (lambda score: score["digests"].update(dataset="sha256:" + "0" * 64), "digests.dataset"),
        (lambda score: score["digests"].update(environment="sha256:" + "0" * 64), "digests.environment"),
        (lambda score: score["digests"].update(intervention="sha256:" + "0" * 64), "digests.intervention"),
        (lambda score: score["digests"].pop("contract"), "digests.contract"),
    ],
)
def test_a_complete_score_that_does_not_belong_is_refused(folder, change, where):
    path = a_score(folder)
    rewrite(path, change)
    rebind(folder)
    error = refused(folder)
    assert error.codes == ("E_ANALYSIS_INPUT",)
    assert error.problems[0].where == f"{path.name}.{where}"


def test_every_fault_is_reported_at_once(folder):
    for path in sorted((folder / "scores").iterdir())[:3]:
        rewrite(path, lambda score: score.update(seed=999))
    assert refused(folder).codes == ("E_ANALYSIS_BINDING",) * 3


def test_a_state_that_contradicts_frozen_scores_is_refused(folder):
    rewrite(a_score(folder), lambda score: score.update(state="error"))
    rebind(folder)
    assert refused(folder).codes == ("E_ANALYSIS_INPUT",)


def test_malformed_files_are_rejected_not_repaired(folder):
    path = folder / "unblinded.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"\n")
    assert refused(folder, Rejected).codes == ("E_JSON_CANONICAL",)
    rewrite(path, lambda unblinded: unblinded.update(extra=1))
    assert refused(folder, Rejected).codes == ("E_SCHEMA_UNKNOWN_KEY",)


def test_neither_evidence_nor_what_is_sealed_is_opened(folder, monkeypatch):
    for name in ("sealed", "runs"):
        (folder / name).mkdir()
        (folder / name).chmod(0)
    opened = []
    real = load.files.read_once
    monkeypatch.setattr(load.files, "read_once", lambda path, **kw: (opened.append(path), real(path, **kw))[1])
    load.load(folder)
    inside = {path.relative_to(folder).parts[0] for path in opened}
    assert inside == {"campaign.json", "frozen.json", "unblinded.json", "setting.json", "scores"}


def test_what_is_shown_comes_from_what_the_table_names(tmp_path):
    folder = simulate.write_campaign(tmp_path / "c", ARMS, seeds=6, states={("better", 1): "nonfinite"}, exhibits=True)
    loaded = load.load(folder)
    arm_shown = shown.read_arm(folder, loaded.table, "better", 10)
    assert arm_shown.counts.shape == (5, 128)
    run_id = loaded.table.query("arm == 'better' and seed == 101")["run_id"].iloc[0]
    score = json.loads((folder / "scores" / f"{run_id}.json").read_bytes())
    assert arm_shown.counts[0].tolist() == score["marks"][-1]["counts"]
    exhibit = json.loads((folder / "exhibits" / f"{run_id}.json").read_bytes())
    assert arm_shown.curves["loss"].shape == (5, 10)
    assert arm_shown.curves["loss"][0].tolist() == exhibit["curve"]["loss"]
    assert arm_shown.marks["psnr"][0].tolist() == [entry["psnr"] for entry in score["marks"]]
    assert arm_shown.samples.keys() == {101, 103, 104, 105, 106}
    raw = base64.b64decode(exhibit["samples"][-1]["reconstruction"])
    assert arm_shown.samples[101].tobytes() == raw


@pytest.mark.parametrize("place", ["scores", "exhibits"])
def test_what_is_shown_is_bound(tmp_path, place):
    folder = simulate.write_campaign(tmp_path / "c", ARMS, seeds=2, exhibits={"better"})
    loaded = load.load(folder)
    run_id = loaded.table.query("arm == 'better' and seed == 101")["run_id"].iloc[0]
    rewrite(folder / place / f"{run_id}.json", lambda value: value.update(run_id="run-0000000000000000"))
    with pytest.raises(Refused) as caught:
        shown.read_arm(folder, loaded.table, "better", 10)
    assert [(one.code, one.where) for one in caught.value.problems] == [
        ("E_ANALYSIS_BINDING", f"{place}/{run_id}.json")
    ]


@pytest.mark.parametrize("environment", [False, True])
def test_the_setting_is_bound(tmp_path, environment):
    """By frozen.json, and its facts by the campaign's digest of the environment."""
    folder = simulate.write_campaign(tmp_path / "c", ARMS, seeds=2)
    plan, frozen = (json.loads((folder / name).read_bytes()) for name in ("campaign.json", "frozen.json"))
    bound = frozen["setting"], plan["digests"]["environment"]
    assert shown.read_setting(folder, *bound)["environment"]["torch"] == "2.14.1+cpu"
    rewrite(folder / "setting.json", lambda value: value["environment"].update(torch="2.99"))
    if environment:
        bound = digests.digest("exhibit", (folder / "setting.json").read_bytes()), bound[1]
    with pytest.raises(Refused) as caught:
        shown.read_setting(folder, *bound)
    wanted = "setting.json environment" if environment else "setting.json"
    assert [(one.code, one.where) for one in caught.value.problems] == [("E_ANALYSIS_BINDING", wanted)]
