"""One HTML file from plain values: the data as JSON, and the style, the code and the libraries of the page inside."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files

from fxquant.files import Json

_LIBRARIES = ("cytoscape.min.js", "plotly-basic.min.js")
_SCRIPTS = ("look.js", "charts.js", "graph.js", "page.js")


def render(data: Json) -> str:
    """Return the page. Nothing in it is fetched from elsewhere."""
    assets = files("fxquant.html_report") / "assets"

    def read(name: str) -> str:
        return (assets / name).read_text(encoding="utf-8")

    parts = {
        "title": html.escape(str(data["title"])),
        "style": read("page.css"),
        "body": read("body.html"),
        "libraries": "\n".join(f"<script>{read(f'vendor/{name}')}</script>" for name in _LIBRARIES),
        # the layout runs beside the page, in a worker, which needs the text
        "dagre": f'<script id="dagre" type="text/plain">{read("vendor/dagre.min.js")}</script>',
        "data": f'<script id="data" type="application/json">{_as_json(data)}</script>',
        "code": "".join(f"<script>{read(name)}</script>\n" for name in _SCRIPTS),
    }
    # in one pass, since the data may have braces, too
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read("frame.html"))


def _as_json(data: Json) -> str:
    """JSON that a script element can hold: a name such as </script> does not end it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
