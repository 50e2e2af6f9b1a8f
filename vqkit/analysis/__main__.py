"""``python -m vqkit.analysis calibrate DIR | report DIR [--tensorboard] | power …``"""

import io
import json
import sys
from argparse import ArgumentTypeError
from pathlib import Path

from vqkit.analysis import build, load, power, results, sentences
from vqkit.errors import ArgumentParser, Incomplete, Refused, UsageError, guarded
from vqkit.formats import calibration, campaign, digests, files

PARQUET, CSV = "results.parquet", "results.csv"


def main(argv):
    """Run one command; raises ``VqkitError``."""
    arguments = _parser().parse_args(argv)
    return arguments.run(arguments)


def calibrate(arguments):
    """Write results.parquet, results.csv and calibration.json into the campaign folder, and say what was decided."""
    folder = _folder(arguments.dir)
    loaded = load.load(folder)
    csv = results.write(loaded.table)
    value = build.build(loaded, csv)
    data = calibration.encode(value)
    parquet = io.BytesIO()
    loaded.table.to_parquet(parquet, index=False, engine="pyarrow", compression="zstd")
    for name, content in ((PARQUET, parquet.getvalue()), (CSV, csv), (calibration.NAME_ON_DISK, data)):
        files.replace(folder / name, content)
    _log(folder, calibration.digest(data))
    if arguments.json:
        print(json.dumps({"calibration": calibration.digest(data), "decision": value["decision"]}))
    else:
        print("\n".join([f"{calibration.NAME_ON_DISK} {calibration.digest(data)}", *sentences.in_words(value)]))


def _log(folder, digest):
    """Note the calibration in the campaign's ledger, where it keeps one and does not say so last already."""
    noted = [event["detail"] for event in campaign.ledger_events(folder) if event["event"] == "calibrated"]
    if (folder / campaign.LEDGER).exists() and noted[-1:] != [{"digest": digest}]:
        campaign.append_event(folder, "calibrated", None, {"digest": digest})


def write_report(arguments):
    """Write report.html, report.md and figures/ from calibration.json, results.csv and the scores; print the result."""
    from vqkit.analysis import report  # matplotlib takes a second to import; the other commands don't need it

    folder = _folder(arguments.dir)
    for name in (calibration.NAME_ON_DISK, CSV, campaign.FROZEN, campaign.UNBLINDED):
        if not (folder / name).exists():
            raise Incomplete("E_STAGE_MISSING", name, "the file (calibrate first)", "nothing")
    data = files.read_once(folder / calibration.NAME_ON_DISK)
    value = calibration.parse(data)
    names = (CSV, campaign.FROZEN, campaign.UNBLINDED)
    csv, frozen, unblinded = (files.read_once(folder / name, max_bytes=campaign.MAX_BYTES) for name in names)
    for where, bound, found in (
        (CSV, value["results"], calibration.table_digest(csv)),
        (campaign.FROZEN, value["campaign"]["frozen"], digests.digest("score", frozen)),
        (campaign.UNBLINDED, value["campaign"]["unblinded"], digests.digest("campaign", unblinded)),
    ):
        if found != bound:
            raise Refused("E_ANALYSIS_BINDING", where, f"{bound} ({calibration.NAME_ON_DISK} names it)", found)
    setting = campaign.read(folder, campaign.FROZEN)[0]["setting"]
    table = results.read(csv)
    if arguments.tensorboard:
        from vqkit.analysis import tensorboard

        tensorboard.require()
    written = report.write(folder, table, value, calibration.digest(data), setting)
    if arguments.tensorboard:
        written.append(tensorboard.write(folder, table))
    if arguments.json:
        print(json.dumps({"calibration": calibration.digest(data), "files": written, "decision": value["decision"]}))
    else:
        print(report.terminal(value, [folder / name for name in (PARQUET, CSV, calibration.NAME_ON_DISK, *written)]))


def plan_power(arguments):
    """Print how many seeds a difference needs, or what a number of seeds can see."""
    sigma, delta, alpha, goal = arguments.sigma, arguments.delta, arguments.alpha, arguments.power
    if (delta is None) == (arguments.seeds is None):
        found = "neither" if delta is None else "both"
        raise UsageError("E_USAGE", "power", "either --delta or --seeds", found)
    if arguments.seeds is not None:
        if not 2 <= arguments.seeds <= power.MOST_SEEDS:
            raise UsageError("E_USAGE", "seeds", f"2 to {power.MOST_SEEDS} seeds", str(arguments.seeds))
        delta = power.detectable(arguments.seeds, sigma, alpha, goal)
    answer = power.answer(sigma, delta, alpha, goal, arguments.seeds)
    if arguments.plot:
        from vqkit.analysis import plots

        files.replace(arguments.plot, plots.power_file(answer, arguments.plot.suffix[1:]))
    print(json.dumps(answer) if arguments.json else power.sentence(answer))


def _folder(name):
    folder = Path(name)
    campaign.require_there(folder)
    return folder


def _drawing(text):
    path = Path(text)
    if path.suffix not in (".svg", ".png") or not path.parent.is_dir():
        raise ArgumentTypeError(f"{text!r} is no name in a folder that exists, ending in .svg or .png")
    return path


def _parser():
    parser = ArgumentParser(prog="python -m vqkit.analysis", description="Decide what a scored campaign shows.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=ArgumentParser)
    for name, run, text, state in (
        ("calibrate", calibrate, "write results.parquet, results.csv and calibration.json", "unblinded"),
        ("report", write_report, "write report.html, report.md and figures/", "calibrated"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("dir", metavar="DIR", help=f"the folder of a campaign that is {state}")
        command.add_argument("--json", action="store_true", help="answer and errors as JSON")
        if run is write_report:
            text = "also write training curves as TensorBoard event files (needs the extra `tensorboard`)"
            command.add_argument("--tensorboard", action="store_true", help=text)
        command.set_defaults(run=run)
    command = commands.add_parser("power", help="seeds for a difference, or the difference for seeds")
    command.add_argument("--sigma", type=float, required=True, help="standard deviation of paired differences")
    command.add_argument("--delta", type=float, help="the smallest difference that matters")
    command.add_argument("--seeds", type=int, help="instead of --delta: how many seeds there are")
    command.add_argument("--alpha", type=float, default=0.05, help="two-sided level (%(default)s)")
    command.add_argument("--power", type=float, default=0.8, help="power asked for (%(default)s)")
    command.add_argument("--plot", type=_drawing, metavar="FILE", help="also draw power against seeds (.svg or .png)")
    command.add_argument("--json", action="store_true", help="answer and errors as JSON")
    command.set_defaults(run=plan_power)
    return parser


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
