"""The figures of a report in reading order, each with what stands above, below and instead of it."""

from dataclasses import dataclass
from typing import Any

from vqkit.analysis import pictures, plots, shown
from vqkit.formats import campaign


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure of the report: ``draw`` is a function of the colours; ``alt`` says it to who can't see it."""

    draw: Any
    title: str
    caption: str
    alt: str = ""


def of_report(view, folder, setting):
    """name → ``Picture``, in the order of report.md."""
    metric, alpha = plots.SHORT[view.metric], view.value["analysis"]["plan"]["alpha"]
    three = dict.fromkeys((view.reference, view.best, view.worst))
    of = {label: shown.read_arm(folder, view.table, label, view.mark) for label in three}
    originals, seed = campaign.text_to_images(setting["originals"]), pictures.common_seed(of)
    of_seed = "" if seed is None else f", seed {seed}"
    names = ", ".join(pictures.named(view, label) for label in of)
    half = plots.MOST_PANELS // 2
    ends = f" The {half} best and the {half} worst arms." if len(view.arms) > plots.MOST_PANELS else ""
    most = f" At most {shown.MOST_RUNS} runs an arm are drawn." if len(view.value["seeds"]) > shown.MOST_RUNS else ""
    few = len(view.arms) < len(view.everyone)
    drawn = f" Drawn are {len(view.arms)} of {len(view.everyone)} arms, the strongest each way." if few else ""
    return {
        "heatmap": Picture(
            draw=lambda ink: plots.heatmap(view, ink),
            title="Effect of every arm at every mark",
            caption=(
                "Mean paired difference to the reference of the same seed; a stronger colour is a larger effect, "
                "blue improves, orange worsens. ● detected, ≈ equivalent, ? inconclusive, – underpowered, ⌊ ⌈ void "
                f"at floor or ceiling; no sign at epoch 0, which is never tested. ◂ is the budget.{drawn}"
            ),
        ),
        "slopes": Picture(
            draw=lambda ink: plots.slopes(view, ink),
            title=f"Every seed at epoch {view.mark}",
            caption=(
                f"{metric} of the reference and of the arm, one line a seed. A dashed line is a pair with a run "
                f"that did not complete: the contract’s intention-to-treat value stands there.{ends}"
            ),
        ),
        "trajectories": Picture(
            draw=lambda ink: plots.trajectories(view, ink),
            title="Effect against training",
            caption=(
                f"Mean paired difference with its t interval (level {1 - alpha:g}, not adjusted for the number of "
                f"cells). The band is ±δ_min, the smallest difference that matters, declared beforehand.{ends}"
            ),
        ),
        "guardrails": Picture(
            draw=lambda ink: plots.forest(view, ink),
            title=f"What it costs in reconstruction, at epoch {view.mark}",
            caption=(
                "Difference to the reference with one-sided limits and the margin that the contract allows "
                f"(dashed). ● ok, ◆ inconclusive, ✕ broken, by the margin or by the absolute limit.{drawn}"
            ),
        ),
        "sensitivity": Picture(
            draw=lambda ink: plots.sensitivity(view, ink),
            title="How strongly the two metrics respond",
            caption=(
                "The largest standardized effect, |mean| / √(sd² + (δ_min/2)²), at each mark: of an arm that "
                "improves and keeps its guardrails (up), of one that worsens (down). Full colour: the metric that "
                "the report follows."
            ),
        ),
        "usage": Picture(
            draw=lambda ink: pictures.usage(view, ink, of),
            title=f"Use of the codebook at epoch {view.mark}",
            caption=(
                "Codes from the most to the least used, mean over completed runs. A flat line is an even codebook; "
                "one that falls steeply or ends early is a collapsed one."
            ),
        ),
        "strips": Picture(
            draw=lambda ink: pictures.strips(view, ink, of, originals),
            title=f"What it looks like at epoch {view.mark}",
            caption=(
                f"{len(originals)} evaluation images, evenly spread over the split and the same for every run, and "
                f"their reconstructions{of_seed}. Above each strip stand PSNR and codes used of that run over the "
                "whole evaluation split."
            ),
            alt=f"{len(originals)} evaluation images in a row, below them reconstructions by {names}{of_seed}.",
        ),
        "curves": Picture(
            draw=lambda ink: pictures.curves(view, ink, of),
            title="How these arms trained",
            caption=(
                "Above: mean of each loss over an epoch, on a log scale. Below: measurements at the marks, on the "
                "evaluation split. Lines are means over completed runs of the arm, bands their range, the dotted "
                f"line is epoch {view.mark}.{most}"
            ),
            alt=f"Losses over epochs and measurements over marks of {names}: mean over seeds with range.",
        ),
        "surface": Picture(
            draw=lambda ink: plots.fitted(view, ink),
            title="Fitted surface of each numeric knob",
            caption=(
                "Points are observed means of arms that move this knob alone, lines the fit over log level × log epoch."
            ),
        ),
        "power": Picture(
            draw=lambda ink: plots.power_curve(view, ink),
            title="How many seeds a confirmatory trial needs",
            caption=(
                "Power of the paired t-test for δ_min. In the shaded part no sign-flip test can reach α. The dot "
                "is what to plan with: enough for the t-test and, by simulation, for the sign-flip test."
            ),
        ),
    }
