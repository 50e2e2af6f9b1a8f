"""report.html, report.md and figures/: a calibration for people, drawn from calibration.json and the scores.

The page is one file that reads alone: what was decided, then what it rests on, then how to read it, then digests.
Whatever shows a result names contract, dataset, device and cells. The same files give the same bytes.
"""

from vqkit.analysis import draw, figures, page, sentences, shown, tables
from vqkit.analysis.view import View, provenance
from vqkit.formats import calibration, files

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"


def write(folder, table, value, digest, setting_digest):
    """Write every file of the report into the campaign folder and return their names.

    Args:
        folder: the campaign folder.
        table: the results table that the calibration was made of.
        value, digest: the calibration and its digest.
        setting_digest: as ``frozen.json`` names it.
    """
    view = View(value, table)
    setting = shown.read_setting(folder, setting_digest, value["device"]["environment"])
    drawings = figures.of_report(view, folder, setting)
    bound = tables.digests(view, digest, setting["environment"])
    (folder / FIGURES).mkdir(exist_ok=True)
    drawn = {}
    for name, picture in drawings.items():
        png, svg, drawn[name] = draw.render(picture.draw, name, view.footer)
        files.replace(folder / FIGURES / f"{name}.png", png)
        files.replace(folder / FIGURES / f"{name}.svg", svg)
    files.replace(folder / HTML, html(view, drawings, drawn, bound).encode())
    files.replace(folder / MARKDOWN, markdown(view, drawings, bound).encode())
    return [HTML, MARKDOWN, FIGURES]


def terminal(value, paths):
    """What the command prints last: the arms at the decision's mark, the decision, and where the files are."""
    view = View(value)
    head, rows = tables.arms(view)
    shown = [row for row in rows if row[0] in set(view.arms)]
    lines = [f"{view.metric}, arm − reference at epoch {view.mark}", "", *tables.aligned(head, shown)]
    if len(rows) > len(shown):
        lines.append(f"({len(shown)} of {len(rows)} arms, the strongest each way)")
    return "\n".join([*lines, "", provenance(value), *sentences.in_words(value), "", *map(str, paths)])


def html(view, drawings, drawn, bound):
    """report.html as text."""
    title = f"{_kind(view)}: {view.value['campaign']['name']}"

    def picture(name, more=""):
        one = drawings[name]
        return page.section(name, one.title, page.figure(one.alt or one.title, drawn[name], one.caption) + more)

    def cited(table, caption):
        return page.table(*table, caption=f"{caption} [{view.footer}]")

    every = cited(tables.effects(view), _effects_caption(view))
    parts = [
        f'<header><h1>{page.escape(title)}</h1><p class="source">{page.escape(_subject(view))}</p></header>',
        _decision(view),
        page.section("arms", f"Arms at epoch {view.mark}", cited(tables.arms(view), _arms_caption(view))),
        *(picture(name) for name in ("heatmap", "slopes", "trajectories", "guardrails", "sensitivity")),
        "" if _is_trial(view) else page.section("why", _WHY_TITLE, cited(tables.assessments(view), _WHY)),
        *(picture(name) for name in ("usage", "strips", "curves")),
        picture("surface", _surface_notes(view, cited)),
        picture("power", cited(tables.sizes(view), "Sample size three ways, in seeds.")),
        page.section("reversals", "Rank reversals between marks", _reversals(view, cited)),
        page.section("stance", "What was expected", cited(tables.stances(view), _STANCE)),
        page.section("cells", "Cells and failures", _cells(view, cited)),
        page.section("all", "Every arm, mark and metric", page.details("Show the table", every)),
        page.section("method", "How to read this", _method(view)),
        page.section("digests", "Digests and versions", page.table(*bound)),
    ]
    return page.document(title, "\n".join(parts))


def markdown(view, drawings, bound):
    """report.md: the same decision, arms and figures, for places that show Markdown."""
    value = view.value
    lines = [
        f"# {_kind(view)}: {value['campaign']['name']}",
        "",
        _subject(view),
        "",
        f"**{sentences.decision(value)}**",
    ]
    lines += ["", *(f"- {line}" for line in sentences.reasons(value))]
    lines += [f"- to change: {line}" for line in sentences.changes(value)]
    lines += ["", f"## Arms at epoch {view.mark}", "", _arms_caption(view), "", *tables.pipes(*tables.arms(view))]
    for name, one in drawings.items():
        lines += ["", f"## {one.title}", "", f"![{one.alt or one.title}]({FIGURES}/{name}.png)", "", one.caption]
    lines += ["", *tables.pipes(*tables.sizes(view)), "", "## What was expected", ""]
    lines += [*tables.pipes(*tables.stances(view)), "", "## Digests and versions", ""]
    return "\n".join([*lines, *tables.pipes(*bound), ""])


def _is_trial(view):
    return view.value["campaign"]["phase"] == "confirmatory"


def _kind(view):
    return "Report of a confirmatory trial" if _is_trial(view) else "Calibration report"


def _subject(view):
    value = view.value
    return f"{value['campaign']['phase']} phase · {len(value['seeds'])} seeds · {view.footer}"


def _decision(view):
    value = view.value
    decision = value["decision"]
    headings = {
        "calibrated": "Calibrated",
        "confirmatory": "Confirmatory trial",
        "refused": "Refused: this campaign can’t choose a budget",
    }
    body = [f"<h2>{headings[decision['status']]}</h2>"]
    if decision["status"] != "refused":
        facts = {
            "budget": f"{decision['budget_mark']} epochs",
            "primary metric": decision["primary_metric"].replace("_", " "),
        }
        if decision["status"] == "calibrated":
            size = next(one for one in value["sample_size"] if one["metric"] == decision["primary_metric"])
            upper = size["at_sigma_upper"]
            facts["seeds to plan"] = upper["plan"] if upper else "not estimable"
            facts["confirmatory trial"] = _cost(value["confirmatory"])
        boxes = (f"<div><dt>{name}</dt><dd>{page.escape(text)}</dd></div>" for name, text in facts.items())
        known = (("better", decision["known_better"]), ("worse", decision["known_worse"]))
        word = "Known" if decision["status"] == "calibrated" else "Detected as"
        body.append(f"<dl>{''.join(boxes)}</dl>")
        body += [f"<p><b>{word} {way}:</b> {page.escape(tables.names(labels, 12))}</p>" for way, labels in known]
    body.append(page.bullets(sentences.reasons(value)))
    if decision["what_to_change"]:
        body.append(f"<h3>What to change</h3>{page.bullets(sentences.changes(value))}")
    body.append(f'<p class="source">{page.escape(view.footer)}</p>')
    return f'<section id="decision" class="decision {decision["status"]}">{"".join(body)}</section>'


def _cost(cost):
    if cost["hours"] is None:
        return "cost not measured"
    return f"{cost['hours']:.2g} {cost['unit']}, {cost['cells']} runs"


def _arms_caption(view):
    value = view.value
    return (
        f"{view.metric}: arm − reference, paired by seed, {len(value['seeds'])} seeds. The smallest attainable p is "
        f"{value['test']['p_attainable']:.4g}. “Inconclusive” and “underpowered” are not “no effect”."
    )


def _effects_caption(view):
    left = len(view.value["effects"]) - tables.MOST_EFFECTS
    return f"All effects.{f' {left} more are in {calibration.NAME_ON_DISK}.' if left > 0 else ''}"


_WHY_TITLE = "Why this mark and this metric"
_WHY = (
    "Every candidate at every trained mark: responsive needs an arm that is better with its guardrails ok and one that "
    "is worse, both detected with one sign on every seed, and an open metric."
)
_STANCE = (
    "A stance needs authentic evidence: where a run of the arm or of the reference did not pass verification there is "
    "none."
)


def _surface_notes(view, cited):
    parts = []
    for one in view.value["surface"]:
        text = f"{one['metric']}: {one['note']}."
        if one["missing_interactions"]:
            pairs = ", ".join(" × ".join(pair) for pair in one["missing_interactions"])
            text += f" Interactions that can’t be estimated, because no arm moves both knobs: {pairs}."
        if one["excluded"]:
            moved = "arms that move a choice, or a knob to level 0 on a log scale"
            text += f" Not on the surface ({moved}): {tables.names(one['excluded'])}."
        parts.append(f"<p>{page.escape(text)}</p>")
        if one["terms"]:
            caption = (
                f"{one['metric']}: x is log10(level / baseline), epoch is log2, centred; R² {one['r_squared']:.3f}."
            )
            parts.append(page.details(f"Terms of {one['metric']}", cited(tables.terms(one), caption)))
    return "".join(parts)


def _reversals(view, cited):
    found = view.value["decision"]["rank_reversals"]
    source = f'<p class="source">{page.escape(view.footer)}</p>'
    if not found["compared"]:
        return f"<p>There is one trained mark only: no order can change.</p>{source}"
    intro = (
        f"{found['found']} of {found['compared']} orders of two arms at an earlier mark are reversed at the last mark, "
        "on every seed both times. This describes; it is not tested."
    )
    return f"<p>{intro}</p>" + (cited(tables.reversals(view), "The largest reversals.") if found["largest"] else source)


def _cells(view, cited):
    cells = view.value["cells"]
    intro = (
        f"{cells['planned']} planned = {cells['complete']} complete + {cells['failed']} failed + {cells['missing']} "
        "missing. A cell that did not complete counts with the contract’s value."
    )
    body = f"<p>{intro}</p>"
    if view.arrays.imputed.any():
        body += cited(tables.failures(view), "Does an arm fail more often? Fisher’s exact test, one-sided, Holm.")
        body += cited(tables.lost_cells(view), "Each cell that did not complete.")
    return body


def _method(view):
    plan, test = view.value["analysis"]["plan"], view.value["test"]
    listed = "all {} sign patterns" if test["method"] == "exact" else "{} random sign patterns from a fixed seed"
    statistic = test["statistic"].split(", ")[1]
    trial = _is_trial(view)
    cells = "arms × trained marks × candidate metrics"
    cells = f"arms, in {view.metric} at epoch {view.mark}" if trial else cells
    rest = "The other metrics, at every trained mark," if trial else "Quality metrics"
    budget = (
        "Epoch and metric were prescribed before the first run, by the calibration whose digest the plan binds."
        if trial
        else "The budget is the smallest responsive mark. Epoch 0 is measured before the first step and is never a "
        "candidate."
    )
    return (
        f"<p>Runs are paired by seed. All {test['family_cells']} cells ({cells}) are "
        f"tested jointly by flipping the signs of whole seeds, {listed.format(test['patterns'])}; the statistic is "
        f"{page.escape(statistic)}, adjusted by step-down max-|T|; α = {plan['alpha']:g}, two-sided. {rest} "
        "are a second family. p is of a cell alone, “p, joint” over its family; intervals are of a cell alone.</p>"
        "<p><b>detected</b>: joint p ≤ α. <b>equivalent</b>: two one-sided tests place the difference inside ±δ_min. "
        "<b>inconclusive</b>: neither; this is never “no effect”. <b>underpowered</b>: fewer seeds than the contract "
        "asks for, or no attainable p reaches α. <b>void</b>: arm and reference both at the floor or the ceiling.</p>"
        f"<p>{budget} Guardrails are gates, each judged alone at level α. The rules stand in the contract’s analysis "
        "plan, whose digest was fixed when the campaign was planned, and in the analysis code.</p>"
    )
