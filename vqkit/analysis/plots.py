"""The figures of a calibration. Each function takes a ``View`` and the colours to draw with, and returns a Figure.

Every figure names contract, dataset, device and cells in its last line (``draw.render`` writes it), so that it can
travel alone.
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vqkit.analysis import draw, power, surface
from vqkit.formats import knobs

WIDTH = 7.6  # inches
MOST_TICKS = 8
MOST_PANELS = 12
SHORT = {"normalized_perplexity": "perplexity / K", "utilization": "utilization"}
VERDICT_SIGNS = {
    "detected": "●", "equivalent": "≈", "inconclusive": "?", "underpowered": "–", "void_floor": "⌊",
    "void_ceiling": "⌈",
}  # fmt: skip


def heatmap(view, ink):
    """Arms × marks, one panel a candidate metric: effect, and a sign for the verdict."""
    rows, marks = len(view.arms), view.value["marks"]
    figure = Figure(figsize=(WIDTH, 1.3 + 0.27 * rows))
    panels = figure.subplots(1, len(view.metrics), squeeze=False, sharey=True)[0]
    for panel, metric in zip(panels, view.metrics, strict=True):
        largest = (
            max((abs(view.effect(arm, mark, metric)["mean"]) for arm in view.arms for mark in marks), default=0) or 1
        )
        for row, arm in enumerate(view.arms):
            for column, mark in enumerate(marks):
                one = view.effect(arm, mark, metric)
                share = abs(one["mean"]) / largest
                colour = ink["better"] if one["mean"] > 0 else ink["worse"]
                box = (column - 0.5, row - 0.5), 1, 1
                panel.add_patch(Rectangle(*box, facecolor=colour, alpha=round(0.65 * share, 3), linewidth=0))
                sign = VERDICT_SIGNS.get(one["verdict"], "")
                text = f"{one['mean']:+.3f} {sign}".strip().replace("-", "−")
                weight = "bold" if one["verdict"] == "detected" else "normal"
                look = {"ha": "center", "va": "center", "fontsize": 7.5, "weight": weight}
                panel.text(column, row, text, color=ink["ink"], in_layout=False, **look)
        panel.set(xlim=(-0.5, len(marks) - 0.5), ylim=(rows - 0.5, -0.5))
        panel.set_xticks(range(len(marks)), [_epoch(mark, view) for mark in marks])
        panel.set_yticks(range(rows), view.arms)
        panel.tick_params(length=0)
        panel.set_xlabel("epoch")
        panel.set_title(f"{SHORT[metric]}{' (primary)' * (metric == view.value['decision']['primary_metric'])}")
    return figure


def best_and_worst(arms):
    """Arms that get a panel of their own: all, or as many from both ends of their order."""
    return arms if len(arms) <= MOST_PANELS else arms[: MOST_PANELS // 2] + arms[-MOST_PANELS // 2 :]


def slopes(view, ink):
    """Per-seed pairs at the decision's mark: the reference on the left, an arm on the right."""
    chosen = best_and_worst(view.arms)
    figure = Figure(figsize=(WIDTH, 2.6 * -(-len(chosen) // 3) + 0.2))
    panels = figure.subplots(-(-len(chosen) // 3), 3, squeeze=False, sharey=True)
    values = view.arrays.values[view.metric][:, view.value["marks"].index(view.mark)]
    position = {label: i for i, label in enumerate(view.arrays.labels)}
    for panel, arm in zip(panels.flat, chosen, strict=False):
        lost = view.arrays.imputed[0] | view.arrays.imputed[position[arm]]
        for pair, imputed in zip(values[[0, position[arm]]].T, lost, strict=True):
            colour = ink["muted"] if pair[0] == pair[1] else ink["better"] if pair[1] > pair[0] else ink["worse"]
            panel.plot([0, 1], pair, "o--" if imputed else "o-", color=colour, markersize=3.5, alpha=0.85)
        panel.set_title(arm)
        panel.set_xticks([0, 1], ["reference", "arm"])
        panel.set_xlim(-0.25, 1.25)
        panel.grid(axis="y", color=ink["line"], linewidth=0.5)
    for panel in panels.flat[len(chosen) :]:
        panel.set_visible(False)
    for row in panels:
        row[0].set_ylabel(SHORT[view.metric])
    return figure


def trajectories(view, ink):
    """Effect with its t interval against epochs for each arm, both candidate metrics, and the ±δ_min band."""
    chosen = best_and_worst(view.arms)
    columns, marks = 3, view.value["marks"]
    lines = -(-len(chosen) // columns)
    figure = Figure(figsize=(WIDTH, 1.75 * lines + 0.5))
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for panel, arm in zip(panels.flat, chosen, strict=False):
        panel.axhspan(-view.delta[view.metric], view.delta[view.metric], color=ink["band"], alpha=0.2, linewidth=0)
        panel.axhline(0, color=ink["muted"], linewidth=0.7)
        for i, metric in enumerate(view.metrics):
            ones = [view.effect(arm, mark, metric) for mark in marks]
            colour, style = (ink["ink"], "o-") if metric == view.metric else (ink["muted"], "s--")
            spots = np.arange(len(marks)) + 0.12 * i
            panel.plot(spots, [one["mean"] for one in ones], style, color=colour, markersize=3.5, label=SHORT[metric])
            known = [(x, one["t_interval"]) for x, one in zip(spots, ones, strict=True) if one["t_interval"]]
            if known:
                panel.vlines(
                    [x for x, _ in known],
                    [low for _, (low, _) in known],
                    [high for _, (_, high) in known],
                    color=colour,
                    linewidth=1,
                )
        panel.set_title(arm)
        panel.set_xticks(range(len(marks)), marks)
        panel.grid(axis="y", color=ink["line"], linewidth=0.5)
    for panel in panels.flat[len(chosen) :]:
        panel.set_visible(False)
    for row in panels:
        row[0].set_ylabel("arm − reference")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    for panel in panels.flat[max(0, len(chosen) - columns) : len(chosen)]:
        panel.tick_params(labelbottom=True)
        panel.set_xlabel("epoch")
    return figure


def forest(view, ink):
    """Guardrails at the decision's mark: difference to the reference, one-sided limits, the margin."""
    guards = view.value["analysis"]["plan"]["guardrails"]
    records = {(one["arm"], one["metric"]): one for one in view.value["guardrails"] if one["mark"] == view.mark}
    figure = Figure(figsize=(WIDTH, 1.3 + 0.25 * len(view.arms)))
    panels = figure.subplots(1, max(1, len(guards)), squeeze=False, sharey=True)[0]
    looks = {"ok": ("better", "o"), "inconclusive": ("muted", "D"), "broken": ("worse", "X")}
    for panel, guard in zip(panels, guards, strict=False):
        sign = -1 if guard["metric"] == "mse" else 1
        panel.axvline(-sign * guard["margin"], color=ink["worse"], linestyle="--", linewidth=1)
        panel.axvline(0, color=ink["muted"], linewidth=0.7)
        for row, arm in enumerate(view.arms):
            one = records[arm, guard["metric"]]
            name, marker = looks[one["status"]]
            if one["low"] is not None:
                panel.hlines(row, one["low"], one["high"], color=ink[name], linewidth=1.4)
            panel.plot(one["mean"], row, marker, color=ink[name], markersize=5)
        panel.set_yticks(range(len(view.arms)), view.arms)
        panel.set_ylim(len(view.arms) - 0.5, -0.5)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.grid(axis="x", color=ink["line"], linewidth=0.5)
        panel.set_title(guard["metric"])
        panel.set_xlabel(f"arm − reference ({'dB, ' * (guard['metric'] == 'psnr')}margin dashed)")
    if not guards:
        panels[0].text(0.5, 0.5, "the contract declares no guardrail", ha="center", color=ink["muted"])
    return figure


def sensitivity(view, ink):
    """How strongly each candidate responds at each mark: largest standardized improvement and worsening."""
    figure = Figure(figsize=(WIDTH, 2.7))
    panel = figure.subplots()
    marks = [mark for mark in view.value["marks"] if mark > 0]
    width = 0.8 / max(1, len(view.metrics))
    for i, metric in enumerate(view.metrics):
        ones = {one["mark"]: one for one in view.value["assessments"] if one["metric"] == metric}
        spots = np.arange(len(marks)) - 0.4 + width * (i + 0.5)
        fade = 1.0 if metric == view.metric else 0.5
        panel.bar(
            spots, [ones[mark]["sensitivity"]["better"] for mark in marks], width * 0.9, color=ink["better"], alpha=fade
        )
        panel.bar(
            spots, [-ones[mark]["sensitivity"]["worse"] for mark in marks], width * 0.9, color=ink["worse"], alpha=fade
        )
        for x, mark in zip(spots, marks, strict=True):
            star = " ★" if ones[mark]["responsive"] else ""
            panel.text(
                x,
                ones[mark]["sensitivity"]["better"],
                f"{SHORT[metric]}{star}",
                ha="center",
                va="bottom",
                fontsize=7,
                color=ink["ink"],
            )
    panel.axhline(0, color=ink["muted"], linewidth=0.7)
    panel.margins(y=0.15)
    panel.set_xticks(range(len(marks)), [_epoch(mark, view) for mark in marks])
    panel.set(xlabel="epoch (★ responsive)", ylabel="standardized effect")
    return figure


def fitted(view, ink):
    """Observed mean effects of arms that move one numeric knob, and the fitted surface at each mark."""
    found = next(one for one in view.value["surface"] if one["metric"] == view.metric)
    arms = {arm["label"]: arm["effective"] for arm in view.value["arms"]}
    baseline = arms[view.reference]
    single = {name: [] for name in found["knobs"]}
    for label, effective in arms.items():
        moved = [name for name in knobs.KNOBS if effective[name] != baseline[name]]
        if len(moved) == 1 and moved[0] in single and label not in found["excluded"]:
            single[moved[0]].append((effective[moved[0]], label))
    shown = [name for name in single if single[name]] or [None]
    figure = Figure(figsize=(WIDTH, 2.9))
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    marks = [mark for mark in view.value["marks"] if mark > 0]
    for panel, name in zip(panels, shown, strict=True):
        if name is None:
            panel.text(0.5, 0.5, found["note"] or "no arm moves one numeric knob", ha="center", color=ink["muted"])
            continue
        levels = sorted([*single[name], (baseline[name], None)], key=lambda pair: pair[0])
        spots = [surface.position(name, level, baseline[name]) for level, _ in levels]
        for i, mark in enumerate(marks):
            fade = 0.35 + 0.65 * (i + 1) / len(marks)
            means = [view.effect(label, mark)["mean"] if label else 0.0 for _, label in levels]
            panel.plot(spots, means, "osD^v"[i % 5], color=ink["ink"], alpha=fade, markersize=4, label=f"epoch {mark}")
            if found["status"] == "fitted":
                grid = np.linspace(min(spots), max(spots), 41)
                curve = [surface.predict_at(found, name, x, mark, view.value["marks"]) for x in grid]
                panel.plot(grid, curve, "-", color=ink["ink"], alpha=fade, linewidth=1)
        panel.axhline(0, color=ink["muted"], linewidth=0.7)
        step = -(-len(levels) // MOST_TICKS)
        panel.set_xticks(spots[::step], [f"{level:g}" for level, _ in levels[::step]])
        panel.set_title(name)
        panel.grid(axis="y", color=ink["line"], linewidth=0.5)
    panels[0].set_ylabel(f"{SHORT[view.metric]}: arm − reference")
    if panels[0].lines:
        panels[0].legend(fontsize=7.5, frameon=False)
    return figure


def power_curve(view, ink):
    """Power against seeds for δ_min, with σ and with its upper limit, for the decision's metric."""
    size = next(one for one in view.value["sample_size"] if one["metric"] == view.metric)
    plan = view.value["analysis"]["plan"]
    figure = Figure(figsize=(WIDTH, 2.7))
    kinds = (("sigma", "at_sigma", "σ", "-"), ("sigma_upper", "at_sigma_upper", "upper 80 % limit of σ", "--"))
    curves = [(size[key], size[ways]["plan"], text, style) for key, ways, text, style in kinds if size[ways]]
    _draw_power(figure.subplots(), ink, curves, size["delta"], plan["alpha"], plan["power"])
    return figure


def _draw_power(panel, ink, curves, delta, alpha, goal):
    """Curves are (σ, seeds to plan, name, line style)."""
    if not curves:
        panel.axis("off")
        panel.text(0.5, 0.5, f"no number of seeds can be named for δ = {delta:.3g}", ha="center", color=ink["muted"])
        return
    most = max(12, *(needed + 6 for _, needed, _, _ in curves))
    seeds = np.unique(np.linspace(2, most, min(most - 1, 60)).astype(int))
    for sigma, needed, text, style in curves:
        label = f"{text} = {sigma:.3g}: {needed} seeds"
        panel.plot(seeds, power.curve(sigma, delta, alpha, seeds), style, color=ink["ink"], label=label)
        panel.plot(needed, power.t_power(needed, sigma, delta, alpha), "o", color=ink["better"], markersize=6)
    panel.axhline(goal, color=ink["muted"], linewidth=0.8, linestyle=":")
    panel.axvspan(seeds[0], power.seeds_floor(alpha) - 0.5, color=ink["band"], alpha=0.2, linewidth=0)
    panel.text(seeds[0], 1.04, " no attainable p", fontsize=7.5, color=ink["muted"], va="bottom")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set(ylim=(0, 1.03), xlabel="seeds", ylabel=f"power for δ = {delta:.3g}")
    panel.grid(axis="y", color=ink["line"], linewidth=0.5)
    panel.legend(fontsize=8, frameon=False, loc="lower right")


def power_file(answer, kind):
    """The plot of the ``power`` command as bytes, of ``kind`` svg or png."""

    def drawing(ink):
        figure = Figure(figsize=(WIDTH, 2.9))
        curves = [(answer["sigma"], answer["plan"], "σ", "-")]
        _draw_power(figure.subplots(), ink, curves, answer["delta"], answer["alpha"], answer["power"])
        return figure

    footer = f"alpha {answer['alpha']:g} two-sided, paired by seed, power asked for {answer['power']:g}"
    png, svg, _ = draw.render(drawing, "power", footer)
    return png if kind == "png" else svg


def _epoch(mark, view):
    return f"{mark} ◂" if mark == view.value["decision"]["budget_mark"] else str(mark)
