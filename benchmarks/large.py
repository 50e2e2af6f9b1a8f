"""python -m benchmarks.large ARMS DATA FOLDER: one large campaign, in a process that loads nothing else."""

import json
import sys
import time
from pathlib import Path

from runner import config
from runner.sweep import command, plan
from runner.sweep.standby import Standby
from vqkit.formats import campaign


def large(arms, data, folder):
    """Plan a campaign of ``arms`` × 16, mark every cell as done, and look at it; seconds of each step."""
    contract, out = config.locked_contract("quick-v1"), folder / "campaign"
    expected = {"metric": "utilization", "direction": "increase"}
    weights = [0.3 + i / 1000 for i in range(1, arms)]
    levels = [{"label": f"a{w:g}", "set": {"commitment_weight": w}, "expected": expected} for w in weights]
    definition = {"name": "large", "reference": "reference", "arms": levels, "seeds": {"count": 16}}
    options = {"sweep": definition, "phase": "development", "seeds": None, "marks": None, "device": "cpu", "threads": 1}
    seconds, clock = {}, time.perf_counter()

    def lap(name):
        nonlocal clock
        seconds[name], clock = round(time.perf_counter() - clock, 3), time.perf_counter()

    with Standby(command.Host()) as standby:
        standby.host.environment("cpu", 1)  # torch is loaded in another process
        lap("start")
        terms = command.terms_of(options, contract, data, "sweep", standby.host)
        plan.create(out, terms)
        lap("plan")
        planned, _ = campaign.read(out, campaign.CAMPAIGN)
        for cell in planned["cells"]:
            (out / campaign.RUNS / cell["run_id"]).mkdir()
        detail = {"outcome": "complete", "seconds": 1.0}
        campaign.append_events(out, [("sealed", cell["run_id"], detail) for cell in planned["cells"]])
        lap("filled")
        state = command.state_of(out, campaign.read(out, campaign.CAMPAIGN)[0])
        lap("status")
        terms = command.terms_of(options, contract, data, "sweep", standby.host)
        command.scan(out, plan.require_same(out, terms))
        lap("resume")
    if state["complete"] != arms * 16:
        raise SystemExit(f"{state['complete']} of {arms * 16} cells are complete")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024  # getrusage would tell the parent's peak
    return {name: seconds[name] for name in ("plan", "status", "resume")} | {"mib": round(peak)}


if __name__ == "__main__":
    print(json.dumps(large(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))))
