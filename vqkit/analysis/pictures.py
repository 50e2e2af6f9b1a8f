"""What the runs of reference, best and worst arm look like: code usage, training curves, reconstructions.

Each function takes a ``View``, the colours to draw with, and arm → ``Shown``, and returns a Figure.
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vqkit.analysis.plots import SHORT, WIDTH

LOSSES = {
    "reconstruction_loss": "reconstruction loss",
    "codebook_loss": "codebook loss",
    "commitment_loss": "commitment ÷ mean(z²)",
}
MEASURED = ("psnr", "normalized_perplexity", "utilization")
GAP = 2  # pixels between two images of a strip


def looks(view):
    """Arm → (name of its colour, line style, its role as a reader knows it), in reading order."""
    return {
        view.worst: ("worse", "-.", "worst"),
        view.best: ("better", "--", "best"),
        view.reference: ("ink", "-", "reference"),
    }


def named(view, label):
    """An arm's label and role."""
    role = looks(view)[label][2]
    return label if label == role else f"{label} ({role})"


def usage(view, ink, shown):
    """Share of tokens of each code from the most to the least used, mean over seeds, log scale."""
    figure = Figure(figsize=(WIDTH, 2.9))
    panel = figure.subplots()
    for label, one in shown.items():
        if not one.counts.size:
            continue
        name, style, _ = looks(view)[label]
        shares = -np.sort(-one.counts / one.counts.sum(1, keepdims=True), axis=1).mean(0)
        text = f"{named(view, label)}, {len(one.counts)} runs"
        ranks = np.arange(1, len(shares) + 1)
        panel.plot(ranks, np.where(shares > 0, shares, np.nan), style, color=ink[name], label=text)
        panel.axhline(1 / len(shares), color=ink["muted"], linewidth=0.7, linestyle=":")
    panel.set_yscale("log")
    panel.set(
        xlabel="code, by rank (dotted: uniform use; a line that ends: codes never used)", ylabel="share of tokens"
    )
    panel.grid(axis="y", color=ink["line"], linewidth=0.5)
    if panel.lines:
        panel.legend(fontsize=8, frameon=False)
    return figure


def curves(view, ink, shown):
    """Losses over epochs and measurements over marks: mean over seeds, and their range as a band."""
    figure = Figure(figsize=(WIDTH, 4.6))
    panels = figure.subplots(2, 3, sharex=True)
    for label, one in shown.items():
        name, style, _ = looks(view)[label]
        look = {"color": ink[name], "linestyle": style, "label": named(view, label)}
        for panel, column in zip(panels[0], LOSSES, strict=True):
            if one.curves:
                scale = one.curves["latent_power"] if column == "commitment_loss" else 1.0
                epochs = np.arange(1, one.curves[column].shape[1] + 1)
                _band(panel, epochs, one.curves[column] / scale, look)
        for panel, metric in zip(panels[1], MEASURED, strict=True):
            if one.marks[metric].size:
                _band(panel, view.value["marks"], one.marks[metric], look | {"marker": "o", "markersize": 3})
    for panel, title in zip(
        panels.flat, (*LOSSES.values(), *(SHORT.get(name, name) for name in MEASURED)), strict=True
    ):
        panel.set_title(title)
        panel.axvline(view.mark, color=ink["muted"], linewidth=0.7, linestyle=":")
        panel.grid(axis="y", color=ink["line"], linewidth=0.5)
    for panel in panels[0]:
        if panel.get_legend_handles_labels()[0]:
            panel.set_yscale("log")
            low, high = panel.get_ylim()
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.yaxis.set_minor_formatter(NullFormatter())
        else:
            panel.text(0.5, 0.5, "no curves", ha="center", transform=panel.transAxes, color=ink["muted"])
    panels[1, 0].set_ylabel("dB")
    for panel in panels[1]:
        panel.set_xlabel("epoch")
        panel.set_xticks(view.value["marks"])
    handles, labels = panels[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=8, frameon=False)
    return figure


def _band(panel, x, rows, look):
    """The mean over rows [S, X] as a line and their range around it."""
    known = ~np.isnan(rows).any(0)
    x, rows = np.asarray(x)[known], rows[:, known]
    panel.fill_between(x, rows.min(0), rows.max(0), color=look["color"], alpha=0.18, linewidth=0)
    panel.plot(x, rows.mean(0), **look)


def common_seed(shown):
    """The first seed whose reconstructions every arm has; None where there is none."""
    seeds = set.intersection(*(set(one.samples) for one in shown.values()))
    return min(seeds, default=None)


def strips(view, ink, shown, originals):
    """The originals, and below them the reconstructions by each arm: the same images, seed and mark."""
    seed = common_seed(shown)
    if seed is None:
        figure = Figure(figsize=(WIDTH, 1.2))
        panel = figure.subplots()
        panel.axis("off")
        panel.text(0.5, 0.5, "no seed on which all of these arms completed", ha="center", color=ink["muted"])
        return figure
    rows = [("original", originals)]
    for label, one in shown.items():
        at = view.row(label, seed)
        text = f"{named(view, label)}: {at['psnr']:.1f} dB, {at['utilization']:.0%} of the codes used"
        rows.append((text, one.samples[seed]))
    figure = Figure(figsize=(WIDTH, 1.15 * len(rows) + 0.25))
    for panel, (text, images) in zip(figure.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        panel.imshow(_tiled(images), interpolation="none", interpolation_stage="rgba")
        panel.set_axis_off()
        panel.set_title(text, pad=3)
    return figure


def _tiled(images):
    """uint8 [n, 32, 32, 3] side by side as RGBA with clear gaps."""
    size = images.shape[1]
    strip = np.zeros((size, len(images) * (size + GAP) - GAP, 4), np.uint8)
    for i, image in enumerate(images):
        left = i * (size + GAP)
        strip[:, left : left + size, :3], strip[:, left : left + size, 3] = image, 255
    return strip
