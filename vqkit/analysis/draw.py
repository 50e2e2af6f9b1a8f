"""One figure, three outputs: PNG and SVG in fixed colours on white, and SVG whose colours follow the page's theme.

Colours are blue for better and orange for worse, which every common form of colour blindness tells apart, and they
are always doubled by position, marker or sign. The same figure gives the same bytes: fixed ids, no date.
"""

import io
import re

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG

DPI = 160  # of the PNG
LIGHT = {
    "ink": "#1b1f23", "muted": "#5b636b", "line": "#cfd5da", "ground": "#ffffff", "better": "#1667a8",
    "worse": "#b5560b", "band": "#9aa3ab",
}  # fmt: skip
STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"], "font.size": 9,
    "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelsize": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "lines.linewidth": 1.4,
    "svg.fonttype": "none", "figure.constrained_layout.use": True,
}  # fmt: skip


def render(draw, name, footer):
    """A figure three ways: (PNG bytes on white, SVG bytes on white, SVG text in the colours of a page).

    Args:
        draw: function of the colours, which it must use and no others, that returns a Figure.
        name: prefix of every id in the SVG, so that several can stand on one page.
        footer: the last line of the picture.
    """
    colours = {
        "text.color": LIGHT["ink"], "axes.labelcolor": LIGHT["ink"], "axes.edgecolor": LIGHT["muted"],
        "axes.facecolor": "none", "xtick.color": LIGHT["ink"], "ytick.color": LIGHT["ink"], "figure.facecolor": "none",
    }  # fmt: skip
    png, svg = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # nobody's own matplotlibrc
        matplotlib.rcParams.update({**STYLE, **colours, "svg.hashsalt": name})
        figure = draw(LIGHT)
        line = 0.22 / figure.get_figheight()
        figure.get_layout_engine().set(rect=(0, line, 1, 1 - line))
        figure.text(0.01, line / 4, footer, fontsize=7, color=LIGHT["muted"], va="bottom")
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None})
        figure.set_facecolor(LIGHT["ground"])
        figure.set_dpi(DPI)
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
    plain = _unique(svg.getvalue().decode(), name)
    themed = plain
    for key, colour in LIGHT.items():
        themed = themed.replace(colour, f"var(--{key})")
    plain = plain.replace(">", f' style="background: {LIGHT["ground"]}">', 1)
    return png.getvalue(), plain.encode(), themed


def _unique(text, name):
    """An SVG without prologue and metadata, its ids prefixed so that several can stand on one page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
