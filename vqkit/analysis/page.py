"""HTML without a template engine: the style sheet of report.html, tables, sections, and the page around them.

The reader's light or dark, a phone or a desk, a screen or paper; no script and nothing from elsewhere.
"""

import html

from vqkit.analysis.draw import LIGHT

DARK = {
    "ink": "#e8eaed", "muted": "#a2abb4", "line": "#3a4149", "ground": "#14171b", "better": "#74b4ee",
    "worse": "#f0a35c", "band": "#7b858f",
}  # fmt: skip
TONES = {
    "detected": "strong", "broken": "bad", "ok": "good", "supported": "good", "contradicted": "bad", "yes": "strong",
}  # fmt: skip


def _variables(colours):
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


CSS = f"""
:root {{ {_variables(LIGHT)} --card: #f4f6f8; }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} --card: #1d2227; }} }}
@media print {{ :root {{ {_variables(LIGHT)} --card: #ffffff; }} }}
* {{ box-sizing: border-box; }}
body {{
  margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, "Segoe UI", Roboto, sans-serif;
}}
main {{ max-width: 62rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; margin: 1rem 0 0.3rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.2rem; margin: 0 0 0.6rem; }}
h3 {{ font-size: 1rem; margin: 0.8rem 0 0.2rem; }}
section {{ margin: 2.2rem 0; }}
.source, figcaption {{ color: var(--muted); font-size: 0.85rem; }}
.decision {{ background: var(--card); border-left: 6px solid var(--muted); padding: 1rem 1.2rem; border-radius: 4px; }}
.decision.calibrated, .decision.confirmatory {{ border-color: var(--better); }}
.decision.refused {{ border-color: var(--worse); }}
.decision ul {{ padding-left: 1.2rem; }}
dl {{ display: flex; flex-wrap: wrap; gap: 0.6rem 2rem; margin: 0 0 0.6rem; }}
dt {{ color: var(--muted); font-size: 0.8rem; }}
dd {{ margin: 0; font-size: 1.15rem; font-weight: 600; }}
figure {{ margin: 0; }}
figcaption {{ margin: 0.4rem 0; max-width: 48rem; }}
.scroll {{ overflow-x: auto; }}
svg {{ display: block; width: 100%; height: auto; min-width: 38rem; max-width: 56rem; }}
table {{
  border-collapse: collapse; font-size: 0.87rem; font-variant-numeric: tabular-nums; min-width: 38rem;
  margin-bottom: 1rem;
}}
th, td {{ text-align: left; padding: 0.25rem 0.8rem 0.25rem 0; border-bottom: 1px solid var(--line); }}
td, th[scope=row] {{ white-space: nowrap; vertical-align: top; }}
td:last-child {{ white-space: normal; min-width: 8em; }}
th[scope=row] {{ font-weight: 500; }}
thead th {{ color: var(--muted); font-weight: 600; vertical-align: bottom; }}
td.strong {{ font-weight: 700; }}
td.good {{ color: var(--better); }}
td.bad {{ color: var(--worse); font-weight: 600; }}
#digests td {{ white-space: normal; overflow-wrap: anywhere; }}
summary {{ cursor: pointer; color: var(--better); }}
@media print {{
  html {{ font-size: 11px; }}
  main {{ max-width: none; padding: 0; }}
  .scroll {{ overflow: visible; }}
  table, svg {{ min-width: 0; }}
  td, th[scope=row] {{ white-space: normal; }}
  section {{ break-inside: avoid; }}
  #all {{ break-inside: auto; }}
}}
"""


def document(title, body):
    """A whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n"
        "</html>\n"
    )


def section(anchor, title, body):
    """A part of the page under its own heading."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{body}</section>'


def figure(title, svg, caption):
    """An inline picture with its caption; on a phone it scrolls sideways inside its own box."""
    label = f'role="img" aria-label="{escape(title)}"'
    text = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure><div class="scroll" {label}>{svg}</div>{text}</figure>\n'


def table(head, rows, caption=""):
    """A table whose first column is the row's header; words in ``TONES`` carry a tone."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(map(_cell, row, range(len(row))))}</tr>\n" for row in rows)
    label = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    table = f"<table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table>"
    return f'<figure>{label}<div class="scroll">{table}</div></figure>\n'


def details(summary, body):
    """A part that opens on a click; its text is on the page all the same."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def bullets(texts):
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def escape(text):
    """Text as HTML shows it, whatever it holds."""
    return html.escape(str(text))


def _cell(cell, column):
    tone = f' class="{TONES[cell]}"' if cell in TONES else ""
    return f'<th scope="row">{escape(cell)}</th>' if column == 0 else f"<td{tone}>{escape(cell)}</td>"
