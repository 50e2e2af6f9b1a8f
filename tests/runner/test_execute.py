"""One run on disk: what is written, when, and that the same plan gives the same evidence."""

import hashlib
import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from conftest import REPOSITORY, artifact_bytes
from safetensors.numpy import load

from runner import train
from runner.execute import execute, require_complete
from runner.plan import Request
from vqkit.errors import Refused, Rejected, RunFailed
from vqkit.formats import canonical, digests, run
from vqkit.formats.intervention import check

SALT = bytes(range(32))


@pytest.fixture
def request_for(tiny, tiny_data, tmp_path):
    def make(name="run", intervention=None, **fields):
        defaults = {
            "intervention": artifact_bytes() if intervention is None else intervention,
            "contract": tiny,
            "phase": "development",
            "seed": 101,
            "marks": (0, 1, 2),
            "device": "cpu",
            "threads": 1,
            "data": tiny_data,
            "out": tmp_path / name,
            "run_id": "run-0123456789abcdef",
            "salt": SALT,
        }
        return Request(**defaults | fields)

    return make


def evidence_digest(out):
    return run.parse_manifest((out / "manifest.json").read_bytes())["predicate"]["digests"]["evidence"]


def test_a_run_leaves_exactly_the_declared_files(request_for, tiny):
    request = request_for()
    terminal = execute(request)
    assert terminal["state"] == "complete"
    assert (terminal["steps"], terminal["steps_applied"], terminal["steps_skipped"]) == (8, 8, 0)
    found = sorted(str(path.relative_to(request.out)) for path in request.out.rglob("*") if path.is_file())
    expected = ["plan.json", "manifest.json", "sealed/reveal.json"]
    expected += [f"evidence/{name}" for name in run.evidence_names((0, 1, 2))]
    assert found == sorted(expected)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in request.out.rglob("*") if path.is_file()}
    assert modes.pop("reveal.json") == 0o600
    assert set(modes.values()) == {0o444}
    marks = load((request.out / "evidence/mark-0002.safetensors").read_bytes())
    assert marks["indices"].shape == (16, 8, 8)
    assert marks["reconstruction"].shape == (16, 32, 32, 3)


def test_manifest_is_an_in_toto_statement_over_the_evidence(request_for):
    request = request_for()
    execute(request)
    statement = json.loads((request.out / "manifest.json").read_bytes())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    for subject in statement["subject"]:
        data = (request.out / "evidence" / subject["name"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == subject["digest"]["sha256"]
    plan = (request.out / "plan.json").read_bytes()
    assert statement["predicate"]["plan"] == digests.digest("plan", plan)
    assert plan == canonical.dumps(json.loads(plan))


def test_proposal_plan_manifest_and_reveal_agree(request_for, tiny):
    request = request_for(intervention=artifact_bytes(commitment_weight=1.0))
    execute(request)
    plan, _ = run.parse_plan((request.out / "plan.json").read_bytes())
    manifest = run.parse_manifest((request.out / "manifest.json").read_bytes())["predicate"]
    reveal = run.parse_reveal((request.out / "sealed/reveal.json").read_bytes())
    checked = check(reveal["proposal"].encode(), tiny)
    assert checked.effective == reveal["effective"]
    assert checked.digests(bytes.fromhex(reveal["salt"])).items() <= plan["digests"].items()
    assert plan["digests"].items() <= manifest["digests"].items()


def test_same_plan_same_evidence_whatever_ran_before(request_for):
    execute(request_for("one"))
    execute(request_for("between", intervention=artifact_bytes(projection_lr_multiplier=10.0), seed=102))
    execute(request_for("two"))
    base = request_for().out.parent
    assert evidence_digest(base / "one") == evidence_digest(base / "two")
    assert evidence_digest(base / "one") != evidence_digest(base / "between")


def test_two_runs_side_by_side_agree(request_for, tiny_data, tmp_path):
    """Also: what trains loads no compiler, a thousand modules that nothing here needs."""
    script = f"""if True:
        import sys
        from pathlib import Path
        sys.path[:0] = ["tests", "."]
        from conftest import artifact_bytes, tiny_spec
        from runner.execute import execute
        from runner.plan import Request
        from vqkit.formats.contract import Contract
        fields = {{"phase": "development", "seed": 101, "marks": (0, 1, 2), "device": "cpu", "threads": 1}}
        folders = {{"data": Path({str(tiny_data)!r}), "out": Path(sys.argv[1])}}
        secrets = {{"run_id": "run-0123456789abcdef", "salt": bytes(range(32))}}
        execute(Request(intervention=artifact_bytes(), contract=Contract(tiny_spec()), **fields, **folders, **secrets))
        assert not {{"torch._dynamo", "torch._inductor", "sympy", "triton"}} & sys.modules.keys()
    """
    outs = [tmp_path / "a", tmp_path / "b"]
    workers = [subprocess.Popen([sys.executable, "-c", script, str(out)], cwd=REPOSITORY) for out in outs]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    execute(request_for("here"))
    assert {evidence_digest(out) for out in (*outs, tmp_path / "here")} == {evidence_digest(outs[0])}


def test_marks_of_a_shorter_run_are_the_same_bytes(request_for):
    execute(request_for("short", marks=(0, 1)))
    execute(request_for("long", marks=(0, 1, 2)))
    base = request_for().out.parent
    for name in ("mark-0000", "mark-0001", "state-0000", "state-0001"):
        one, two = (base / run_name / "evidence" / f"{name}.safetensors" for run_name in ("short", "long"))
        assert one.read_bytes() == two.read_bytes()


def test_another_intervention_changes_the_intervention_digest_only(request_for):
    plans = {}
    for name, raw in (("a", artifact_bytes()), ("b", artifact_bytes(basis_init="orthogonal"))):
        request = request_for(name, intervention=raw)
        execute(request)
        plans[name] = run.parse_plan((request.out / "plan.json").read_bytes())[0]["digests"]
    assert {kind for kind in plans["a"] if plans["a"][kind] != plans["b"][kind]} == {"intervention", "proposal"}


def test_evidence_has_the_same_names_and_sizes_for_every_arm(request_for):
    shapes = set()
    arms = ({}, {"trainability": "none"}, {"latent_normalization": "l2"}, {"coefficient_init": "data"})
    for i, knobs in enumerate(arms):
        request = request_for(f"run{i}", intervention=artifact_bytes(**knobs))
        assert execute(request)["state"] == "complete"
        files = (request.out / "evidence").iterdir()
        shapes.add(tuple(sorted((path.name, path.stat().st_size) for path in files if path.suffix == ".safetensors")))
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"intervention": artifact_bytes(commitment_weight=0.25)}, Refused, "E_NO_EFFECT"),
        ({"seed": 201}, Refused, "E_SEED_FIREWALL"),
        ({"marks": (0, 7)}, Refused, "E_MARKS"),
        ({"device": "cuda"}, Refused, "E_DEVICE"),
        ({"intervention": b"{}"}, Rejected, "E_SCHEMA_MISSING_KEY"),
    ],
    ids=["no_effect", "seed", "marks", "device", "artifact"],
)
def test_a_refused_run_writes_nothing(request_for, fields, kind, code):
    if code == "E_DEVICE" and train.torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    request = request_for(**fields)
    with pytest.raises(kind) as caught:
        execute(request)
    assert set(caught.value.codes) == {code}
    assert not request.out.exists()


def test_no_effect_runs_in_the_confirmatory_phase(request_for):
    request = request_for(intervention=artifact_bytes(commitment_weight=0.25), phase="confirmatory", seed=201)
    assert execute(request)["state"] == "complete"


def test_an_existing_folder_is_left_alone(request_for):
    request = request_for()
    request.out.mkdir()
    with pytest.raises(Rejected) as caught:
        execute(request)
    assert caught.value.codes == ("E_FILE_EXISTS",)
    assert os.listdir(request.out) == []


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (train.Ended("nonfinite", "loss at step 5"), "nonfinite", "E_RUN_NONFINITE"),
        (train.Ended("invalid", "a reason"), "invalid", "E_RUN_INVALID"),
        (KeyboardInterrupt(), "cancelled", "E_RUN_CANCELLED"),
        (RuntimeError("out of memory"), "error", "E_RUN_ERROR"),
    ],
    ids=["nonfinite", "invalid", "cancelled", "error"],
)
def test_an_ended_run_is_sealed_with_what_it_has(request_for, monkeypatch, error, state, code):
    whole = train.Trainer.epoch

    def second_epoch_fails(self, number):
        if number == 2:
            raise error
        return whole(self, number)

    monkeypatch.setattr(train.Trainer, "epoch", second_epoch_fails)
    request = request_for()
    terminal = execute(request)
    assert (terminal["state"], terminal["marks"]) == (state, [0, 1])
    manifest = run.parse_manifest((request.out / "manifest.json").read_bytes())["predicate"]
    assert manifest["terminal"] == terminal
    assert sorted(os.listdir(request.out / "evidence")) == sorted(run.evidence_names((0, 1)))
    with pytest.raises(RunFailed) as caught:
        require_complete(terminal)
    assert caught.value.codes == (code,)
    assert caught.value.exit_code == 5


def test_a_budget_ends_the_run(request_for):
    terminal = execute(request_for(budget_seconds=1e-9))
    assert (terminal["state"], terminal["marks"]) == ("budget_exceeded", [0, 1][: len(terminal["marks"])])


def test_a_source_that_changes_while_training_is_invalid(request_for, monkeypatch):
    from vqkit.formats import source

    listing, calls = source.listing, []

    def changing(*arguments):
        calls.append(1)
        entries = listing(*arguments)
        return entries if len(calls) == 1 else [*entries[:-1], {**entries[-1], "sha256": "0" * 64}]

    monkeypatch.setattr(source, "listing", changing)
    terminal = execute(request_for())
    assert terminal["state"] == "invalid"
    assert "source changed" in terminal["reason"]


def test_run_ids_are_opaque_and_distinct():
    arm = {"intervention": "sha256:" + "0" * 64, "proposal": "sha256:" + "1" * 64}
    other_arm = arm | {"proposal": "sha256:" + "2" * 64}
    names = [
        run.run_id(*key) for key in ((SALT, arm, 101), (b"x" * 32, arm, 101), (SALT, arm, 102), (SALT, other_arm, 101))
    ]
    assert len(set(names)) == 4
    assert names[0] == run.run_id(SALT, arm, 101)


def test_environment_has_no_host_user_time_or_path(request_for):
    import getpass
    import platform

    from runner.environment import environment, pin

    pin("cpu", 1)
    text = json.dumps(environment("cpu", 1))
    for private in (platform.node(), getpass.getuser() + "@", str(REPOSITORY)):
        assert not private or private not in text
    assert environment("cpu", 1) == environment("cpu", 1)
    assert environment("cpu", 1) != environment("cpu", 2)
    assert {"torch", "numpy", "safetensors"} <= environment("cpu", 1)["distributions"].keys()


def test_numerical_variables_are_part_of_the_environment(monkeypatch):
    from runner.environment import environment

    # the last two choose between matrix products of CUDA
    for name in ("MKL_CBWR", "CUBLASLT_WORKSPACE_SIZE", "DISABLE_ADDMM_CUDA_LT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("EDITOR", "vi")
    variables = environment("cpu", 1)["variables"]
    assert {"MKL_CBWR": "1", "CUBLASLT_WORKSPACE_SIZE": "1", "DISABLE_ADDMM_CUDA_LT": "1"}.items() <= variables.items()
    assert "EDITOR" not in variables


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "GLIBC_TUNABLES"])
def test_variables_by_which_other_code_runs_are_part_of_the_environment(name):
    """The linker takes them before Python starts: no list of modules shows what they load or choose."""
    from runner.variables import numerical

    assert numerical({name: "x", f"{name}_": "x"}) == {name: "x"}


def test_evidence_is_not_about_one_image(request_for):
    request = request_for()
    execute(request)
    reconstruction = load((request.out / "evidence/mark-0002.safetensors").read_bytes())["reconstruction"]
    assert np.ptp(reconstruction.astype(int), axis=0).max() > 0


def test_the_place_of_the_checkout_is_not_part_of_the_environment(tmp_path, monkeypatch):
    """An editable install puts a module that names the checkout among those that Python loads at its start."""
    from runner import modules

    found = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        finder = tmp_path / name / "finder.py"
        finder.write_text(f"MAPPING = {{'vqkit': '{tmp_path / name}/vqkit'}}\n")
        monkeypatch.setattr(modules, "startup", lambda finder=finder: {"finder": str(finder)})
        found[name] = modules.startup_digests(tmp_path / name)
    assert found["one"] == found["two"]
    finder.write_text("MAPPING = {}\n")
    assert modules.startup_digests(tmp_path / "two") != found["two"]
