"""The Ray executor (extra ``ray``): long-lived Ray tasks, on this machine or on every node of a cluster.

A task is never retried by Ray: the cell that it was at is recorded as crashed, and another task takes its place. Tasks
end with the driver.
"""

import importlib
import logging
import pickle
import secrets
import signal
import socket
import sys
from contextlib import contextmanager

from runner.sweep import cells, local, tasks
from vqkit.errors import UsageError
from vqkit.formats import source

OBJECT_STORE_BYTES = 80 << 20  # nothing but paths and results goes through it
TICK_SECONDS = 0.5
GRACE_SECONDS = 10.0  # for tasks to end their workers
CONNECT_SECONDS = 10.0


def check(options):
    """Raise ``UsageError`` (E_EXECUTOR) where Ray is missing, or no cluster is at the address."""
    if options["address"] is None:
        _ray()
        return
    with _connected(options["address"]):
        pass


def run(job, host, progress):
    """Train every cell of ``job.folder`` that has no outcome, in at most ``job.slots`` Ray tasks.

    ``job.options``: ``address`` of the cluster (null: an instance of its own, auto: the one that runs here).

    Raises:
        UsageError: E_EXECUTOR as ``check``.
        Refused, Rejected, Incomplete: as ``tasks.follow``.
        KeyboardInterrupt: after the tasks were told to end.
    """
    own = {"num_cpus": job.threads * job.slots, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    with _connected(job.options["address"], own) as ray, local.held(job.folder, local.driver_lock()) as lock:
        queue = _Queue(ray, job, host, lock)
        try:
            tasks.follow(job, progress, queue, TICK_SECONDS)
        finally:
            queue.stop()


class _Queue:
    """The tasks that were submitted and have not ended."""

    def __init__(self, ray, job, host, lock):
        self.ray, self.lock, self.refs = ray, lock, []
        self.order = pickle.dumps(tasks.order(job, host))
        resources = {"num_cpus": job.threads, "num_gpus": int(job.device == "cuda")}
        self.task = ray.remote(max_retries=0, **resources)(_task(str(source.ROOT)))

    def submit(self, count):
        """Submit ``count`` tasks; those that find no place wait."""
        for _ in range(count):
            name = f"{cells.TASK}{secrets.token_hex(6)}{cells.OF}{self.lock}"
            self.refs.append(self.task.remote(self.order, name))

    def alive(self):
        """How many tasks wait or run."""
        return len(self.refs)

    def ended(self):
        """The results of the tasks that have ended since the last call."""
        if not self.refs:
            return []
        ready, self.refs = self.ray.wait(self.refs, num_returns=len(self.refs), timeout=0)
        return [self._result(ref) for ref in ready]

    def stop(self):
        """Tell all tasks to end, and wait a little until they have."""
        for ref in self.refs:
            self.ray.cancel(ref)
        if self.refs:
            self.ray.wait(self.refs, num_returns=len(self.refs), timeout=GRACE_SECONDS)

    def _result(self, ref):
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            return str(error)


def _task(root):
    """What Ray executes on a node: ``tasks.work`` of the source in ``root``, which Ray's own process need not know."""

    def work(order, name):
        if root not in sys.path:
            sys.path.insert(0, root)
        return importlib.import_module("runner.sweep.tasks").work(*pickle.loads(order), name)  # noqa: S301

    return work


def _ray():
    try:
        import ray
    except ImportError:
        raise UsageError("E_EXECUTOR", "executor=ray", "the extra: pip install ray (vqkit[ray])", "no ray") from None
    return ray


@contextmanager
def _connected(address, own=None):
    """The module ``ray``, connected to a cluster; disconnected at the end, and stopped where it was started here, with
    what is its ``own``."""
    ray, on_sigterm = _ray(), signal.getsignal(signal.SIGTERM)
    try:
        if address not in (None, "auto"):
            _require_listener(address)
        ray.init(
            address="local" if address is None else address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(own if address is None else {}),
        )
    except (OSError, ValueError, RuntimeError) as error:
        expected = "a cluster at executor.address, or null to start one here"
        raise UsageError("E_EXECUTOR", f"executor.address={address}", expected, str(error)) from None
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray puts its own there
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_listener(address):
    """Raise ``OSError`` or ``ValueError`` where nobody listens; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
