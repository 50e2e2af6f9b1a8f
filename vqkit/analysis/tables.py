"""The tables of a report, each as (head, rows) of plain text, for the page, for Markdown and for the terminal."""

import platform
from importlib.metadata import version

from vqkit import __version__
from vqkit.formats.calibration import GUARDRAIL_STATUSES as STATUSES

LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "matplotlib")
TRAINED_ON = ("device", "threads", "torch", "python", "system")  # of the environment's facts
MOST_EFFECTS = 12_000  # rows of the full table; calibration.json has them all


def arms(view):
    """Every arm at the decision's mark: what the metric gained, how certain, and what reconstruction lost."""
    guards = [f"Δ{guard['metric']}" for guard in view.value["analysis"]["plan"]["guardrails"]]
    found = {}
    for record in view.value["guardrails"]:
        if record["mark"] == view.mark:
            found.setdefault(record["arm"], []).append(record)
    rows = []
    for label in view.everyone:
        one, mine = view.effect(label), found.get(label, [])
        up = one["positive"] >= one["negative"]
        agree = f"{one['positive'] if up else one['negative']}/{one['n']} {'+' if up else '−'}"
        worst = max((guard["status"] for guard in mine), key=STATUSES.index, default="none declared")
        lost = [signed(guard["mean"], 2 if guard["metric"] == "psnr" else 3) for guard in mine]
        certain = [interval(one["t_interval"]), p_value(one["p_adjusted"]), agree, words(one["verdict"])]
        rows.append([label, signed(one["mean"]), *certain, *lost, worst])
    return ["arm", "effect", "interval", "p, joint", "same sign", "verdict", *guards, "guardrails"], rows


def assessments(view):
    """Every candidate metric at every trained mark."""
    head = ["metric", "epoch", "state", "responsive", "better, guardrails ok", "better, guardrails not ok", "worse"]
    rows = [
        [
            one["metric"], one["mark"], one["state"], "yes" if one["responsive"] else "no", names(one["better"]),
            names(one["blocked"]), names(one["worse"]),
        ]
        for one in view.value["assessments"]
    ]  # fmt: skip
    return head, rows


def sizes(view):
    """n three ways, with σ and with its upper limit."""
    head = [
        "metric", "σ of differences", "interval", "upper 80 %", "δ_min", "normal", "t", "floor", "plan",
        "plan at upper σ",
    ]  # fmt: skip
    rows = []
    for one in view.value["sample_size"]:
        ways, upper = one["at_sigma"], one["at_sigma_upper"]
        spread = [number(one["sigma"]), interval(one["sigma_interval"], plain=True), number(one["sigma_upper"])]
        counts = [ways[key] for key in ("normal", "t", "permutation_floor", "plan")] if ways else ["–"] * 4
        rows.append([one["metric"], *spread, f"{one['delta']:g}", *counts, upper["plan"] if upper else "–"])
    return head, rows


def terms(surface):
    """The terms of one fitted surface."""
    rows = [
        [term["name"], signed(term["estimate"], 4), interval([term["low"], term["high"]], 4)]
        for term in surface["terms"]
    ]
    return ["term", "estimate", "interval"], rows


def reversals(view):
    """The largest rank reversals."""
    rows = [
        [
            one["metric"], one["mark"], one["ahead_at_mark"], signed(one["difference_at_mark"]), one["last_mark"],
            one["ahead_at_last"], signed(one["difference_at_last"]),
        ]
        for one in view.value["decision"]["rank_reversals"]["largest"]
    ]  # fmt: skip
    return ["metric", "epoch", "ahead", "by", "epoch", "ahead", "by"], rows


def stances(view):
    """What each author expected and whether the evidence bears it out."""
    rows = [
        [one["arm"], one["metric"], words(one["expected"]), one["mark"], one["stance"] or "none", words(one["reason"])]
        for one in view.value["stance"]
    ]
    return ["arm", "metric", "expected", "epoch", "stance", "reason"], rows


def failures(view):
    """Arms with cells that did not complete, against the reference."""
    rows = [
        [
            one["label"],
            one["complete"],
            one["failed"],
            p_value(one["p_fails_more"]),
            "yes" if one["fails_more"] else "no",
        ]
        for one in view.value["arms"]
        if one["failed"]
    ]
    return ["arm", "complete", "not complete", "p, Holm", "fails more than the reference"], rows


def lost_cells(view):
    """Each cell that did not complete."""
    table = view.table
    lost = table[table["imputed"] & (table["mark"] == view.value["marks"][0])]
    rows = [[row.arm, row.seed, row.state, row.verification_status, row.run_id] for row in lost.itertuples()]
    return ["arm", "seed", "state", "verification", "run"], rows


def effects(view):
    """Every arm, mark and metric."""
    head = [
        "arm", "epoch", "metric", "arm mean", "reference", "difference", "sd", "t interval", "bootstrap interval", "p",
        "p, joint", "+/−", "verdict",
    ]  # fmt: skip
    rows = [
        [
            one["arm"], one["mark"], one["metric"], number(one["arm_mean"]), number(one["reference_mean"]),
            signed(one["mean"], 4), number(one["sd"]), interval(one["t_interval"], 4),
            interval(one["bootstrap_interval"], 4), p_value(one["p"]), p_value(one["p_adjusted"]),
            f"{one['positive']}/{one['negative']}", words(one["verdict"]),
        ]
        for one in view.value["effects"][:MOST_EFFECTS]
    ]  # fmt: skip
    return head, rows


def digests(view, calibration, environment):
    """Everything that this result is bound to, the environment that it was trained in (facts, or None), versions."""
    value = view.value
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    rows = [
        ["calibration", calibration],
        ["campaign", value["campaign"]["digest"]],
        ["frozen scores", value["campaign"]["frozen"]],
        ["unblinding", value["campaign"]["unblinded"]],
        ["contract", value["contract"]["digest"]],
        ["analysis plan", value["analysis"]["digest"]],
        ["dataset", value["dataset"]["digest"]],
        ["environment", value["device"]["environment"]],
        ["source", value["source"]],
        *([name, environment[name]] for name in TRAINED_ON if environment and name in environment),
        ["analysed with", f"vqkit {__version__}, python {platform.python_version()}, {libraries}"],
    ]
    return ["what", "value"], rows


def pipes(head, rows):
    """A table in Markdown, as lines."""

    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def aligned(head, rows):
    """A table for the terminal, as lines."""
    text = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in text]


def names(labels, most=8):
    """Labels in a line, the first few of them."""
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "") or "–"


def words(code):
    """A code of a closed vocabulary as a reader's words; None is what mark 0 has."""
    return "not tested" if code is None else code.replace("_", " ")


def signed(value, digits=3):
    """A difference, with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def number(value):
    """A number or a dash."""
    return "–" if value is None else f"{value:.4g}"


def interval(pair, digits=3, plain=False):
    """An interval or a dash."""
    if pair is None or None in pair:
        return "–"
    return " … ".join(number(edge) if plain else signed(edge, digits) for edge in pair)


def p_value(p):
    """A p-value or a dash."""
    return "–" if p is None else f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"
