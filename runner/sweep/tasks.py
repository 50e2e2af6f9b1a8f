"""What executors on other machines share: tasks that train cells there, and a driver here that follows them on disk.

A task is the local executor with one slot: it starts a worker as a process, so that nothing of a cluster's software is
loaded where training runs, ends a cell that takes too long, records one that crashes, and starts the next worker. A
task that dies as a whole leaves its lock behind; whoever notices records its cell as crashed, a worker or a driver.

Ledger and locks in the campaign's folder are all that tasks and drivers share: the file system has to be one for all
machines, with locks (``flock``) that hold between them.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from runner.sweep import cells, local
from runner.sweep.host import Host
from runner.sweep.waiting import Waiting
from runner.variables import numerical
from vqkit.errors import Incomplete, VqkitError
from vqkit.formats import locks, source

QUIET_SECONDS = 60.0  # tasks queue, and cells take their time
FRUITLESS = 3  # times ``slots``: tasks in a row that end without any cell getting an outcome


class Silent:
    """The progress of a task: the ledger tells of it."""

    def finished(self, run_id, event, detail):
        """Nothing to do."""

    def show(self, folder, run_ids):
        """Nothing to do."""

    def notice(self, text):
        """For the task's log."""
        locks.tell(text)


def work(job, worker, variables, lock):
    """A task: train cells until none is left or the task is told to end.

    Args:
        job: a ``local.Job`` with absolute paths.
        worker: the command that starts a worker, as ``Host`` has it.
        variables: the environment variables that numbers depend on, as the campaign was planned with.
        lock: the task's name in claims/.

    Returns:
        None, or the ``VqkitError`` that ended it.
    """
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    for name in numerical(os.environ):
        del os.environ[name]
    os.environ.update(variables)
    os.chdir(source.ROOT)
    try:
        local.run(replace(job, slots=1), Host(worker=worker), Silent(), lock)
    except VqkitError as error:
        return error
    except KeyboardInterrupt:
        return None
    return None


def order(job, host):
    """The arguments that all tasks of a job share: job, worker, variables. No worker waits here for an order."""
    host.dismiss()
    job = replace(job, folder=Path(os.path.abspath(job.folder)), data=Path(os.path.abspath(job.data)))
    return job, host.worker, numerical(os.environ)


def follow(job, progress, tasks, tick_seconds):
    """Keep tasks at work until every cell has an outcome.

    Args:
        job, progress: as ``local.run`` takes them.
        tasks: has ``alive()``, how many tasks wait or run; ``submit(count)``; and ``ended()``, for each task that has
            ended since it was asked last: what ``work`` returned, or a text that says how it died.
        tick_seconds: between two looks.

    Raises:
        VqkitError: what a task returned; ``Incomplete`` (E_WORKER) when tasks die before they take a cell, or end again
            and again while no cell gets an outcome.
    """
    cells_left, stillborn, claims, fruitless = cells.Open(job.folder, job.run_ids, progress), 0, 0, 0
    watch = cells_left.watch
    waiting = Waiting(job.folder, watch, progress.notice, QUIET_SECONDS)
    while cells_left.left:
        before = len(cells_left.left)
        results = tasks.ended()
        for result in results:
            if isinstance(result, VqkitError):
                raise result
        watch.refresh()
        if results:
            cells.settle_lost(job.folder, watch)
            cells_left.reconcile()
        deaths = [result for result in results if result is not None]
        stillborn = 0 if cells_left.claims > claims else stillborn + bool(deaths)
        claims = cells_left.claims
        if stillborn >= local.STILLBORN:
            raise Incomplete("E_WORKER", "executor", "tasks that take a cell", deaths[-1])
        fruitless = 0 if len(cells_left.left) < before else fruitless + len(results)
        if cells_left.left and fruitless >= FRUITLESS * job.slots:
            expected = "tasks that bring a cell to its end: their time limit may be too short for one"
            raise Incomplete("E_WORKER", "executor", expected, f"{fruitless} in a row that ended without")
        wanted = min(job.slots, len(cells_left.left)) - tasks.alive()
        if wanted > 0:
            tasks.submit(wanted)
        waiting.look(cells_left.left)
        progress.show(job.folder, list(watch.holders))
        time.sleep(tick_seconds)
