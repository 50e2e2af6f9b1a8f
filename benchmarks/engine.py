"""The sweep engine: what it costs beside training steps, how it scales over slots and executors, large campaigns."""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks import timing
from vqkit.formats import campaign, files, run

SWEEP = """\
name: bench
reference: reference
arms: [{label: faster, intervention: projection-lr-10}]
seeds: [101, 102]
"""
LARGE = {"1,000": 63, "100,000": 6250}  # cells → arms, of 16 seeds each
STORE_BYTES = 80 << 20


def sweep(folder, out, data, device, *options):
    """Run 2 arms × 2 seeds as a command, in a process of its own; its seconds."""
    (folder / "bench.yaml").write_text(SWEEP)
    command = ["runner", "sweep", "sweep=bench.yaml", "contract=quick-v1", f"device={device}", f"data={data}"]
    started = time.perf_counter()
    module(folder, *command, f"out={out}", *options)
    return time.perf_counter() - started


def module(folder, *arguments):
    """``python -m`` these arguments in a folder."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-m", *arguments], cwd=folder, env=environment, check=True, capture_output=True)


def predicates(out):
    """What the manifests of a campaign state."""
    planned, _ = campaign.read(out, campaign.CAMPAIGN)
    paths = [out / campaign.RUNS / cell["run_id"] / run.MANIFEST for cell in planned["cells"]]
    return [run.parse_manifest(files.read_once(path))["predicate"] for path in paths]


def measure_slots(data, device, repeats):
    """One slot, two slots, and two Ray nodes of one slot, in turn: way → {seconds, overhead, evidence}.

    ``overhead`` is the share of slots × wall time, start-up included, that is not training steps; ``evidence`` the
    sorted evidence digests.
    """
    with tempfile.TemporaryDirectory() as name, _nodes() as address:
        folder = Path(name)
        ways = {"1 slot": (1, []), "2 slots": (2, [])}
        if address:
            ways["2 Ray nodes"] = (2, ["executor=ray", f"executor.address={address}"])
        found = {way: {"seconds": [], "overhead": [], "evidence": []} for way in ways}
        for number in range(repeats):
            for index, (way, (slots, options)) in enumerate(ways.items()):
                out = folder / f"campaign-{number}-{index}"
                wall = sweep(folder, out, data, device, f"executor.slots={slots}", *options)
                made = predicates(out)
                trained = sum(predicate["resources"]["training_seconds"] for predicate in made)
                found[way]["seconds"].append(wall)
                found[way]["overhead"].append(1 - trained / (slots * wall))
                found[way]["evidence"].append(sorted(predicate["digests"]["evidence"] for predicate in made))
        return found


def slots_table(found):
    """The measurement as Markdown."""
    lines = ["| 4 cells, quick-v1 to mark 10 | seconds | not training steps |", "|---|---:|---:|"]
    for way, row in found.items():
        middle = timing.quartiles(row["seconds"])[1]
        lines.append(f"| {way} | {middle:.1f} | {timing.spread(timing.quartiles(row['overhead']))} |")
    seconds = {way: row["seconds"] for way, row in found.items()}
    ratios = [f"{way}: {timing.spread(timing.ratios(seconds, '1 slot', way))}" for way in list(found)[1:]]
    evidence = {json.dumps(digests) for row in found.values() for digests in row["evidence"]}
    same = "the same evidence digests every time" if len(evidence) == 1 else f"{len(evidence)} different evidences"
    return "\n".join([*lines, "", f"One slot's time over that of {'; '.join(ratios)}. Start-up included; {same}."])


@contextmanager
def _nodes():
    """The address of a Ray cluster of two nodes on this machine; None where Ray is not installed."""
    with suppress(ImportError):
        from ray.cluster_utils import Cluster

        options = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **options})
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=1, **options)
            cluster.wait_for_nodes()
            yield cluster.address
        finally:
            cluster.shutdown()
        return
    yield None


def measure_large(data):
    """cells → {plan, status, resume: seconds; mib: peak memory}, each campaign in a process of its own."""
    found = {}
    for cells, arms in LARGE.items():
        with tempfile.TemporaryDirectory() as name:
            command = [sys.executable, "-m", "benchmarks.large", str(arms), str(data), name]
            done = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True)
            found[cells] = json.loads(done.stdout)
    return found


def large_table(found):
    """The measurement as Markdown."""
    lines = ["| cells | plan s | status s | resume scan s | peak MiB |", "|---:|---:|---:|---:|---:|"]
    for cells, row in found.items():
        lines.append(f"| {cells} | {row['plan']:.2f} | {row['status']:.2f} | {row['resume']:.2f} | {row['mib']:,.0f} |")
    return "\n".join(lines)
