"""The style sheet of report.html: the reader's light or dark, a phone or a desk, a screen or paper."""

from vqkit.analysis.plots import LIGHT

DARK = {
    "ink": "#e8eaed", "muted": "#a2abb4", "line": "#3a4149", "ground": "#14171b", "better": "#74b4ee",
    "worse": "#f0a35c", "band": "#7b858f",
}  # fmt: skip


def _variables(colours):
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


CSS = f"""
:root {{ {_variables(LIGHT)} --card: #f4f6f8; }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} --card: #1d2227; }} }}
@media print {{ :root {{ {_variables(LIGHT)} --card: #ffffff; }} details > * {{ display: block; }} }}
* {{ box-sizing: border-box; }}
body {{
  margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif;
}}
main {{ max-width: 62rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; margin: 1rem 0 0.3rem; }}
h2 {{ font-size: 1.2rem; margin: 0 0 0.6rem; }}
h3 {{ font-size: 1rem; margin: 0.8rem 0 0.2rem; }}
section {{ margin: 2.2rem 0; }}
.source, caption, figcaption {{ color: var(--muted); font-size: 0.85rem; }}
.decision {{ background: var(--card); border-left: 6px solid var(--muted); padding: 1rem 1.2rem; border-radius: 4px; }}
.decision.calibrated {{ border-color: var(--better); }}
.decision.refused {{ border-color: var(--worse); }}
dl {{ display: flex; flex-wrap: wrap; gap: 0.6rem 2rem; margin: 0 0 0.6rem; }}
dt {{ color: var(--muted); font-size: 0.8rem; }}
dd {{ margin: 0; font-size: 1.15rem; font-weight: 600; }}
figure {{ margin: 0; }}
figcaption {{ margin-top: 0.4rem; max-width: 48rem; }}
.scroll {{ overflow-x: auto; }}
svg {{ display: block; width: 100%; height: auto; min-width: 38rem; max-width: 56rem; }}
table {{ border-collapse: collapse; font-size: 0.87rem; font-variant-numeric: tabular-nums; min-width: 40rem; }}
caption {{ text-align: left; padding-bottom: 0.4rem; }}
th, td {{ text-align: left; padding: 0.25rem 0.8rem 0.25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }}
td, th[scope=row] {{ white-space: nowrap; }}
th[scope=row] {{ font-weight: 500; }}
thead th {{ color: var(--muted); font-weight: 600; }}
td.strong {{ font-weight: 700; }}
td.good {{ color: var(--better); }}
td.bad {{ color: var(--worse); font-weight: 600; }}
#digests td {{ white-space: normal; overflow-wrap: anywhere; }}
summary {{ cursor: pointer; color: var(--better); }}
@media print {{ section {{ break-inside: avoid; }} #all {{ break-inside: auto; }} body {{ font-size: 11px; }} }}
"""
