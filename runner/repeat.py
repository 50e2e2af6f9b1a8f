"""``python -m runner repeat RUN --data DIR --out DIR``: train once more what a sealed run planned.

Contract, seed, marks, threads, run id and salt come from its plan and its reveal, so that on the same device class the
evidence must come out the same. Reading the reveal unblinds this run.
"""

from pathlib import Path

from runner.console import Progress
from runner.execute import execute
from runner.plan import Request
from vqkit.errors import ArgumentParser
from vqkit.formats import canonical, files, run


def main(argv):
    """Run the command; it is done when the repeated run is sealed, in whatever state."""
    parser = ArgumentParser(prog="python -m runner repeat", description="Train once more what a sealed run planned.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the canonical dataset")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run folder to make")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="another device than the plan's")
    chosen = parser.parse_args(argv)
    progress = Progress()
    try:
        terminal = repeat(chosen.run, chosen.data, chosen.out, chosen.device, progress)
    finally:
        progress.close()
    print(f"{terminal['state']}  {chosen.out}")


def repeat(run_dir, data, out, device=None, progress=None):
    """Run the plan of ``run_dir`` again into ``out``; returns the terminal statement. Raises as ``execute`` does."""
    plan, contract = run.parse_plan(files.read_once(run_dir / run.PLAN, max_bytes=canonical.MAX_BYTES))
    reveal = run.parse_reveal(files.read_once(run_dir / run.REVEAL, max_bytes=canonical.MAX_BYTES))
    request = Request(
        intervention=reveal["proposal"].encode(),
        contract=contract,
        phase=plan["phase"],
        seed=plan["seed"],
        marks=tuple(plan["marks"]),
        device=device or plan["device"],
        threads=plan["threads"],
        data=data,
        out=out,
        run_id=plan["run_id"],
        salt=bytes.fromhex(reveal["salt"]),
    )
    return execute(request, progress)
