"""A stand-in for Slurm: ``sbatch``, ``srun``, ``squeue`` and ``scancel`` that run tasks as processes of this machine.

``install(folder)`` writes the commands into FOLDER/bin. The queue is FOLDER/queue: an empty file for each task that
waits, with the process id of its step for each that runs; it is gone when the task is.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "squeue", "scancel")


def install(folder):
    """Make the commands and the queue; returns the folder for PATH."""
    (folder / "bin").mkdir()
    (folder / "queue").mkdir()
    for name in COMMANDS:
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} {folder} "$@"\n')
        path.chmod(0o755)
    return folder / "bin"


def running(folder):
    """(task, process id of its step) of every task that runs."""
    found = []
    for path in (folder / "queue").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append((path.name.split()[1], path.read_text()))
    return [(task, int(pid)) for task, pid in found if pid]


def sbatch(folder, script):
    """Queue the tasks of a batch file and start a scheduler for them, in a session of its own."""
    text = Path(script).read_text()
    number = 100 + sum(1 for _ in (folder).glob("job-*"))
    (folder / f"job-{number}").write_text(text)
    name = re.search(r"--job-name=(\S+)", text)[1]
    array = re.search(r"--array=0-(\d+)", text)
    tasks = [f"{number}_{i}" for i in range(int(array[1]) + 1)] if array else [f"{number}"]
    for task in tasks:
        (folder / "queue" / f"{name} {task}").touch()
        subprocess.Popen(
            [sys.executable, __file__, "schedule", str(folder), name, task],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    print(f"Submitted batch job {number}")


def schedule(folder, name, task):
    """Run one task of a job: its batch file, when the cluster is not full; its end takes it off the queue."""
    entry = folder / "queue" / f"{name} {task}"
    while (folder / "full").exists() and entry.exists():
        time.sleep(0.02)
    if not entry.exists():
        return
    job, _, index = task.partition("_")
    environment = os.environ | {"SLURM_JOB_ID": job, "FAKE_SLURM_TASK": task, "FAKE_SLURM_ENTRY": str(entry)}
    if index:
        environment |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": index}
    subprocess.run(["bash", str(folder / f"job-{job}")], env=environment, check=False)
    entry.unlink(missing_ok=True)


def srun(folder, *arguments):
    """Run the step with the outputs that the flags name."""
    arguments, places = list(arguments), {}
    job, _, index = os.environ["FAKE_SLURM_TASK"].partition("_")
    while arguments[0].startswith("--"):
        flag = arguments.pop(0)
        if flag in ("--output", "--error"):
            places[flag] = (
                arguments.pop(0).replace("%A", job).replace("%a", index).replace("%j", job).replace("%t", "0")
            )
    with open(places["--output"], "ab") as out, open(places["--error"], "ab") as errors:
        step = subprocess.Popen(arguments, stdout=out, stderr=errors, start_new_session=True)
    Path(os.environ["FAKE_SLURM_ENTRY"]).write_text(str(step.pid))
    return step.wait()


def squeue(folder, *arguments):
    """The tasks of a job name, one a line."""
    (name,) = [argument.removeprefix("--name=") for argument in arguments if argument.startswith("--name=")]
    for path in sorted((folder / "queue").iterdir()):
        if path.name.split()[0] == name:
            print(path.name.split()[1])


def scancel(folder, *tasks):
    """End tasks as Slurm does: SIGTERM to the step, and off the queue."""
    for path in (folder / "queue").iterdir():
        if path.name.split()[1] in tasks:
            pid = path.read_text()
            if pid:
                os.killpg(int(pid), signal.SIGTERM)
            else:
                path.unlink()


if __name__ == "__main__":
    command, place, *rest = sys.argv[1:]
    sys.exit(globals()[command](Path(place), *rest))
