"""The ladder on made-up runs: what is consistent passes to V3, and every kind of tampering has its own check."""

import contextlib
import json
import os

import fabricate
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluator import metrics
from evaluator.checks import CATALOGUE
from evaluator.verify import verify
from vqkit.errors import Incomplete, Rejected
from vqkit.formats import canonical, dataset, digests, run, schema, source, tensors
from vqkit.formats.campaign import CHECK_SCHEMA, MARK_SCORE_SCHEMA
from vqkit.formats.contract import Contract

MARK, STATE = run.mark_file(1), run.state_file(2)


@pytest.fixture
def check(tmp_path, tiny, tiny_data):
    """A function that makes a run up (with ``write_run``'s options), lets ``tamper`` at it, and verifies it."""
    lock = fabricate.write_lock(tmp_path / "LOCK.json", tiny)

    def made_up(tamper=None, level="V3", inputs=None, **options):
        folder = fabricate.write_run(tmp_path / "run", tiny, tiny_data, **options)
        if tamper:
            tamper(folder)
        return verify(folder, level=level, **{"data": tiny_data, "lock": lock, **(inputs or {})})

    return made_up


def failed(verdict):
    """The ids of the failed checks."""
    return {check.id for check in verdict.checks if check.status == "failed"}


def found(verdict, check_id):
    """What a check found."""
    (one,) = [check for check in verdict.checks if check.id == check_id]
    return one.found


def test_fabricated_evidence_passes_up_to_v3_and_the_verdict_says_so(check):
    verdict = check()
    assert (verdict.status, verdict.level, failed(verdict)) == ("passed", "V3", set())
    assert any("fabricate" in text for text in verdict.not_proven)


def test_fabricated_evidence_is_caught_at_v4(check):
    verdict = check(level="V4")
    assert {"V4.indices", "V4.reconstruction"} <= failed(verdict)
    assert (verdict.status, verdict.level) == ("failed", "V3")


def test_every_check_is_listed_and_in_the_schema(check):
    verdict = check()
    ids = {one.id for one in verdict.checks}
    for names in CATALOGUE.values():
        for name in names:
            assert any(one == name or one.startswith(f"{name}.") for one in ids), name
    for one in verdict.checks:
        assert schema.problems(one.to_json(), CHECK_SCHEMA, "check") == []
        if one.level in ("V4", "V5"):
            assert one.status == "not_run"


def test_marks_are_recomputed_from_the_raw_evidence(check, tmp_path, tiny, tiny_data):
    verdict = check()
    assert [mark["mark"] for mark in verdict.marks] == list(tiny.marks)
    images = dataset.open_dataset(tiny_data, dataset.contract_counts(tiny)).images["evaluation"]
    for mark in verdict.marks:
        assert schema.problems(mark, MARK_SCORE_SCHEMA, "mark") == []
        raw = (tmp_path / "run" / "evidence" / run.mark_file(mark["mark"])).read_bytes()
        arrays = tensors.decode(raw, run.mark_layout(tiny), where="mark")
        assert mark["counts"] == [int((arrays["indices"] == code).sum()) for code in range(tiny.codes)]
        assert mark["ssim"] == metrics.Originals(images).ssim(arrays["reconstruction"])
        assert mark["guardrails"]["psnr"]["status"] == ("ok" if mark["psnr"] >= 12 else "broken")
        assert mark["guardrails"]["ssim"]["status"] == ("ok" if mark["ssim"] >= 0.2 else "broken")


@pytest.mark.parametrize("name", [run.mark_file(0), MARK, STATE, run.STEPS, run.TERMINAL])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_flipped_bit_names_the_file(check, name, place):
    def flip(folder):
        data = bytearray((folder / "evidence" / name).read_bytes())
        data[int(place * (len(data) - 1))] ^= 1
        fabricate.replace(folder / "evidence" / name, bytes(data))

    verdict = check(flip)
    assert {f"V1.content.{name}", "V1.evidence_digest"} <= failed(verdict)
    assert not {one for one in failed(verdict) if one.startswith("V1.content") and name not in one}
    assert verdict.level == "V0"
    assert verdict.marks == []
    assert any(name in problem.where for problem in verdict.failures())


@pytest.mark.parametrize("name", ["plan.json", "manifest.json"])
@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b"\xff", b'{"a": 1}', b"null", b"[" * 100000, b'{"a":1e999}'])
def test_malformed_json_is_a_failed_check(check, name, bad):
    verdict = check(lambda folder: fabricate.replace(folder / name, bad))
    assert failed(verdict) == {f"V0.{name.removesuffix('.json')}"}
    assert verdict.level == "none"


def test_another_spelling_of_the_manifest_is_refused(check):
    def respell(folder):
        value = json.loads((folder / run.MANIFEST).read_bytes())
        fabricate.replace(folder / run.MANIFEST, json.dumps(value, indent=1).encode())

    verdict = check(respell)
    assert failed(verdict) == {"V0.manifest"}
    assert "E_JSON_CANONICAL" in found(verdict, "V0.manifest")


@pytest.mark.parametrize(
    "name", ["../plan.json", "mark-1.safetensors", "weights.pkl", "/etc/passwd", "mark-0001.SAFETENSORS"]
)
def test_names_outside_the_closed_list_are_refused(check, name):
    def rename(manifest):
        manifest["subject"][0]["name"] = manifest["predicate"]["evidence"][0]["name"] = name

    verdict = check(edit_manifest=rename)
    assert failed(verdict) == {"V0.manifest"}
    assert name in found(verdict, "V0.manifest")


def test_a_name_that_stands_twice_is_refused(check):
    def double(manifest):
        manifest["subject"].append(manifest["subject"][0])
        manifest["predicate"]["evidence"].append(manifest["predicate"]["evidence"][0])

    assert failed(check(edit_manifest=double)) == {"V0.manifest"}


@pytest.mark.parametrize("place", ["", "evidence"])
@pytest.mark.parametrize("name", ["extra.txt", ".hidden", "mark-0007.safetensors", "ü\udcff"])
def test_an_extra_file_is_named(check, place, name):
    verdict = check(lambda folder: (folder / place / name).write_bytes(b"x"))
    assert failed(verdict) == {"V1.files"}
    assert name.encode("utf-8", "backslashreplace").decode() in found(verdict, "V1.files")


@pytest.mark.parametrize("name", [MARK, STATE, run.STEPS, run.TERMINAL])
def test_a_missing_file_is_named(check, name):
    verdict = check(lambda folder: (folder / "evidence" / name).unlink())
    assert {"V1.files", f"V1.content.{name}", "V1.evidence_digest"} <= failed(verdict)
    assert name in found(verdict, "V1.files")


def test_a_missing_evidence_folder_is_named(check):
    verdict = check(lambda folder: (folder / "evidence").rename(folder.parent / "elsewhere"))
    assert "V1.files" in failed(verdict)
    assert "evidence" in found(verdict, "V1.files")


def test_a_missing_plan_is_a_failed_check(check):
    assert failed(check(lambda folder: (folder / run.PLAN).unlink())) == {"V0.plan"}


def test_a_run_without_a_manifest_is_incomplete(check, tmp_path):
    with pytest.raises(Incomplete) as caught:
        check(lambda folder: (folder / run.MANIFEST).unlink())
    assert caught.value.codes == ("E_RUN_INCOMPLETE",)
    with pytest.raises(Incomplete) as caught:
        verify(tmp_path / "nothing")
    assert caught.value.codes == ("E_RUN_INCOMPLETE",)


def link(path):
    """Put a link to the same content in the place of ``path``."""
    target = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("name", "check_id"),
    [
        ("", "V0.folder"),
        ("plan.json", "V0.plan"),
        ("manifest.json", "V0.manifest"),
        ("evidence", "V1.files"),
        (f"evidence/{MARK}", f"V1.content.{MARK}"),
        ("sealed", "V1.files"),
    ],
)
def test_links_are_not_followed(check, name, check_id):
    def tamper(folder):
        if name.startswith("evidence/"):
            target = folder.parent / "target"
            (folder / name).rename(target)
            (folder / name).symlink_to(target)
        else:
            link(folder / name)

    assert check_id in failed(check(tamper))


def test_a_pipe_in_the_place_of_a_file_does_not_block(check):
    def pipe(folder):
        (folder / "evidence" / MARK).unlink()
        os.mkfifo(folder / "evidence" / MARK)

    assert f"V1.content.{MARK}" in failed(check(pipe))


def test_a_huge_file_is_not_read(check):
    def grow(folder):
        path = folder / "evidence" / MARK
        os.chmod(path, 0o644)
        os.truncate(path, 1 << 40)  # a hole: it takes no space on disk

    verdict = check(grow)
    assert "E_FILE_SIZE" in found(verdict, f"V1.content.{MARK}")


def test_a_wrong_size_in_the_manifest(check):
    def edit(manifest):
        manifest["predicate"]["evidence"][0]["size"] += 1

    assert failed(check(edit_manifest=edit)) == {"V1.sizes"}


def test_an_evidence_digest_of_other_files(check):
    def edit(manifest):
        manifest["predicate"]["digests"]["evidence"] = digests.digest("evidence", b"other")

    assert failed(check(edit_manifest=edit)) == {"V1.evidence_digest"}


def test_a_manifest_that_promotes_its_terminal_state(check):
    """A diverged run whose manifest says complete: the terminal statement in the evidence says otherwise."""

    def promote(manifest):
        manifest["predicate"]["terminal"]["state"] = "complete"

    verdict = check(state="nonfinite", measured=2, edit_manifest=promote)
    assert {"V1.terminal", "V1.marks"} <= failed(verdict)


def test_a_complete_run_without_one_of_its_marks(check):
    def drop(manifest):
        names = (run.mark_file(1), run.state_file(1))
        predicate = manifest["predicate"]
        manifest["subject"] = [entry for entry in manifest["subject"] if entry["name"] not in names]
        predicate["evidence"] = [entry for entry in predicate["evidence"] if entry["name"] not in names]

    assert "V1.marks" in failed(check(edit_manifest=drop))


@pytest.mark.parametrize("bad", [b"", b"\x80\x04pickle", b"\xff" * 8 + b"x", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_sealed_bytes_that_are_no_tensors(check, bad):
    verdict = check(edit_files=lambda contents: contents.update({MARK: bad}))
    assert failed(verdict) == {"V1.layout"}
    assert MARK in found(verdict, "V1.layout")


def test_a_step_log_that_is_too_short(check, tiny):
    short = tensors.encode({name: np.zeros(3, np.float32) for name in run.STEP_COLUMNS}, run.steps_layout(3))
    verdict = check(edit_files=lambda contents: contents.update({run.STEPS: short}))
    assert failed(verdict) == {"V1.layout"}
    assert run.STEPS in found(verdict, "V1.layout")


def test_a_contract_that_is_not_the_locked_one(check, tmp_path, tiny):
    spec = json.loads(json.dumps(tiny.spec))
    spec["analysis"]["alpha"] = 0.5
    lock = fabricate.write_lock(tmp_path / "other.json", Contract(spec))
    verdict = check(inputs={"lock": lock})
    assert failed(verdict) == {"V2.contract"}
    assert verdict.level == "V1"
    assert verdict.marks == []


def test_the_shipped_lock_does_not_know_a_made_up_contract(check):
    verdict = check(inputs={"lock": None})
    assert failed(verdict) == {"V2.contract"}


def test_a_plan_that_embeds_another_contract_than_it_names(check):
    verdict = check(edit_plan=lambda plan: plan["digests"].update(contract=digests.digest("contract", b"other")))
    assert failed(verdict) == {"V2.plan"}


def test_a_changed_source_names_the_file(check, tmp_path):
    root = tmp_path / "tree"
    for entry in source.listing():
        (root / entry["name"]).parent.mkdir(parents=True, exist_ok=True)
        (root / entry["name"]).write_bytes((source.ROOT / entry["name"]).read_bytes())
    assert source.listing(root) == source.listing()
    (root / "vqkit" / "nn" / "__init__.py").write_bytes(b"# another\n")
    verdict = check(inputs={"source": root})
    assert failed(verdict) == {"V2.source"}
    assert "vqkit/nn/__init__.py" in found(verdict, "V2.source")


def test_a_plan_whose_listing_has_another_digest(check):
    verdict = check(edit_plan=lambda plan: plan["source"][0].update(size=1))
    assert failed(verdict) == {"V2.source"}


def test_another_dataset(check, tmp_path, tiny_data):
    opened = dataset.open_dataset(tiny_data)
    images = {split: array.copy() for split, array in opened.images.items()}
    images["evaluation"][0, 0, 0, 0] ^= 1
    changed = dataset.Dataset(id="noise", source="random", images=images, labels=opened.labels)
    dataset.write(tmp_path / "changed", changed)
    assert failed(check(inputs={"data": tmp_path / "changed"})) == {"V2.dataset"}


def test_the_same_pixels_under_another_name(check):
    """The name of a dataset is a claim of the plan; the verifier's own card must agree."""
    verdict = check(edit_plan=lambda plan: plan["dataset"].update(id="cifar10"))
    assert failed(verdict) == {"V2.dataset"}


def test_a_dataset_with_fewer_images_than_the_contract_selects(check, tmp_path, tiny_data):
    opened = dataset.open_dataset(tiny_data, {"train": 10, "evaluation": 10})
    dataset.write(tmp_path / "few", opened)
    assert failed(check(inputs={"data": tmp_path / "few"})) == {"V2.dataset"}


def test_a_verifier_without_data_is_told_so(tmp_path, check):
    with pytest.raises(Rejected) as caught:
        check(inputs={"data": tmp_path / "none"})
    assert caught.value.codes == ("E_DATA_SOURCE",)


def test_another_environment(check):
    assert failed(check(edit_plan=lambda plan: plan["environment"].update(python="3.9"))) == {"V2.environment"}


@pytest.mark.parametrize("seed", [201, 5])
def test_a_seed_of_the_other_phase(check, seed):
    assert failed(check(edit_plan=lambda plan: plan.update(seed=seed))) == {"V2.seed"}


@pytest.mark.parametrize("name", ["plan", "run_id", *run.PLAN_DIGESTS])
def test_a_manifest_of_another_plan(check, name):
    def edit(manifest):
        predicate = manifest["predicate"]
        if name in ("plan", "run_id"):
            predicate[name] = {"plan": digests.digest("plan", b"other"), "run_id": "run-00000000000000bb"}[name]
        else:
            predicate["digests"][name] = digests.digest("plan", b"other")

    verdict = check(edit_manifest=edit)
    assert failed(verdict) == {"V2.plan"}
    assert name in found(verdict, "V2.plan")


def test_marks_that_the_contract_does_not_have(check):
    assert "V2.plan" in failed(check(marks=[0, 3]))


def test_missing_inputs_are_not_run_and_never_passed(check):
    verdict = check(inputs={"data": None})
    skipped = {one.id for one in verdict.checks if one.status == "not_run"}
    assert {"V2.dataset", "V3.metrics"} <= skipped
    assert (verdict.status, verdict.level) == ("passed", "V1")
    assert {problem.code for problem in verdict.gaps("V3")} == {"E_VERIFY_NOT_RUN"}


@pytest.mark.parametrize("level", ["V0", "V1", "V2"])
def test_a_lower_level_stops_there(check, level):
    verdict = check(level=level)
    assert verdict.level == level
    assert {one.status for one in verdict.checks if one.level > level} == {"not_run"}
    assert verdict.marks == []


def test_an_index_beyond_the_codebook(check, tiny, tiny_data):
    images = dataset.open_dataset(tiny_data, dataset.contract_counts(tiny)).images["evaluation"]
    honest = fabricate.invented(tiny, images, 1)

    def evidence(mark):
        weights, indices, reconstruction = honest(mark)
        indices[0, 0, 0] = tiny.codes
        return weights, indices, reconstruction

    assert failed(check(evidence=evidence)) == {"V3.indices"}


def test_a_weight_that_is_not_finite(check, tiny, tiny_data):
    images = dataset.open_dataset(tiny_data, dataset.contract_counts(tiny)).images["evaluation"]
    honest = fabricate.invented(tiny, images, 1)

    def evidence(mark):
        weights, indices, reconstruction = honest(mark)
        weights["encoder.out.bias"][0] = np.nan
        return weights, indices, reconstruction

    verdict = check(evidence=evidence)
    assert failed(verdict) == {"V3.finite"}
    assert "encoder.out.bias" in found(verdict, "V3.finite")


def steps_skipped(contents_or_manifest):
    """Change the terminal statement so that one step was skipped, in evidence or manifest."""
    if run.TERMINAL in contents_or_manifest:
        terminal = json.loads(contents_or_manifest[run.TERMINAL])
    else:
        terminal = contents_or_manifest["predicate"]["terminal"]
    terminal["steps_applied"] -= 1
    terminal["steps_skipped"] += 1
    if run.TERMINAL in contents_or_manifest:
        contents_or_manifest[run.TERMINAL] = canonical.dumps(terminal)


def test_a_skipped_step_is_not_complete(check):
    assert failed(check(edit_files=steps_skipped, edit_manifest=steps_skipped)) == {"V3.steps"}


@pytest.mark.parametrize("state", ["nonfinite", "invalid", "cancelled", "budget_exceeded", "error"])
@pytest.mark.parametrize("measured", [0, 2])
def test_a_run_that_did_not_complete_is_bound_and_not_scored(check, state, measured):
    verdict = check(state=state, measured=measured)
    assert (verdict.status, verdict.level, verdict.state) == ("passed", "V2", state)
    assert verdict.marks == []
    assert not verdict.reached


def test_a_run_is_left_as_it_was(check, tmp_path):
    def snapshot():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else sorted(os.listdir(path)))
            for path in [tmp_path / "run", *sorted((tmp_path / "run").rglob("*"))]
        }

    states = []
    check(lambda folder: states.append(snapshot()), level="V4")
    assert snapshot() == states[0]


@pytest.fixture(scope="module")
def honest_run(tmp_path_factory, tiny, tiny_data):
    return fabricate.write_run(tmp_path_factory.mktemp("fuzz") / "run", tiny, tiny_data)


def paths(value, path=()):
    """Every path in a JSON value."""
    yield path
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(child, (*path, key))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just(["x", 1]),
    st.just({"choices": ["abc"]}),
    st.just({"low": 0, "high": 1e300}),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_plan_or_manifest_the_answer_is_a_verdict(
    data, honest_run, tmp_path_factory, tiny, tiny_data
):
    name = data.draw(st.sampled_from([run.PLAN, run.MANIFEST]))
    original = (honest_run / name).read_bytes()
    value = json.loads(original)
    *path, last = data.draw(st.sampled_from([path for path in paths(value) if path]))
    node = value
    for key in path:
        node = node[key]
    new = data.draw(VALUES)
    changed = node[last] != new or type(node[last]) is not type(new)
    node[last] = new
    try:
        text = canonical.dumps(value)
    except Rejected:
        text = json.dumps(value).encode()
    lock = fabricate.write_lock(tmp_path_factory.mktemp("lock") / "LOCK.json", tiny)
    fabricate.replace(honest_run / name, text)
    try:
        verdict = verify(honest_run, data=tiny_data, lock=lock)
        if changed and text != original and "resources" not in path:
            assert verdict.status == "failed"
            assert verdict.level in ("none", "V0", "V1")
    finally:
        with contextlib.suppress(OSError):
            fabricate.replace(honest_run / name, original)


def test_a_contract_whose_bounds_have_another_type(check):
    def edit(plan):
        plan["contract"] = json.loads(json.dumps(plan["contract"]))
        plan["contract"]["knobs"]["candidates"]["dead_code_restart"] = {"choices": ["abc"]}

    verdict = check(edit_plan=edit)
    assert failed(verdict) == {"V0.plan"}
    assert "E_CONTRACT_INVALID" in found(verdict, "V0.plan")
