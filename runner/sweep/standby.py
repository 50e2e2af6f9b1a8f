"""Workers that load torch while the command still reads its options, so that the driver never loads it itself.

A worker on standby answers questions about the machine, and takes the order to work on a campaign later. On CUDA it
only answers: which device a worker sees is settled when it starts.
"""

import contextlib
import json
import os
import subprocess
from dataclasses import replace

from vqkit.errors import Incomplete, Problem, Refused, Rejected

EARLY = 4  # started before it is known how many cells there are


def wanted(arguments):
    """How many to start before ``key=value`` arguments are composed: one answers; more where they are sure to train."""
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    if given.get("device") != "cpu" or given.get("executor", "local") != "local" or "dry_run" in given:
        return 1
    try:
        threads, slots = int(given.get("threads", "1")), int(given.get("executor.slots", EARLY))
    except ValueError:  # not for here to complain about
        return 1
    return max(1, min(EARLY, slots, (os.cpu_count() or 1) // max(1, threads)))


class Standby:
    """A context with a ``host`` whose questions are answered by processes on standby; those left over are ended."""

    def __init__(self, host, count=1):
        self.worker = host.worker
        answers = {"environment": self.environment, "cuda_devices": self.cuda_devices, "probe": self.probe}
        self.host = replace(host, **answers, take=self.take, dismiss=self.dismiss)
        self.ready = []
        self.start(count)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.dismiss()

    def dismiss(self):
        """End those that are left."""
        while self.ready:
            process = self.ready.pop()
            process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()

    def start(self, count):
        """Have ``count`` processes on standby."""
        while len(self.ready) < count:
            self.ready.append(
                subprocess.Popen(
                    self.worker,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )

    def take(self):
        """A process for an order, or None."""
        return self.ready.pop() if self.ready else None

    def environment(self, device, threads):
        """The facts of the environment here, as ``host.environment`` gives them."""
        return self._ask("environment", device, threads)

    def probe(self, *request):
        """How long a short run takes, as ``host.probe`` says, in a process where nothing else was loaded."""
        return self._ask("probe", *request)

    def cuda_devices(self):
        """How many CUDA devices there are."""
        return self._ask("cuda_devices")

    def _ask(self, question, *arguments):
        process = self.ready[0]
        send(process, question=question, arguments=arguments)
        try:
            answer = json.loads(process.stdout.readline())
        except ValueError:
            raise Incomplete("E_WORKER", "worker", "an answer", f"its end, exit {process.wait()}") from None
        if answer["event"] == "refused":
            raise error_of(answer)
        return answer["answer"]


def send(process, **order):
    """Give a worker its order; one that is dead says so by the end of its output."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()


def error_of(event):
    """The error that a worker reports."""
    kind = Refused if event["exit"] == Refused.exit_code else Rejected
    return kind([Problem(**problem) for problem in event["errors"]])
