"""The Slurm executor (extra ``slurm``): an array of long-lived tasks, submitted by submitit; the driver may leave.

Tasks go on when the driver ends, however it ends. The same command finds those that wait or run, by the job's name in
the queue and by the locks that tasks hold, and submits only what is missing.
"""

import contextlib
import secrets
import shlex
import shutil
import subprocess
import time

from runner.sweep import cells, tasks
from vqkit.errors import UsageError
from vqkit.formats import campaign, digests, files, source

JOBS = "jobs"  # what submitit keeps: submitted calls, results, logs
ATTEMPTS = 20  # at an answer from the scheduler


def check(options):
    """Raise ``UsageError`` (E_EXECUTOR) where submitit or Slurm is missing."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UsageError(
            "E_EXECUTOR", "executor=slurm", "the extra: pip install submitit (vqkit[slurm])", "no submitit"
        ) from None
    if options["cluster"] == "slurm" and not shutil.which("sbatch"):
        raise UsageError("E_EXECUTOR", "executor=slurm", "sbatch in PATH, on a machine of the cluster", "none")


def run(job, host, progress):
    """Train every cell of ``job.folder`` that has no outcome, in at most ``job.slots`` Slurm tasks.

    ``job.options``: ``cluster`` (slurm, or local to try things out), ``partition``, ``time_minutes``, ``cpus``,
    ``gpus``, ``memory_gb``, ``account``, ``additional_parameters`` for sbatch, ``poll_seconds``.

    Raises:
        UsageError: E_EXECUTOR where sbatch does not take the options.
        Refused, Rejected, Incomplete: as ``tasks.follow``.
        KeyboardInterrupt: with a message; the tasks go on.
    """
    queue = _Queue(job, host)
    try:
        tasks.follow(job, progress, queue, job.options["poll_seconds"])
    except KeyboardInterrupt:
        names = sorted(queue.known - queue.gone)
        raise KeyboardInterrupt(f"tasks go on without it ({queue.name}: {', '.join(names) or 'none'})") from None


def work(job, worker, variables):
    """What a task of the array executes."""
    from submitit import JobEnvironment

    return tasks.work(job, worker, variables, f"{cells.TASK}{JobEnvironment().job_id}.{secrets.token_hex(4)}")


class _Queue:
    """The campaign's tasks by job id: those in the queue, and those that hold their lock."""

    def __init__(self, job, host):
        self.job, self.order = job, tasks.order(job, host)
        self.folder = self.order[0].folder / JOBS
        plan = files.read_once(job.folder / campaign.CAMPAIGN, max_bytes=campaign.MAX_BYTES)
        self.name = f"vqkit-{digests.sha256_hex(plan + bytes(self.folder))[:16]}"  # a copied campaign is another one
        self.executor = self._executor()
        self.known, self.gone, self.jobs = set(), set(), {}

    def submit(self, count):
        """Submit one array of ``count`` tasks."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            with self.executor.batch():
                submitted = [self.executor.submit(work, *self.order) for _ in range(count)]
            self.jobs |= {job.job_id: job for job in submitted}
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise UsageError("E_EXECUTOR", "executor=slurm", "options that sbatch takes", str(error)) from None
        self.known |= self.jobs.keys()

    def alive(self):
        """How many tasks wait or run."""
        return len(self.known - self.gone)

    def ended(self):
        """The results of the tasks that have ended since the last call."""
        alive = self._queued() | self._at_work()
        self.known |= alive
        ended = sorted(self.known - self.gone - alive)
        self.gone |= set(ended)
        return [self._result(job_id) for job_id in ended]

    def _queued(self):
        """Job ids that wait or run, as the scheduler says; without one, the processes that were started here."""
        if self.job.options["cluster"] == "local":
            return {job_id for job_id, job in self.jobs.items() if not job.done()}
        command = ["squeue", "--me", "--array", "--noheader", "--format=%i", f"--name={self.name}"]
        for _ in range(ATTEMPTS):
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            if found.returncode == 0:
                return set(found.stdout.split())
            time.sleep(self.job.options["poll_seconds"])  # a scheduler that is busy or restarts
        raise UsageError("E_EXECUTOR", "executor=slurm", "an answer from squeue", found.stderr.strip() or "none")

    def _at_work(self):
        """Job ids of the tasks that hold their lock."""
        locks = [path.name for path in (self.job.folder / cells.CLAIMS).glob(f"{cells.TASK}*")]
        return {lock.removeprefix(cells.TASK).split(".")[0] for lock in locks if cells.is_held(self.job.folder, lock)}

    def _result(self, job_id):
        """What a task returned, or the last lines of its log where it died."""
        paths = self._job(job_id).paths
        if paths.result_pickle.exists():
            with contextlib.suppress(Exception):  # what the task raised stands in its log
                return self._job(job_id).result()
        return cells.log_tail(paths.stderr) or cells.log_tail(paths.stdout) or f"{job_id} ended without a word"

    def _job(self, job_id):
        return self.jobs.setdefault(job_id, self.executor.job_class(self.folder, job_id))

    def _executor(self):
        from submitit import AutoExecutor

        options = self.job.options
        executor = AutoExecutor(self.folder, cluster=options["cluster"])
        given = {
            "name": self.name,
            "timeout_min": options["time_minutes"],
            "cpus_per_task": self.job.threads if options["cpus"] is None else options["cpus"],
            "gpus_per_node": int(self.job.device == "cuda") if options["gpus"] is None else options["gpus"],
            "mem_gb": options["memory_gb"],
            "slurm_partition": options["partition"],
            "slurm_account": options["account"],
            "slurm_additional_parameters": options["additional_parameters"],
            "slurm_array_parallelism": self.job.slots,
            "slurm_setup": [f"cd {shlex.quote(str(source.ROOT))}"],
        }
        executor.update_parameters(**{key: value for key, value in given.items() if value is not None})
        return executor
