"""report.html, report.md and figures/: a calibration for people. Everything is drawn from calibration.json and scores.

The page is one file: styles and figures inline, no script, no network, light or dark by the reader's choice,
printable, readable on a phone. The same calibration and scores give the same bytes.
"""

import html
import platform
from importlib.metadata import version

from vqkit import __version__
from vqkit.analysis import calibration, load, plots
from vqkit.analysis.page import CSS
from vqkit.formats import files

FIGURES = "figures"
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "matplotlib")
MOST_ROWS = 12_000  # of the full table on the page; results.csv has them all


def write(folder, loaded, value, digest):
    """Write every file of the report into the campaign folder; their names, as they lie there."""
    view = plots.View(value, loaded)
    counts = _counts(loaded, view)
    figures = _figures(view, counts)
    (folder / FIGURES).mkdir(exist_ok=True)
    drawn = {}
    for name, (draw, _, _) in figures.items():
        for kind in ("svg", "png"):
            files.replace(folder / FIGURES / f"{name}.{kind}", plots.render(draw, name, kind, view.footer))
        drawn[name] = plots.render(draw, name, "themed", view.footer)
    files.replace(folder / "report.html", page(view, figures, drawn, digest).encode())
    files.replace(folder / "report.md", markdown(view, figures, digest).encode())
    return ["report.html", "report.md", FIGURES]


def terminal(value, paths):
    """What the command prints last: the arms at the decision's mark, the decision, and where the files are."""
    view = plots.View(value)
    head = ("arm", "effect", "interval", "p", "seeds", "verdict", "guardrails")
    rows = [[str(cell) for cell in _arm_row(view, label)] for label in view.arms]
    rows = [[row[0], row[1], row[2], row[3], row[4], row[5], row[-1]] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [f"{view.metric}, arm − reference at epoch {view.mark}", ""]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    if len(view.everyone) > len(view.arms):
        lines.append(f"({len(view.arms)} of {len(view.everyone)} arms, the strongest each way)")
    return "\n".join([*lines, "", plots.provenance(value), calibration.sentence(value), "", *map(str, paths)])


def _counts(loaded, view):
    mark = view.mark
    position = {label: i for i, label in enumerate(loaded.labels)}
    return {label: load.read_counts(loaded, position[label], mark) for label in (view.reference, view.best, view.worst)}


def _figures(view, counts):
    """name → (draw, title, what it shows)."""
    metric = plots.SHORT[view.metric]
    shown = (
        ""
        if len(view.everyone) == len(view.arms)
        else f" {len(view.arms)} of {len(view.everyone)} arms are drawn, the strongest each way; the tables have all."
    )
    return {
        "heatmap": (
            lambda ink: plots.heatmap(view, ink), "Effect of every arm at every mark",
            "Mean paired difference to the reference of the same seed; stronger colour is a larger effect, blue improves, "
            "orange worsens. ● detected, ≈ equivalent, ? inconclusive, – underpowered, ⌊ ⌈ void at floor or ceiling; "
            f"no sign at epoch 0, which is never tested. ◂ marks the budget.{shown}",
        ),
        "slopes": (
            lambda ink: plots.slopes(view, ink), f"Every seed at epoch {view.mark}",
            f"{metric} of the reference and of the arm for each seed. A dashed line is a pair with a run that did not "
            "complete; its intention-to-treat value stands there.",
        ),
        "trajectories": (
            lambda ink: plots.trajectories(view, ink), "Effect against training",
            f"Mean paired difference with its t interval (level {1 - view.value['analysis']['plan']['alpha']:g}, not adjusted for "
            "the number of cells). The band is ±δ_min, the smallest difference that matters, declared beforehand.",
        ),
        "guardrails": (
            lambda ink: plots.forest(view, ink), f"What it costs in reconstruction, at epoch {view.mark}",
            "Difference to the reference with its limits (one-sided, each at level 1 − α) and the margin that the contract "
            "allows. ● ok, ◆ inconclusive, ✕ broken (by the margin or by the absolute limit).",
        ),
        "sensitivity": (
            lambda ink: plots.sensitivity(view, ink), "How strongly the two metrics respond",
            "The largest standardized improvement (up) and worsening (down) over all arms at each mark.",
        ),
        "usage": (
            lambda ink: plots.usage(view, ink, counts), f"Use of the codebook at epoch {view.mark}",
            "Codes from the most to the least used. A flat line is an even codebook; a line that falls or ends early is a "
            "collapsed one.",
        ),
        "surface": (
            lambda ink: plots.fitted(view, ink), "Fitted surface of each numeric knob",
            "Points are observed means of arms that move this knob alone; lines are the fit over log level × log epoch.",
        ),
        "power": (
            lambda ink: plots.power_curve(view, ink), "How many seeds a confirmatory trial needs",
            "Power of the paired t-test for δ_min. In the shaded part no sign-flip test can reach α.",
        ),
    }  # fmt: skip


def page(view, figures, drawn, digest):
    """report.html as text."""
    value = view.value
    title = f"Calibration of {value['campaign']['name']}"
    parts = [
        f"<header><h1>{_e(title)}</h1><p class=source>{_e(view.footer)}</p></header>",
        _decision(view),
        _section("arms", f"Arms at epoch {view.mark}", _table(*_arms_table(view), caption=_arms_caption(view))),
    ]
    for name in ("heatmap", "slopes", "trajectories", "guardrails", "sensitivity"):
        parts.append(_figure(name, figures, drawn, view))
    parts.append(
        _section(
            "why",
            "Why this mark and this metric",
            _table(*_assessments(view), caption=_cite(view, "Every candidate at every trained mark.")),
        )
    )
    parts.append(_figure("usage", figures, drawn, view))
    parts.append(_figure("surface", figures, drawn, view, _surface_notes(view)))
    parts.append(
        _figure("power", figures, drawn, view, _table(*_sizes(view), caption=_cite(view, "Sample size three ways.")))
    )
    parts.append(_section("reversals", "Rank reversals between marks", _reversals(view)))
    parts.append(_section("stance", "What was expected", _table(*_stances(view), caption=_cite(view, _STANCE_NOTE))))
    parts.append(_section("cells", "Cells and failures", _cells(view)))
    parts.append(
        _section(
            "all", "Every arm, mark and metric", f"<details><summary>Show the table</summary>{_full(view)}</details>"
        )
    )
    parts.append(_section("method", "How to read this", _method(view)))
    parts.append(_section("digests", "Digests and versions", _table(*_digests(view, digest))))
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_e(title)}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def markdown(view, figures, digest):
    """report.md: the same decision, arms and figures for places that show Markdown."""
    value = view.value
    lines = [
        f"# Calibration of {value['campaign']['name']}",
        "",
        view.footer,
        "",
        f"**{calibration.sentence(value)}**",
        "",
    ]
    lines += [f"- {reason['text']}" for reason in value["decision"]["reasons"]]
    head, rows = _arms_table(view)
    lines += ["", f"## Arms at epoch {view.mark}", "", _arms_caption(view), "", *_pipes(head, rows)]
    for name, (_, title, text) in figures.items():
        lines += ["", f"## {title}", "", f"![{title}]({FIGURES}/{name}.png)", "", text]
    head, rows = _sizes(view)
    lines += ["", *_pipes(head, rows), "", "## Digests and versions", "", *_pipes(*_digests(view, digest)), ""]
    return "\n".join(lines)


def _pipes(head, rows):
    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def _decision(view):
    value = view.value
    decision, cost = value["decision"], value["confirmatory"]
    good = decision["status"] == "calibrated"
    facts = []
    if good:
        size = next(one for one in value["sample_size"] if one["metric"] == decision["primary_metric"])
        facts = [
            ("budget", f"{decision['budget_mark']} epochs"),
            ("primary metric", decision["primary_metric"].replace("_", " ")),
            ("seeds to plan", str(size["at_sigma_upper"]["plan"]) if size["at_sigma_upper"] else "not estimable"),
            ("confirmatory trial", _hours(cost)),
        ]
    boxes = "".join(f"<div><dt>{_e(name)}</dt><dd>{_e(text)}</dd></div>" for name, text in facts)
    lists = ""
    if good:
        lists += f"<p><b>Known better:</b> {_e(', '.join(decision['known_better']))}<br><b>Known worse:</b> {_e(', '.join(decision['known_worse']))}</p>"
    lists += "<ul>" + "".join(f"<li>{_e(reason['text'])}</li>" for reason in decision["reasons"]) + "</ul>"
    if decision["what_to_change"]:
        lists += (
            "<h3>What to change</h3><ul>"
            + "".join(f"<li>{_e(one['text'])}</li>" for one in decision["what_to_change"])
            + "</ul>"
        )
    word = "Calibrated" if good else "Refused: this campaign can’t choose a budget"
    dl = f"<dl>{boxes}</dl>" if boxes else ""
    return f'<section id="decision" class="decision {decision["status"]}"><h2>{word}</h2>{dl}{lists}<p class=source>{_e(view.footer)}</p></section>'


def _hours(cost):
    if cost["hours"] is None:
        return "cost not measured"
    hours = (
        f"{cost['hours']:.2g}" if cost["hours"] >= 0.095 else f"{60 * cost['hours']:.1f} min, i.e. {cost['hours']:.2g}"
    )
    return f"{hours} {cost['unit']} ({cost['cells']} runs)"


def _arm_row(view, label):
    """A row of the arms table: effect, certainty, and what was lost in reconstruction."""
    one = view.effect(label)
    guards = [guard for guard in view.value["guardrails"] if guard["arm"] == label and guard["mark"] == view.mark]
    worst = max(
        (guard["status"] for guard in guards), key=("ok", "inconclusive", "broken").index, default="none declared"
    )
    agree = f"{max(one['positive'], one['negative'])}/{one['n']} {'+' if one['positive'] >= one['negative'] else '−'}"
    return [
        label, _signed(one["mean"]), _interval(one["t_interval"]), _p(one["p_adjusted"]), agree, _words(one["verdict"]),
        *(_signed(guard["mean"], 2 if guard["metric"] == "psnr" else 3) for guard in guards), worst,
    ]  # fmt: skip


def _arms_table(view):
    guards = [f"Δ{guard['metric']}" for guard in view.value["analysis"]["plan"]["guardrails"]]
    head = ["arm", "effect", "interval", "p, joint", "same sign", "verdict", *guards, "guardrails"]
    return head, [_arm_row(view, label) for label in view.everyone]


def _arms_caption(view):
    value = view.value
    text = (
        f"{view.metric}: arm − reference, paired by seed, {len(value['seeds'])} seeds. Smallest attainable p "
        f"{value['test']['p_attainable']:.4g}. “Inconclusive” and “underpowered” are not “no effect”."
    )
    return _cite(view, text)


def _assessments(view):
    head = ["metric", "epoch", "state", "responsive", "better, guardrails ok", "better, guardrails not ok", "worse"]
    rows = [
        [
            one["metric"],
            one["mark"],
            one["state"],
            "yes" if one["responsive"] else "no",
            _names(one["better"]),
            _names(one["blocked"]),
            _names(one["worse"]),
        ]
        for one in view.value["assessments"]
    ]
    return head, rows


def _sizes(view):
    head = [
        "metric",
        "σ of differences",
        "interval",
        "upper 80 %",
        "δ_min",
        "normal",
        "t",
        "floor",
        "plan",
        "plan at upper σ",
    ]
    rows = []
    for one in view.value["sample_size"]:
        ways, upper = one["at_sigma"], one["at_sigma_upper"]
        rows.append(
            [
                one["metric"],
                _plain(one["sigma"]),
                _interval(one["sigma_interval"], signed=False),
                _plain(one["sigma_upper"]),
                f"{one['delta']:g}",
            ]
            + ([ways["normal"], ways["t"], ways["permutation_floor"], ways["plan"]] if ways else ["–"] * 4)
            + [upper["plan"] if upper else "–"]
        )
    return head, rows


def _surface_notes(view):
    parts = []
    for one in view.value["surface"]:
        text = f"<b>{_e(one['metric'])}</b>: {_e(one['note'])}."
        if one["missing_interactions"]:
            pairs = ", ".join(" × ".join(pair) for pair in one["missing_interactions"])
            text += f" Not estimable, because no arm moves both: interaction of {_e(pairs)}."
        if one["excluded"]:
            text += f" Not on the surface (no numeric knob alone, or level 0 on a log scale): {_e(_names(one['excluded']))}."
        parts.append(f"<p>{text}</p>")
        if one["terms"]:
            rows = [
                [term["name"], _signed(term["estimate"], 4), _interval([term["low"], term["high"]], digits=4)]
                for term in one["terms"]
            ]
            caption = _cite(
                view,
                f"{one['metric']}: x is log10(level / baseline), epoch is log2, centred; R² {one['r_squared']:.3f}.",
            )
            parts.append(
                f"<details><summary>Terms</summary>{_table(['term', 'estimate', 'interval'], rows, caption=caption)}</details>"
            )
    return "".join(parts)


def _reversals(view):
    found = view.value["decision"]["rank_reversals"]
    intro = (
        f"{found['found']} of {found['compared']} orders of two arms at an earlier mark are reversed at the last mark, on every "
        "seed both times. This describes; it is not tested."
    )
    rows = [
        [
            one["metric"],
            one["mark"],
            one["ahead_at_mark"],
            _signed(one["difference_at_mark"]),
            one["last_mark"],
            one["ahead_at_last"],
            _signed(one["difference_at_last"]),
        ]
        for one in found["largest"]
    ]
    head = ["metric", "epoch", "ahead", "by", "epoch", "ahead", "by"]
    return f"<p>{intro}</p>" + (_table(head, rows, caption=_cite(view, "The largest reversals.")) if rows else "")


_STANCE_NOTE = "A stance needs authentic evidence: where a run of the arm or of the reference did not pass verification there is none."


def _stances(view):
    head = ["arm", "metric", "expected", "epoch", "stance", "reason"]
    rows = [
        [
            one["arm"],
            one["metric"],
            _words(one["expected"]),
            one["mark"],
            one["stance"] or "none",
            _words(one["reason"]),
        ]
        for one in view.value["stance"]
    ]
    return head, rows


def _cells(view):
    cells = view.value["cells"]
    intro = f"{cells['planned']} planned = {cells['complete']} complete + {cells['failed']} failed + {cells['missing']} missing. A cell that did not complete counts with the contract’s value."
    rows = [
        [arm["label"], arm["complete"], arm["failed"], _p(arm["p_fails_more"]), "yes" if arm["fails_more"] else "no"]
        for arm in view.value["arms"]
        if arm["failed"]
    ]
    head = ["arm", "complete", "not complete", "p, Holm", "fails more than the reference"]
    table = (
        _table(
            head, rows, caption=_cite(view, "Arms with cells that did not complete; Fisher’s exact test, one-sided.")
        )
        if rows
        else ""
    )
    lost = view.loaded.table
    lost = lost[(lost["state"] != "complete") & (lost["mark"] == view.value["marks"][0])]
    if len(lost):
        listed = [[row.arm, row.seed, row.state, row.run_id] for row in lost.itertuples()]
        table += _table(
            ["arm", "seed", "state", "run"], listed, caption=_cite(view, "Each cell that did not complete.")
        )
    return f"<p>{intro}</p>{table}"


def _full(view):
    head = [
        "arm",
        "epoch",
        "metric",
        "arm mean",
        "reference",
        "difference",
        "sd",
        "t interval",
        "bootstrap",
        "p",
        "p, joint",
        "+/−",
        "verdict",
    ]
    rows = [
        [
            one["arm"], one["mark"], one["metric"], _plain(one["arm_mean"]), _plain(one["reference_mean"]), _signed(one["mean"], 4),
            _plain(one["sd"]), _interval(one["t_interval"], 4), _interval(one["bootstrap_interval"], 4), _p(one["p"]),
            _p(one["p_adjusted"]), f"{one['positive']}/{one['negative']}", _words(one["verdict"]),
        ]
        for one in view.value["effects"][:MOST_ROWS]
    ]  # fmt: skip
    left = len(view.value["effects"]) - len(rows)
    note = f" {left} more rows are in calibration.json." if left else ""
    return _table(head, rows, caption=_cite(view, f"All effects.{note}"))


def _method(view):
    value = view.value
    plan, test = value["analysis"]["plan"], value["test"]
    how = (
        f"all {test['patterns']} sign patterns"
        if test["method"] == "exact"
        else f"{test['patterns']} random sign patterns (seeded)"
    )
    return (
        f"<p>Runs are paired by seed. All {test['family_cells']} cells (arms × trained marks × candidate metrics) are tested jointly by "
        f"flipping the signs of whole seeds, {how}; the statistic is {_e(test['statistic'].split(', ')[1])}, adjusted by step-down max-|T|. "
        f"α = {plan['alpha']:g}, two-sided. Quality metrics are a second family.</p>"
        "<p><b>detected</b>: adjusted p ≤ α. <b>equivalent</b>: two one-sided tests place the difference inside ±δ_min. "
        "<b>inconclusive</b>: neither; this is never “no effect”. <b>underpowered</b>: fewer seeds than the contract asks for, or "
        "no attainable p reaches α. <b>void</b>: arm and reference both at the floor or ceiling.</p>"
        "<p>A mark is <b>responsive</b> for a metric when some arm improves it with its guardrails ok and some arm worsens it, both detected "
        "with the same sign on every seed, and the metric is neither tied, floored nor at its ceiling. The budget is the smallest "
        "responsive mark. Epoch 0 is measured before the first step and is never a candidate. These rules are in the contract’s analysis "
        "plan and in the analysis code; the plan’s digest was fixed when the campaign was planned.</p>"
    )


def _digests(view, digest):
    value = view.value
    rows = [
        ["calibration", digest], ["campaign", value["campaign"]["digest"]], ["frozen scores", value["campaign"]["frozen"]],
        ["unblinding", value["campaign"]["unblinded"]], ["contract", value["contract"]["digest"]],
        ["analysis plan", value["analysis"]["digest"]], ["dataset", value["dataset"]["digest"]],
        ["environment", value["device"]["environment"]], ["source", value["source"]],
        ["versions", f"vqkit {__version__}, python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES)],
    ]  # fmt: skip
    return ["what", "value"], rows


def _figure(name, figures, drawn, view, more=""):
    _, title, text = figures[name]
    picture = f'<figure><div class=scroll role="img" aria-label="{_e(title)}">{drawn[name]}</div><figcaption>{_e(text)}</figcaption></figure>'
    return _section(name, title, picture + more)


def _section(anchor, title, body):
    return f'<section id="{anchor}"><h2>{_e(title)}</h2>{body}</section>'


_TONES = {
    "detected": "strong", "broken": "bad", "ok": "good", "supported": "good", "contradicted": "bad", "yes": "strong",
}  # fmt: skip


def _table(head, rows, caption=""):
    top = "".join(f"<th scope=col>{_e(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(_cell(cell, i) for i, cell in enumerate(row))}</tr>\n" for row in rows)
    label = f"<caption>{_e(caption)}</caption>" if caption else ""
    return f"<div class=scroll><table>{label}<thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>"


def _cell(cell, column):
    tone = f' class="{_TONES[cell]}"' if cell in _TONES else ""
    return f"<th scope=row>{_e(cell)}</th>" if column == 0 else f"<td{tone}>{_e(cell)}</td>"


def _cite(view, text):
    return f"{text} [{view.footer}]"


def _e(text):
    return html.escape(str(text))


def _names(labels, most=8):
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "") or "–"


def _words(code):
    return "not tested" if code is None else code.replace("_", " ")


def _signed(number, digits=3):
    return f"{number:+.{digits}f}".replace("-", "−")


def _plain(number):
    return "–" if number is None else f"{number:.4g}"


def _interval(pair, digits=3, signed=True):
    if pair is None or None in pair:
        return "–"
    return " … ".join(_signed(number, digits) if signed else f"{number:.4g}" for number in pair)


def _p(number):
    return "–" if number is None else f"{number:.4f}" if number >= 0.0001 else f"{number:.1e}"
