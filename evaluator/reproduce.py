"""V5: train once more from the plan, through the runner as a process of its own, and compare what comes out.

On the plan's device class the evidence must be the same, byte for byte. On another one, metrics must stay within what
the contract itself calls no difference: δ_min for the codebook, the margin of each guardrail for quality.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from evaluator.checks import words
from evaluator.verify import climb
from vqkit.errors import Refused
from vqkit.formats import campaign, canonical, files, run, source

REPEATABLE = ("complete", "nonfinite", "invalid")  # what ended a run of another state does not come again
_EVIDENCE = "V5.evidence"
_SAME = "the same bytes in every evidence file"


def reproduce(run_dir, held, *, device=None, python=sys.executable):
    """Climb to V4, then retrain and compare; returns a ``Verdict``.

    Args:
        run_dir: the run folder; its reveal is opened, which unblinds this run.
        held: what the verifier holds; needs ``data``.
        device: another device than the plan's.
        python: the interpreter that has the runner's dependencies.

    Raises:
        Refused: E_NOT_FROZEN for a cell of a campaign whose scores are not frozen.
    """
    above = run_dir.parent.parent
    if campaign.is_there(above) and not (above / campaign.FROZEN).exists():
        raise Refused("E_NOT_FROZEN", run_dir.name, "frozen scores: retraining opens what is sealed", "none")
    verdict = climb(run_dir, held, level="V5")
    if verdict.status == "failed" or held.data is None:
        return verdict
    verdict.checks = [check for check in verdict.checks if check.id != _EVIDENCE]
    if verdict.state not in REPEATABLE:
        verdict.skip(_EVIDENCE, _SAME, f"the run ended {verdict.state}: nothing makes that happen again")
        return verdict
    with tempfile.TemporaryDirectory(prefix="vqkit-") as folder:
        out = Path(folder) / run_dir.name
        why = retrain(run_dir, held, out, device, python)
        if why:
            verdict.skip(_EVIDENCE, _SAME, why)
        else:
            _compare(verdict, climb(out, held, level="V3"), _is_same_reveal(run_dir, out))
    return verdict


def retrain(run_dir, held, out, device, python):
    """Let the runner repeat the run into ``out``, saying what that opens; why it did not, in words, or None."""
    print(f"{run_dir.name}: retraining opens {run.REVEAL}, so that this run is blind no longer", file=sys.stderr)
    command = [python, "-m", "runner", "repeat", os.path.abspath(run_dir), "--out", out]
    command += ["--data", os.path.abspath(held.data), *(["--device", device] if device else [])]
    try:
        done = subprocess.run(command, cwd=held.source or source.ROOT, stdout=subprocess.DEVNULL, check=False)
    except OSError as error:
        return f"{python} can't be started: {error.strerror}"
    return f"the runner ended with exit code {done.returncode}" if done.returncode else None


def _is_same_reveal(run_dir, out):
    """Whether a run says of its arm what the repeated run says: the proposal alone is bound by digests."""
    one, two = (files.read_once(folder / run.REVEAL, max_bytes=canonical.MAX_BYTES) for folder in (run_dir, out))
    return one == two


def _compare(verdict, second, is_same_reveal):
    """Add the check: ``second`` is the verdict on the repeated run."""
    failures = second.failures()
    if failures:
        verdict.add(_EVIDENCE, False, "a repeated run that verifies", "; ".join(map(str, failures)))
        return
    names = [name for name in run.PLAN_DIGESTS if name != "environment"]
    other = [name for name in names if second.digests[name] != verdict.digests[name]]
    if other:
        verdict.add(_EVIDENCE, False, "a reveal that gives the plan's digests", f"another {words(other)}")
        return
    if not is_same_reveal:
        verdict.add(_EVIDENCE, False, f"the {run.REVEAL} that the proposal gives", "another one")
        return
    before, after = _contents(verdict), _contents(second)
    odd = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    classes = [one.plan["environment"].get("device") for one in (verdict, second)]
    if not odd:
        verdict.add(_EVIDENCE, True, _SAME, f"the same {len(before)} files")
    elif classes[0] == classes[1]:
        verdict.add(_EVIDENCE, False, _SAME, f"other bytes in {words(odd)}{_environment(verdict.plan, second.plan)}")
    else:
        beyond = _beyond(verdict, second)
        found = f"trained on {classes[1]}, not on {classes[0]}: {'; '.join(beyond) or 'within tolerance'}"
        verdict.add(_EVIDENCE, not beyond, "metrics within the contract's tolerance, on another device class", found)


def _contents(verdict):
    """Evidence file → its sha256, as V1 found it."""
    prefix = "V1.content."
    return {one.id.removeprefix(prefix): one.found for one in verdict.checks if one.id.startswith(prefix)}


def _environment(first, second):
    """In words, where two environments differ."""
    one, two = first["environment"], second["environment"]
    odd = [name for name in one.keys() | two.keys() if one.get(name) != two.get(name)]
    return f"; the environments differ in {words(odd)}" if odd else "; the environments are the same"


def _beyond(verdict, second):
    """Every metric of every mark that differs by more than the contract tolerates."""
    analysis = verdict.contract.analysis
    tolerance = {name: analysis["delta_min"][name] for name in analysis["metrics"]}
    tolerance |= {rule["metric"]: rule["margin"] for rule in analysis["guardrails"]}
    if [one["mark"] for one in verdict.marks] != [two["mark"] for two in second.marks]:
        return [f"{len(second.marks)} marks, not {len(verdict.marks)}"]
    return [
        f"mark {one['mark']}: {name} {two[name]:.4g}, not {one[name]:.4g} ± {allowed:g}"
        for one, two in zip(verdict.marks, second.marks, strict=True)
        for name, allowed in tolerance.items()
        if abs(one[name] - two[name]) > allowed
    ]
