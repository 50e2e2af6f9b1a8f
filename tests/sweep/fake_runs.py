"""A stand-in for training: consistent run directories in no time, and mishaps on demand. Also a worker process.

The folder in FAKE_RUNS tells it what to do (``behaviour.json``: run id → mishap, ``seconds`` that a cell takes,
``source``, ``environment``) and takes a line for every execution that was begun (``executed``).
"""

import errno
import json
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from runner.sweep import command, worker
from runner.sweep.estimate import timed
from runner.sweep.host import Host
from vqkit.errors import Rejected, guarded
from vqkit.formats import canonical, dataset, digests, files, run
from vqkit.formats import source as listing
from vqkit.formats.contract import Contract
from vqkit.formats.intervention import check


def behaviour():
    """What the test wants now."""
    wanted = {"seconds": 0.0, "source": "source", "environment": "environment"}
    path = Path(os.environ["FAKE_RUNS"]) / "behaviour.json"
    return wanted | (json.loads(path.read_text()) if path.exists() else {})


def source():
    """A listing of two files, one of them as told."""
    contents = {"runner/same.py": "same", "runner/told.py": behaviour()["source"]}
    return [
        {"name": name, "size": len(text), "sha256": digests.sha256_hex(text.encode())}
        for name, text in contents.items()
    ]


def environment(device, threads):
    """A few facts, one of them as told."""
    told = {"TOLD": behaviour()["environment"]}
    return {"python": "3", "device": f"{device} imagined", "threads": threads, "variables": told}


def execute(progress, *, intervention, contract, phase, seed, marks, device, threads, data, out, run_id, salt, **_):
    """A run whose evidence is a function of effective knobs and seed alone; may be told to fail by its run id."""
    with open(Path(os.environ["FAKE_RUNS"]) / "executed", "a") as file:
        file.write(f"{run_id} {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    wanted = behaviour()
    mishap = wanted.get(run_id)
    checked = check(intervention, contract, phase)
    plan = {
        "schema": "vqkit.plan/1",
        "run_id": run_id,
        "phase": phase,
        "contract": contract.spec,
        "dataset": {"id": "noise", "digest": data_digest(data, contract)},
        "seed": seed if mishap != "foreign" else seed + 1,
        "marks": list(marks),
        "device": device,
        "threads": threads,
        "environment": environment(device, threads),
        "source": source(),
        "digests": {
            "source": listing.digest(source()),
            "dataset": data_digest(data, contract),
            "environment": digests.digest_json("environment", environment(device, threads)),
            "contract": contract.digest,
            **checked.digests(salt),
        },
    }
    out.mkdir()
    (out / run.EVIDENCE).mkdir()
    files.write_once(out / run.PLAN, canonical.dumps(plan))
    print("line one of the log", file=sys.stderr)
    if mishap == "hang":
        time.sleep(600)
    elif mishap == "crash":
        print("about to fail", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif mishap == "nospace":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))
    elif mishap == "full":
        raise Rejected("E_FILE_WRITE", "mark-0000.safetensors", "9 bytes on disk", "No space left on device")
    elif mishap == "raise":
        raise ValueError("the cell is broken")
    for epoch in range(1, max(marks) + 1):
        time.sleep(wanted["seconds"] / max(marks))
        progress({"epoch": epoch, "epochs": max(marks), "loss": 0.5, "images_per_second": 1000.0, "seconds": 0.1})
    state = mishap if mishap in run.STATES else "complete"
    terminal = {
        "schema": "vqkit.terminal/1",
        "state": state,
        "reason": None if state == "complete" else f"{state} on demand",
        "marks": list(marks),
        "steps": 8,
        "steps_planned": 8,
        "steps_applied": 8,
        "steps_skipped": 0,
    }
    evidence = {
        run.mark_file(marks[0]): canonical.dumps({"effective": checked.effective, "seed": seed}),
        run.TERMINAL: canonical.dumps(terminal),
    }
    for name, content in evidence.items():
        files.write_once(out / run.EVIDENCE / name, content)
    entries = [(name, len(content), digests.sha256_hex(content)) for name, content in evidence.items()]
    resources = {
        "started": "2024-01-01T00:00:00+00:00",
        "ended": "2024-01-01T00:00:00+00:00",
        "wall_seconds": 1.0,
        "training_seconds": 1.0,
        "images_per_second": 1.0,
        "peak_memory_bytes": 1,
    }
    manifest = run.build_manifest(canonical.dumps(plan), plan, entries, terminal, resources)
    files.write_once(out / run.MANIFEST, canonical.dumps(manifest))
    return terminal


def suspend_in_write():
    """The first process that does so suspends itself while it holds the lock of the ledger, its line written."""
    sync, first = os.fsync, Path(os.environ["FAKE_RUNS"]) / "suspended"

    def fsync(handle):
        sync(handle)
        if os.readlink(f"/proc/self/fd/{handle}").endswith("ledger.jsonl") and not first.exists():
            first.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    os.fsync = fsync


def data_digest(folder, contract):
    counts = dataset.contract_counts(contract)
    return dataset.open_dataset(folder, counts).digest(counts)


HOST = Host(
    execute=execute,
    probe=partial(timed, execute),
    environment=environment,
    source=source,
    cuda_devices=lambda: 2,
    load=lambda: None,
    worker=(sys.executable, __file__),
)


def main(argv):
    """A worker, as the driver starts it; or, for tests that kill one, a driver: ``drive|train OPTIONS CONTRACT DATA``,
    where ``train`` is one of real runs."""
    told = ("env", f"FAKE_RUNS={os.environ.get('FAKE_RUNS')}", *HOST.worker)  # on whatever node a worker starts
    hosts = {"drive": replace(HOST, worker=told), "train": Host()}
    if argv and argv[0] in hosts:
        options, contract, data = argv[1:]
        for number in (signal.SIGTERM, signal.SIGINT):  # a job that a shell put into the background ignores SIGINT
            signal.signal(number, signal.default_int_handler)
        return command.sweep(json.loads(options), Contract(json.loads(contract)), Path(data), host=hosts[argv[0]])
    if "suspend" in behaviour():
        suspend_in_write()
    return worker.main(argv, HOST)


if __name__ == "__main__":
    worker.end(guarded(main, sys.argv[1:]))
