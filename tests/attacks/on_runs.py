"""Attacks on a sealed run: its files, what binds them, and what they claim."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load, save
from table import call, edit_json, holds, on_run, overwrite, reseal

from evaluator import replay, reproduce
from evaluator.held import Held
from evaluator.verify import climb
from runner.repeat import repeat
from vqkit.errors import VerificationFailed, raise_all
from vqkit.formats import dataset, digests, files, run, tensors

MARK, STATE, LAST = run.mark_file(1), run.state_file(1), run.mark_file(2)


def flip(data, place=-1):
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


# Bytes


@on_run("one bit of a reconstruction flips", f"V1.content.{MARK}")
def flip_mark(stage):
    overwrite(stage.evidence(MARK), flip)


@on_run("one bit of a weight flips", f"V1.content.{STATE}")
def flip_state(stage):
    overwrite(stage.evidence(STATE), flip)


@on_run("one bit of the terminal statement flips", f"V1.content.{run.TERMINAL}")
def flip_terminal(stage):
    overwrite(stage.evidence(run.TERMINAL), lambda data: flip(data, 20))


@on_run("a file is cut off", f"V1.content.{MARK}")
def truncate(stage):
    overwrite(stage.evidence(MARK), lambda data: data[:-100])


@on_run("bytes are appended to a file", "V1.sizes")
def append(stage):
    overwrite(stage.evidence(MARK), lambda data: data + b"hidden")


@on_run("a file is emptied", "V1.sizes")
def empty(stage):
    overwrite(stage.evidence(run.STEPS), lambda data: b"")


# Names


@on_run("a file is missing", "V1.files")
def missing(stage):
    stage.evidence(STATE).unlink()


@on_run("an extra file in the evidence", "V1.files")
def extra(stage):
    stage.evidence("mark-0007.safetensors").write_bytes(b"x")


@on_run("a hidden file beside the plan", "V1.files")
def hidden(stage):
    (stage.run / ".note").write_bytes(b"x")


@on_run("other bytes under the manifest's temporary name", "V1.files")
def false_second_name(stage):
    (stage.run / ".manifest.json.17.tmp").write_bytes(b"{}")


@on_run("two marks swap their names", f"V1.content.{MARK}")
def swap(stage):
    first, second = stage.evidence(MARK).read_bytes(), stage.evidence(LAST).read_bytes()
    overwrite(stage.evidence(MARK), lambda _: second)
    overwrite(stage.evidence(LAST), lambda _: first)


@on_run("the manifest names a file outside the run (../)", "V0.manifest")
def traversal(stage):
    edit_json(stage.run / run.MANIFEST, lambda m: m["subject"][0].update(name="../../../etc/hostname"))


@on_run("the manifest names an absolute path", "V0.manifest")
def absolute(stage):
    def rename(manifest):
        manifest["subject"][0]["name"] = manifest["predicate"]["evidence"][0]["name"] = "/etc/hostname"

    edit_json(stage.run / run.MANIFEST, rename)


@on_run("a name in another case", "V0.manifest")
def other_case(stage):
    def rename(manifest):
        manifest["subject"][0]["name"] = manifest["predicate"]["evidence"][0]["name"] = MARK.upper()

    edit_json(stage.run / run.MANIFEST, rename)


@on_run("one name twice in the manifest", "V0.manifest")
def name_twice(stage):
    def double(manifest):
        manifest["subject"].append(manifest["subject"][0])
        manifest["predicate"]["evidence"].append(manifest["predicate"]["evidence"][0])

    edit_json(stage.run / run.MANIFEST, double)


# Kinds of files


@on_run("a link in the place of evidence, to the same bytes", f"V1.content.{MARK}")
def link(stage):
    shutil.move(stage.evidence(MARK), stage.root / "elsewhere")
    stage.evidence(MARK).symlink_to(stage.root / "elsewhere")


@on_run("a link in the place of the evidence folder", "V1.files")
def linked_folder(stage):
    shutil.move(stage.run / run.EVIDENCE, stage.root / "elsewhere")
    (stage.run / run.EVIDENCE).symlink_to(stage.root / "elsewhere")


@on_run("a link in the place of the run", "V0.folder")
def linked_run(stage):
    stage.run.rename(stage.root / "elsewhere")
    (stage.root / "run").symlink_to(stage.root / "elsewhere")


@on_run("a pipe that never answers", f"V1.content.{MARK}")
def pipe(stage):
    stage.evidence(MARK).unlink()
    os.mkfifo(stage.evidence(MARK))


@on_run("a pipe in the place of the plan", "V0.plan")
def pipe_for_plan(stage):
    (stage.run / run.PLAN).unlink()
    os.mkfifo(stage.run / run.PLAN)


@on_run("a folder in the place of a file", f"V1.content.{MARK}")
def folder_for_file(stage):
    stage.evidence(MARK).unlink()
    stage.evidence(MARK).mkdir()


@on_run("a file of a tebibyte (a hole)", f"V1.content.{MARK}")
def huge_file(stage):
    os.chmod(stage.evidence(MARK), 0o644)
    os.truncate(stage.evidence(MARK), 1 << 40)


@on_run("a file in the place of sealed/", "V1.files")
def sealed_file(stage):
    shutil.rmtree(stage.run / "sealed")
    (stage.run / "sealed").write_bytes(b"x")


# Manifest and plan


@call("the manifest is removed", "E_RUN_INCOMPLETE", "V0")
def no_manifest(stage):
    (stage.run / run.MANIFEST).unlink()
    climb(stage.run, stage.held)


@on_run("another spelling of the same manifest", "V0.manifest")
def respelled(stage):
    overwrite(stage.run / run.MANIFEST, lambda data: json.dumps(json.loads(data), indent=1).encode())


@on_run("a key that manifests do not have", "V0.manifest")
def unknown_key(stage):
    edit_json(stage.run / run.MANIFEST, lambda m: m["predicate"].update(score=1.0))


@on_run("algorithm downgrade: a subject with sha1 only", "V0.manifest")
def downgrade_subject(stage):
    edit_json(stage.run / run.MANIFEST, lambda m: m["subject"][0].update(digest={"sha1": "0" * 40}))


@on_run("algorithm downgrade: a digest that says md5", "V0.plan")
def downgrade_plan(stage):
    edit_json(stage.run / run.PLAN, lambda plan: plan["digests"].update(source="md5:" + "0" * 32))


@on_run("a size that is not the file's", "V1.sizes")
def wrong_size(stage):
    reseal(stage.run, manifest=lambda m: m["predicate"]["evidence"][0].update(size=1))


@on_run("an evidence digest of other files", "V1.evidence_digest")
def wrong_digest(stage):
    other = digests.digest("evidence", b"other")
    reseal(stage.run, manifest=lambda m: m["predicate"]["digests"].update(evidence=other))


@on_run("a diverged run whose manifest says complete", "V1.terminal")
def promoted(stage):
    def diverge(contents):
        terminal = json.loads(contents[run.TERMINAL]) | {"state": "nonfinite", "reason": "loss at step 3"}
        contents[run.TERMINAL] = json.dumps(terminal, sort_keys=True, separators=(",", ":")).encode()

    reseal(stage.run, contents=diverge, manifest=lambda m: m["predicate"]["terminal"].update(state="complete"))


@on_run("a complete run that leaves out a mark", "V1.marks")
def left_out(stage):
    for name in (MARK, STATE):
        stage.evidence(name).unlink()
    reseal(stage.run)


@on_run("the evidence of another run", f"V1.content.{MARK}")
def others_evidence(stage):
    shutil.rmtree(stage.run / run.EVIDENCE)
    shutil.copytree(stage.other / run.EVIDENCE, stage.run / run.EVIDENCE)


@on_run("evidence and manifest of another run", "V2.plan")
def others_manifest(stage):
    others_evidence(stage)
    overwrite(stage.run / run.MANIFEST, lambda _: (stage.other / run.MANIFEST).read_bytes())


@on_run("the plan is changed after sealing", "V2.plan")
def edited_plan(stage):
    edit_json(stage.run / run.PLAN, lambda plan: plan.update(seed=103))


@call("the whole run is sealed again after its digest was kept", "E_VERIFY", "V1")
def sealed_again(stage):
    kept = digests.digest("manifest", (stage.run / run.MANIFEST).read_bytes())
    reseal(stage.run, manifest=lambda m: m["predicate"]["resources"].update(wall_seconds=1))
    verdict = climb(stage.run, stage.held, kept=kept)
    assert [check.id for check in verdict.checks if check.status == "failed"] == ["V1.kept"]
    raise_all(VerificationFailed, verdict.failures())


# What is bound


def _lower_limits(plan):
    plan["contract"]["analysis"]["guardrails"][0]["limit"] = -1.0
    plan["digests"]["contract"] = digests.digest_json("contract", plan["contract"])


@on_run("edited thresholds, every digest made to fit", "V2.contract")
def thresholds(stage):
    reseal(stage.run, plan=_lower_limits)


@on_run("edited thresholds under the locked contract's digest", "V2.plan")
def thresholds_only(stage):
    reseal(stage.run, plan=lambda plan: plan["contract"]["analysis"].update(alpha=0.5))


@on_run("a contract of its own whose sizes make the verifier read terabytes", "V2.contract")
def unlocked_sizes(stage):
    def enlarge(plan):
        plan["contract"]["model"] = {"codes": 1 << 18, "latent_dim": 1 << 20, "hidden": 1 << 20}
        plan["digests"]["contract"] = digests.digest_json("contract", plan["contract"])

    reseal(stage.run, plan=enlarge)
    for name in (STATE, run.state_file(0), run.state_file(2)):
        os.chmod(stage.evidence(name), 0o644)
        os.truncate(stage.evidence(name), 1 << 40)


@on_run("another source than the verifier's", "V2.source")
def other_source(stage):
    def edit(plan):
        plan["source"][0]["sha256"] = "0" * 64
        entries = [(entry["name"], entry["size"], entry["sha256"]) for entry in plan["source"]]
        plan["digests"]["source"] = digests.digest_files("source", entries)

    reseal(stage.run, plan=edit)


@on_run("a source listing that is not what the source digest covers", "V2.source")
def other_listing(stage):
    reseal(stage.run, plan=lambda plan: plan["source"].pop())


@on_run("an environment that is not what its digest covers", "V2.environment")
def other_environment(stage):
    reseal(stage.run, plan=lambda plan: plan["environment"].update(torch="9.9"))


@on_run("other pixels under the dataset's name", "V2.dataset")
def other_pixels(stage):
    def edit(plan):
        plan["dataset"]["digest"] = plan["digests"]["dataset"] = digests.digest("dataset", b"other")

    reseal(stage.run, plan=edit)


@on_run("the same pixels under a better name", "V2.dataset")
def better_name(stage):
    reseal(stage.run, plan=lambda plan: plan["dataset"].update(id="cifar10"))


@on_run("an evaluation seed in a development run", "V2.seed")
def evaluation_seed(stage):
    reseal(stage.run, plan=lambda plan: plan.update(seed=201))


@on_run("marks that the contract does not have", "V2.plan")
def own_marks(stage):
    for name in (run.mark_file, run.state_file):
        stage.evidence(name(2)).rename(stage.evidence(name(3)))

    def edit(contents):
        terminal = json.loads(contents[run.TERMINAL]) | {"marks": [0, 1, 3]}
        contents[run.TERMINAL] = json.dumps(terminal, sort_keys=True, separators=(",", ":")).encode()

    reseal(stage.run, plan=lambda plan: plan.update(marks=[0, 1, 3]), contents=edit)


# Tensors


def _replace(name, data):
    return lambda contents: contents.update({name: data(contents[name]) if callable(data) else data})


@on_run("a pickle in the place of tensors", "V1.layout")
def pickled(stage):
    reseal(stage.run, contents=_replace(STATE, b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94."))


@on_run("a declared shape of 2^60 numbers", "V1.layout")
def oversized_shape(stage):
    header = b'{"indices":{"dtype":"U16","shape":[1152921504606846976],"data_offsets":[0,16]}}'
    reseal(stage.run, contents=_replace(MARK, len(header).to_bytes(8, "little") + header + bytes(16)))


@on_run("a header length beyond the file", "V1.layout")
def oversized_header(stage):
    reseal(stage.run, contents=_replace(MARK, lambda data: b"\xff" * 8 + data[8:]))


@on_run("words hidden in a tensor file's metadata", "V1.layout")
def hidden_metadata(stage):
    reseal(stage.run, contents=_replace(MARK, lambda data: save(load(data), metadata={"arm": "beta"})))


@on_run("weights of another type", "V1.layout")
def other_type(stage):
    def widen(data):
        return save({name: array.astype(np.float64) for name, array in load(data).items()})

    reseal(stage.run, contents=_replace(STATE, widen))


@on_run("a step log of fewer steps", "V1.layout")
def short_log(stage):
    def shorten(data):
        return save({name: array[:-1].copy() for name, array in load(data).items()})

    reseal(stage.run, contents=_replace(run.STEPS, shorten))


# Numbers


def change_mark(stage, name, change):
    """Change the arrays of an evidence file and reseal."""
    layout = run.state_layout if name.startswith("state") else run.mark_layout

    def edit(contents):
        arrays = {key: array.copy() for key, array in load(contents[name]).items()}
        change(arrays)
        contents[name] = tensors.encode(arrays, layout(stage.contract))

    reseal(stage.run, contents=edit)


@on_run("an index beyond the codebook", "V3.indices")
def beyond(stage):
    change_mark(stage, MARK, lambda arrays: arrays["indices"].__setitem__((0, 0, 0), stage.contract.codes))


@on_run("a weight that is not a number", "V3.finite")
def not_finite(stage):
    change_mark(stage, STATE, lambda arrays: arrays["encoder.out.bias"].__setitem__(0, np.nan))


@on_run("a step was skipped and the run calls itself complete", "V3.steps")
def skipped(stage):
    def edit(contents):
        terminal = json.loads(contents[run.TERMINAL])
        terminal |= {"steps_applied": terminal["steps_applied"] - 1, "steps_skipped": 1}
        contents[run.TERMINAL] = json.dumps(terminal, sort_keys=True, separators=(",", ":")).encode()

    reseal(stage.run, contents=edit)


@on_run("forged indices: every code used equally", "V4.indices")
def uniform_indices(stage):
    def forge(arrays):
        shape = arrays["indices"].shape
        arrays["indices"] = (np.arange(np.prod(shape)) % stage.contract.codes).astype(np.uint16).reshape(shape)

    change_mark(stage, LAST, forge)


@on_run("a few forged indices, to lift utilization", "V4.indices")
def few_indices(stage):
    def forge(arrays):
        arrays["indices"][0, 0, :] = (arrays["indices"][0, 0, :] + 1) % stage.contract.codes

    change_mark(stage, LAST, forge)


def _originals(stage, split):
    counts = dataset.contract_counts(stage.contract)
    return dataset.open_dataset(stage.data, counts).images[split][: stage.contract.evaluation_count]


@on_run("reconstructions copied from the inputs", "V4.reconstruction")
def copied(stage):
    change_mark(stage, LAST, lambda arrays: arrays.update(reconstruction=_originals(stage, "evaluation")))


@on_run("reconstructions a little closer to the inputs", "V4.reconstruction")
def closer(stage):
    def blend(arrays):
        mean = arrays["reconstruction"].astype(int) + _originals(stage, "evaluation")
        arrays["reconstruction"] = (mean // 2).astype(np.uint8)

    change_mark(stage, LAST, blend)


@on_run("metrics from the training split", "V4.indices")
def training_split(stage):
    """Indices of training images through the run's own weights, as an evaluation on the wrong split gives them."""
    weights = {name: array.astype(np.float64) for name, array in load(stage.evidence(STATE).read_bytes()).items()}
    latents, codes = replay.encode(_originals(stage, "train"), weights), replay.codebook(weights)
    stored = np.zeros(latents.shape[:3], np.uint16)
    indices, _ = replay.nearest_codes(latents, codes, stored)
    change_mark(
        stage,
        MARK,
        lambda arrays: arrays.update(
            indices=indices.astype(np.uint16), reconstruction=replay.decode(codes[indices], weights)
        ),
    )


@on_run("the indices of a better run over the own weights", "V4.indices")
def others_indices(stage):
    better = load((stage.other / run.EVIDENCE / LAST).read_bytes())
    change_mark(stage, LAST, lambda arrays: arrays.update(better))


@on_run("the weights of another mark", "V4.indices")
def others_weights(stage):
    reseal(stage.run, contents=_replace(STATE, stage.evidence(run.state_file(2)).read_bytes()))


@holds("a forged image, sealed again until it is not drawn", "V4.indices, where every image is replayed", "V4")
def ground_seal(stage):
    change_mark(stage, LAST, lambda arrays: arrays["indices"].__setitem__(0, (arrays["indices"][0] + 1) % 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "IMAGES", 4)
        for number in range(200):
            seconds = {"wall_seconds": number}
            reseal(stage.run, manifest=lambda m, seconds=seconds: m["predicate"]["resources"].update(seconds))
            if 0 not in replay.draw((stage.run / run.MANIFEST).read_bytes(), 2, stage.contract.evaluation_count):
                break
        assert climb(stage.run, stage.held, level="V4").level == "V4"
        held = Held(data=stage.data, lock=stage.lock, all_images=True)
        verdict = climb(stage.run, held, level="V4")
    assert "V4.indices" in {check.id for check in verdict.checks if check.status == "failed"}


@holds("another training, honest but for its seed, under this plan", "V5.evidence", "V5")
def another_training(stage):
    reseal(stage.run, plan=lambda plan: plan.update(seed=103))
    _caught_by_retraining(stage)


@holds("the last mark shown as the first one too, with its weights", "V5.evidence", "V5")
def last_mark_twice(stage):
    def copy(contents):
        contents[MARK], contents[STATE] = contents[LAST], contents[run.state_file(2)]

    reseal(stage.run, contents=copy)
    _caught_by_retraining(stage)


@holds("knobs told in the reveal that were not executed", "V5.evidence", "V5")
def other_knobs_told(stage):
    edit_json(stage.run / run.REVEAL, lambda value: value["effective"].update(projection_lr_multiplier=30.0))
    _caught_by_retraining(stage)


def _caught_by_retraining(stage):
    """V4 passes and says what it does not prove; V5 retrains, here in this process, and fails."""
    assert climb(stage.run, stage.held, level="V4").level == "V4"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "retrain", lambda run_dir, held, out, *_: repeat(run_dir, held.data, out) and None)
        verdict = reproduce.reproduce(stage.run, stage.held)
    assert [check.id for check in verdict.checks if check.status == "failed"] == ["V5.evidence"]


@holds("a file is swapped between hashing and scoring", "each file is opened once; its bytes are scored", "V3")
def swapped_after_hashing(stage):
    honest = climb(stage.run, stage.held).marks
    forged = stage.root / "forged"
    shutil.copytree(stage.run, forged)
    reads = []
    original = files.read_once

    def swapping(path, **options):
        data = original(path, **options)
        reads.append(path.name)
        if path.name == LAST:
            overwrite(stage.evidence(LAST), flip)
        return data

    files.read_once = swapping
    try:
        verdict = climb(stage.run, stage.held)
    finally:
        files.read_once = original
    assert reads.count(LAST) == 1
    assert (verdict.status, verdict.marks) == ("passed", honest)
    assert f"V1.content.{LAST}" in {one.id for one in climb(stage.run, stage.held).checks if one.status == "failed"}


@holds("a crash right after sealing leaves the manifest's temporary name", "a second name adds no byte", "V1")
def second_name(stage):
    os.link(stage.run / run.MANIFEST, stage.run / ".manifest.json.17.tmp")
    assert climb(stage.run, stage.held).level == "V3"
