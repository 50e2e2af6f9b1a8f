"""One run, end to end: plan → train → evidence → manifest. Each file is written once, in this order, and synced.

Whatever ends the training, what was measured until then is sealed with a terminal statement that says so.
"""

import contextlib
import os
import resource
import sys
import time
from datetime import UTC, datetime

import torch

from runner import modules
from runner.plan import make_plan
from runner.train import CapturedStep, Ended, Progress, Trainer, run_epochs
from vqkit.errors import InternalError, Rejected, RunFailed, raise_all
from vqkit.formats import canonical, digests, files, run, schema, source, tensors
from vqkit.formats.run import EVIDENCE, MANIFEST, PLAN, REVEAL, STEPS, TERMINAL


def execute(request, progress=None):
    """Run a ``Request`` and seal it.

    Args:
        request: a ``plan.Request``; its ``out`` must not exist.
        progress: called after every epoch with {epoch, epochs, loss, images_per_second}, or None.

    Returns:
        The terminal statement. Any state but ``complete`` is a sealed run too; ``require_complete`` raises on it.

    Raises:
        Rejected, Refused: before anything is written; E_FILE_WRITE at any time, and nothing is sealed then.
    """
    clock, started = time.perf_counter(), _now()
    plan = make_plan(request)
    writer = _Writer(request.out)
    writer.plan(plan, request)
    trained = Progress()
    try:
        _require_covered(plan)
        with modules.compiling_anew() if request.device == "cuda" else contextlib.nullcontext():
            state, reason = _train(plan, request, writer, trained, progress)
        _require_covered(plan)
    except KeyboardInterrupt:
        state, reason = "cancelled", "interrupted"
    except Ended as ended:
        state, reason = ended.state, ended.reason
    except Exception as error:
        if isinstance(error, Rejected) and "E_FILE_WRITE" in error.codes:
            raise  # what does not take the evidence takes no seal
        state, reason = "error", f"{type(error).__name__}: {error}"[:2000]
    terminal = {
        "schema": "vqkit.terminal/1",
        "state": state,
        "reason": reason,
        "marks": trained.marks,
        "steps": trained.steps,
        "steps_planned": max(plan.document["marks"]) * request.contract.steps_per_epoch,
        "steps_applied": trained.applied,
        "steps_skipped": trained.steps - trained.applied,
    }
    writer.keep_whole_marks(trained.marks)
    writer.evidence(STEPS, tensors.encode(trained.columns(), run.steps_layout(trained.steps)))
    writer.evidence(TERMINAL, canonical.dumps(terminal))
    images = trained.steps * request.contract.training["batch_size"]
    resources = {
        "started": started,
        "ended": _now(),
        "wall_seconds": max(round(time.perf_counter() - clock, 3), 0),
        "training_seconds": round(trained.seconds, 3),
        "images_per_second": round(images / trained.seconds, 1) if trained.seconds else 0,
        "peak_memory_bytes": _peak_memory(request.device),
    }
    writer.manifest(plan, terminal, resources)
    return terminal


def require_complete(terminal):
    """Raise ``RunFailed`` unless the terminal statement says ``complete``."""
    if terminal["state"] != "complete":
        expected = f"{terminal['steps_planned']} steps"
        found = f"{terminal['state']}: {terminal['reason']}"
        raise RunFailed(run.STATE_CODES[terminal["state"]], f"step {terminal['steps']}", expected, found)


def _require_covered(plan):
    """End the run ``invalid`` unless what runs is what the plan lists, before the first step and after the last."""
    if source.listing() != plan.document["source"]:
        raise Ended("invalid", "the source changed while the run was going on")
    odd = modules.uncovered(plan.document, source.ROOT) if modules.enforced() else []
    if odd:
        raise Ended("invalid", f"loaded modules that no digest covers: {', '.join(odd)}"[:2000])


def _train(plan, request, writer, trained, progress):
    """Train to the last mark; evidence is written as soon as a mark is measured. (state, reason) when all went well."""
    contract, marks = request.contract, plan.document["marks"]
    capture = CapturedStep if request.device == "cuda" else None
    trainer = Trainer(contract, plan.checked.effective, request.seed, request.device, plan.data.images, capture)

    def on_mark(mark, evidence, weights):
        writer.evidence(run.mark_file(mark), tensors.encode(evidence, run.mark_layout(contract)))
        writer.evidence(run.state_file(mark), tensors.encode(weights, run.state_layout(contract)))

    def on_epoch(epoch, rows, images_per_second):
        if progress is not None:
            loss = float(rows[:, 0].mean())
            seconds = contract.train_count / images_per_second
            event = {"epoch": epoch, "epochs": max(marks), "loss": loss, "images_per_second": images_per_second}
            progress(event | {"seconds": seconds})

    def stop():
        if request.budget_seconds is not None and trained.seconds > request.budget_seconds:
            raise Ended("budget_exceeded", f"{trained.seconds:.1f} s of training, {request.budget_seconds:g} s allowed")

    run_epochs(trainer, marks, trained, on_mark=on_mark, on_epoch=on_epoch, stop=stop)
    return "complete", None


class _Writer:
    """The files of one run directory, each written once; remembers name, size and sha256 of every evidence file."""

    def __init__(self, out):
        self.out, self.entries = out, []
        try:
            out.mkdir(parents=True)
            files.sync_folder(out.parent)
        except FileExistsError:
            raise Rejected("E_FILE_EXISTS", str(out), "a folder that does not exist", "an existing one") from None
        except OSError as error:
            raise Rejected("E_FILE_WRITE", str(out), "a folder that can be made", error.strerror) from None

    def plan(self, plan, request):
        """The plan and the sealed reveal, both durable before the first step."""
        reveal = {
            "schema": "vqkit.reveal/1",
            "run_id": request.run_id,
            "salt": request.salt.hex(),
            "proposal": plan.checked.raw.decode(),
            "effective": plan.checked.effective,
            "status": plan.checked.status,
        }
        _require_schema(reveal, run.REVEAL_SCHEMA, REVEAL)
        _require_schema(plan.document, run.PLAN_SCHEMA, PLAN)
        (self.out / EVIDENCE).mkdir()
        (self.out / REVEAL).parent.mkdir(mode=0o700)
        files.write_once(self.out / REVEAL, canonical.dumps(reveal), mode=0o600)
        files.write_once(self.out / PLAN, plan.raw)

    def evidence(self, name, data):
        """One evidence file."""
        files.write_once(self.out / EVIDENCE / name, data)
        self.entries.append((name, len(data), digests.sha256_hex(data)))

    def keep_whole_marks(self, marks):
        """Remove what is there of a mark that was cut off between its two files: nothing of it is sealed."""
        whole = run.evidence_names(marks)
        for name in os.listdir(self.out / EVIDENCE):
            if name not in whole:
                os.unlink(self.out / EVIDENCE / name)
        self.entries = [entry for entry in self.entries if entry[0] in whole]

    def manifest(self, plan, terminal, resources):
        """The manifest, last of all."""
        manifest = run.build_manifest(plan.raw, plan.document, self.entries, terminal, resources)
        _require_schema(manifest, run.MANIFEST_SCHEMA, MANIFEST)
        files.write_once(self.out / MANIFEST, canonical.dumps(manifest))


def _require_schema(value, expected, where):
    raise_all(InternalError, schema.problems(value, expected, where))


def _peak_memory(device):
    """Peak resident bytes of this process, or of the device's allocator on CUDA."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _now():
    return datetime.now(UTC).isoformat(timespec="seconds")
