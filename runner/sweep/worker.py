"""python -m runner.sweep.worker: a long-lived process that trains cells of a campaign, one by one.

It loads training first, then reads JSON lines from its standard input: questions about the machine, and one order,
which names a campaign. From that it takes any cell that is not finished and not claimed, until none is left. What it
does is written as JSON lines to its standard output; everything else that is printed goes to logs. Its standard input
is a lifeline: when the driver dies, the pipe closes and the worker ends at once. Ending it at any moment is safe:
locks are the kernel's, and a run is in its place whole or not at all.
"""

import errno
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

from runner.sweep import cells, plan
from runner.sweep.host import Host
from vqkit.errors import ArgumentParser, Refused, Rejected, guarded
from vqkit.formats import campaign, canonical, files, locks, run
from vqkit.formats.contract import Contract

_LOG = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # what befalls every cell, not one
IDLE_SECONDS = 0.3  # between two looks at cells that others hold


def main(argv, host=None):
    """Answer questions, then work until every cell of the campaign has an outcome; ``host`` is how cells execute."""
    ArgumentParser(prog="python -m runner.sweep.worker").parse_args(argv)
    host = host or Host()
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's word that time is up is for the task above
    say = _protocol()
    host.load()
    try:
        for line in iter(sys.stdin.buffer.readline, b""):
            request = json.loads(line)
            if "question" not in request:
                return _work(request, host, say)
            say(event="answer", answer=getattr(host, request["question"])(*request["arguments"]))
    except (Refused, Rejected) as error:
        say(event="refused", **json.loads(error.to_json()))
        return error.exit_code
    return 1


def _work(order, host, say):
    """Carry out an order: ``folder``, ``data``, ``driver`` (the lock that says that it lives), ``budget_seconds``."""
    threading.Thread(target=_end_with_driver, daemon=True).start()
    locks.tell = lambda text: say(event="waiting", text=text)
    worker = Worker(order, host, say)
    plan.require_here(worker.folder, worker.plan, worker.data, host)
    try:
        worker.work()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise Rejected("E_FILE_WRITE", str(error.filename), "a disk that takes it", error.strerror) from None
    return 0


class Worker:
    """A campaign as one worker sees it."""

    def __init__(self, order, host, say):
        self.folder, self.data, self.driver = Path(order["folder"]), Path(order["data"]), order["driver"]
        self.budget_seconds, self.host, self.say = order["budget_seconds"], host, say
        self.file = os.stat(self.folder / campaign.CAMPAIGN)
        self.plan, _ = campaign.read(self.folder, campaign.CAMPAIGN)
        self.contract = Contract(self.plan["contract"])
        arms, _ = campaign.read(self.folder, campaign.ARMS)
        self.salt = bytes.fromhex(arms["salt"])
        self.proposals = {arm["label"]: arm["proposal"].encode() for arm in arms["arms"]}
        self.arm_of = {cell["run_id"]: cell["arm"] for cell in arms["cells"]}
        self.watch = cells.Watch(self.folder)

    def work(self):
        """Pass over the cells until none is left without an outcome; a broken process is left to be replaced."""
        left = self.plan["cells"]
        while left:
            self.watch.refresh()
            left = [cell for cell in left if not self._is_finished(cell["run_id"])]
            took = False
            for cell in left:
                if not self._is_finished(cell["run_id"]):
                    with cells.claim(self.folder, cell["run_id"]) as held:
                        if held and self._is_free(cell["run_id"]):
                            took = True
                            if self._train(cell) == "error":
                                return
            if left and not took:
                time.sleep(IDLE_SECONDS)

    def _is_finished(self, run_id):
        return run_id in self.watch.failed or cells.is_published(self.folder, run_id)

    def _is_free(self, run_id):
        """Whether a cell whose lock was just taken may be trained: not finished in the meantime, and not one whose
        worker died a moment ago under a driver that lives and will record that, or with a task that was lost."""
        self.watch.refresh()
        lock, _ = self.watch.holders.get(run_id, ("", 0))
        if self._is_finished(run_id) or (lock and cells.is_held(self.folder, lock)):
            return False
        if cells.is_lost(self.folder, lock):
            cells.remove_work(self.folder, {run_id})
            cells.record_failed(self.folder, run_id, "crashed", cells.LOST)
            return False
        return True

    def _is_mine(self, run_id):
        """Whether the ledger still has this worker at the cell."""
        self.watch.refresh()
        return self.watch.holders.get(run_id) == (self.driver, os.getpid())

    def _train(self, cell):
        """Train, seal, check and publish one cell whose lock is held; returns the state in which it ended."""
        run_id, started = cell["run_id"], time.monotonic()
        plan.require_source(self.folder, self.plan, self.host.source())
        self._require_campaign()
        cells.remove_work(self.folder, {run_id})
        campaign.append_event(self.folder, "claimed", run_id, {"driver": self.driver, "pid": os.getpid()})
        self.say(event="claimed", run_id=run_id)
        cells.report(self.folder, run_id, 0, max(self.plan["marks"]), 0.0)
        work = cells.work_folder(self.folder, run_id)
        try:
            with _logged(cells.log_path(self.folder, run_id)):
                terminal = self.host.execute(
                    lambda at: cells.report(self.folder, run_id, at["epoch"], at["epochs"], at["images_per_second"]),
                    intervention=self.proposals[self.arm_of[run_id]],
                    contract=self.contract,
                    phase=self.plan["phase"],
                    seed=cell["seed"],
                    marks=tuple(self.plan["marks"]),
                    device=self.plan["device"],
                    threads=self.plan["threads"],
                    data=self.data,
                    out=work,
                    run_id=run_id,
                    salt=self.salt,
                    budget_seconds=self.budget_seconds,
                )
        except Rejected:
            if self._is_mine(run_id):
                raise
        if not self._is_mine(run_id):  # given up for lost while this process was stopped
            cells.remove_work(self.folder, {run_id})
            return "lost"
        self._require_planned(cell, work)
        if cells.publish(self.folder, run_id, work):
            seconds = round(time.monotonic() - started, 3)
            cells.record_sealed(self.folder, run_id, terminal["state"], seconds=seconds)
        self.say(event="sealed", run_id=run_id)
        return terminal["state"]

    def _require_campaign(self):
        """Raise ``Refused`` when another campaign lies in the folder now: this one was moved away."""
        if not os.path.samestat(self.file, os.stat(self.folder / campaign.CAMPAIGN)):
            raise Refused("E_CAMPAIGN_CHANGED", str(self.folder), "the campaign that this worker began", "another one")

    def _require_planned(self, cell, work):
        """Raise ``Refused`` unless the sealed run is the one that the campaign planned; it is not published then."""
        made, _ = run.parse_plan(files.read_once(work / run.PLAN, max_bytes=canonical.MAX_BYTES))
        found = {**made["digests"], **{key: made[key] for key in ("run_id", "seed", "marks")}}
        expected = {name: self.plan["digests"][name] for name in ("source", "environment", "contract", "dataset")}
        expected |= {"marks": self.plan["marks"], **cell}
        for key, value in expected.items():
            if found[key] != value:
                raise Refused("E_CAMPAIGN_CHANGED", f"{cell['run_id']} {key}", str(value), str(found[key]))


def _end_with_driver():
    """Wait for the end of standard input, then end the process without any clean-up."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def _protocol():
    """Keep standard output for JSON lines; whatever else prints to it goes to standard error from now on."""
    faulthandler.enable()
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**event):
        lines.write(json.dumps(event) + "\n")  # in one piece: a thread may have something to say, too
        lines.flush()

    return say


@contextmanager
def _logged(path):
    """Send what is printed, by C code too, to a file of its own; an empty one is removed. A crash leaves it there."""
    kept = os.dup(2)
    log = os.open(path, _LOG, 0o644)
    try:
        _point_output(log)
        try:
            yield
        except (Refused, Rejected):
            raise
        except Exception:
            traceback.print_exc()
            raise
        finally:
            _point_output(kept)
    finally:
        os.close(kept)
        if os.fstat(log).st_size == 0:
            path.unlink(missing_ok=True)
        os.close(log)


def _point_output(target):
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(target, 1)
    os.dup2(target, 2)


def end(code):
    """End the process without taking apart what it has loaded, which takes as long as loading does."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(guarded(main, sys.argv[1:]))
