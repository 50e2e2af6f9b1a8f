"""A process that kills itself at its n-th write boundary, for every n.

A boundary is a call that can change what is on disk: creating, writing, syncing, linking, renaming, removing. The
process dies before the call; a write is also cut in half. Each n runs in a fork of one process that has everything
loaded, so that a whole enumeration takes seconds.

    python tests/attacks/boundaries.py run|score FOLDER DATA    prints one JSON line a boundary, and a last one
"""

import builtins
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import fabricate  # noqa: E402
import torch  # noqa: E402
from conftest import artifact_bytes, tiny_spec  # noqa: E402

from evaluator.held import Held  # noqa: E402
from evaluator.score import score_campaign  # noqa: E402
from evaluator.unblind import unblind_campaign  # noqa: E402
from evaluator.verify import climb  # noqa: E402
from runner import environment  # noqa: E402
from runner.execute import execute  # noqa: E402
from runner.plan import Request  # noqa: E402
from vqkit.errors import Incomplete, Rejected  # noqa: E402
from vqkit.formats import campaign, run  # noqa: E402
from vqkit.formats.contract import Contract  # noqa: E402

CALLS = ("mkdir", "link", "unlink", "rename", "replace", "rmdir", "fsync", "fchmod", "truncate", "ftruncate")
MARKS = (0, 1)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Bomb:
    """Counts boundaries; at number ``fuse`` the process is gone. Numbers start at 1; 0 never goes off."""

    def __init__(self, fuse):
        self.fuse, self.count = fuse, 0

    def tick(self):
        self.count += 1
        if self.count == self.fuse:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self):
        """Put a boundary before every call that writes."""
        for name in CALLS:
            setattr(os, name, self._before(getattr(os, name)))
        os.open = self._opening(os.open)
        builtins.open = self._handing_out(builtins.open)

    def _before(self, call):
        def counted(*arguments, **options):
            self.tick()
            return call(*arguments, **options)

        return counted

    def _opening(self, call):
        def counted(path, flags, *arguments, **options):
            if flags & WRITING:
                self.tick()
            return call(path, flags, *arguments, **options)

        return counted

    def _handing_out(self, call):
        def opened(file, mode="r", *arguments, **options):
            handle = call(file, mode, *arguments, **options)
            if any(letter in mode for letter in "wax+"):
                if isinstance(file, (str, os.PathLike)):
                    self.tick()
                return _Torn(handle, self)
            return handle

        return opened


class _Torn:
    """A file whose writes are boundaries: before the first byte, and in the middle."""

    def __init__(self, handle, bomb):
        self._handle, self._bomb = handle, bomb

    def write(self, data):
        self._bomb.tick()
        half = len(data) // 2
        self._handle.write(data[:half])
        self._handle.flush()
        self._bomb.tick()
        return half + self._handle.write(data[half:])

    def truncate(self, size):
        self._bomb.tick()
        return self._handle.truncate(size)

    def __getattr__(self, name):
        return getattr(self._handle, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._handle.close()


def died_at(number, work):
    """Do ``work`` in a fork that dies at boundary ``number``; whether it died there (else it had fewer)."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            Bomb(number).arm()
            work()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        raise SystemExit(f"boundary {number}: the work failed")
    return False


def enumerate_runs(root, data):
    """Kill a run at every boundary."""
    contract = Contract(tiny_spec())
    held = Held(data=data, lock=fabricate.write_lock(root / "LOCK.json", contract))
    artifact, facts = artifact_bytes(commitment_weight=1.0), {}
    original = environment.environment
    environment.environment = lambda *arguments: facts.setdefault(arguments, original(*arguments))

    def request(out):
        return Request(
            intervention=artifact,
            contract=contract,
            phase="development",
            seed=101,
            marks=MARKS,
            device="cpu",
            threads=1,
            data=data,
            out=out,
            run_id="run-0123456789abcdef",
            salt=bytes(range(32)),
        )

    environment.pin("cpu", 1)
    environment.environment("cpu", 1)
    held.dataset(contract)
    number = 0
    while True:
        number += 1
        out = root / f"run-{number}"
        died = died_at(number, lambda out=out: execute(request(out)))
        outcome = _state_of(out, held)
        if died and out.exists():
            outcome["kept"] = _is_left_alone(out, request)
        print(json.dumps({"boundary": number, "died": died, **outcome}), flush=True)
        shutil.rmtree(out, ignore_errors=True)
        if not died:
            return


def _state_of(out, held):
    try:
        verdict = climb(out, held, level="V4")
    except Incomplete as error:
        return {"state": "incomplete", "code": error.codes[0], "names": _names(out)}
    return {
        "state": verdict.state,
        "level": verdict.level,
        "evidence": verdict.digests["evidence"],
        "names": _names(out),
    }


def _names(out):
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def _is_left_alone(out, request):
    """Whether starting the same run again into the same folder is refused and changes nothing."""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    try:
        execute(request(out))
    except Rejected as error:
        same = before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        return same and error.codes == ("E_FILE_EXISTS",)
    return False


def enumerate_scoring(root, data):
    """Kill scoring, freezing and unblinding at every boundary, then do it again."""
    contract = Contract(tiny_spec())
    held = Held(data=data, lock=fabricate.write_lock(root / "LOCK.json", contract))
    fresh = fabricate.write_campaign(root / "fresh", contract, data, seeds=(101,), runs=True)
    for cell in sorted((fresh / campaign.RUNS).iterdir())[1:]:
        (cell / run.MANIFEST).unlink()
    held.dataset(contract)
    assert held.listing

    def work(folder):
        score_campaign(folder, held, final=True)
        unblind_campaign(folder)

    number = 0
    while True:
        number += 1
        folder = root / f"campaign-{number}"
        shutil.copytree(fresh, folder)
        died = died_at(number, lambda folder=folder: work(folder))
        between = {name: (folder / name).exists() for name in (campaign.FROZEN, campaign.UNBLINDED)}
        whole = len([path for path in folder.glob("scores/*.json") if not path.name.startswith(".")])
        work(folder)
        outcome = {name: (folder / name).read_bytes().decode() for name in (campaign.FROZEN, campaign.UNBLINDED)}
        events = [event["event"] for event in campaign.ledger_events(folder)]
        line = {"boundary": number, "died": died, "between": between, "scores": whole, "events": events, **outcome}
        print(json.dumps(line), flush=True)
        shutil.rmtree(folder)
        if not died:
            return


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, folder, data = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    {"run": enumerate_runs, "score": enumerate_scoring}[what](folder, data)
