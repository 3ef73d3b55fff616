"""The page in a real browser: no error, nothing from the network, search and click, a phone, a thousand nodes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant as fq
from browser import CHROMIUM, Browser
from fxquant.engines.table import as_engine
from fxquant.html_report.page import render
from report_net import Net

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model, data = Net().eval(), [torch.randn(2, 3, 8, 8) for _ in range(2)]
    path = tmp_path_factory.mktemp("report") / "net.html"
    quantized = fq.quantize(model, data, engine="onednn")
    with pytest.MonkeyPatch.context() as patch:  # the runtimes take seconds to convert for, and are rows like others
        patch.setattr("fxquant.tables.benchmark.available_engines", lambda: (as_engine("onednn"),))
        fq.report(model, quantized, data, path, evaluate=lambda m: float(m(data[0]).max()), seconds=0.01)
    return path


def test_it_opens_without_error_or_network(browser: Browser, page: Path) -> None:
    browser.open(page)
    for section in ("depth", "speed", "float", "setup"):
        browser.run(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
        browser.wait(f"[...document.querySelectorAll('#{section} .chart')].every((e) => e.querySelector('svg'))")
    assert browser.problems == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "blob", "data"}
    assert browser.run("document.querySelectorAll('.tile').length") == 6
    assert browser.run("[times(6, 2, 'faster', 'slower'), times(2, 3, 'faster', 'slower')]") == [
        "3.0× faster",
        "1.5× slower",
    ]
    names = browser.run("DATA.speed.rows.map((row) => row.name)")
    assert names[0] == "float" and "onednn" in names
    assert browser.run("[...document.querySelectorAll('#engines-table tbody tr')].length") == len(names)
    assert "softmax" in browser.run("document.getElementById('float-table').textContent")
    browser.run("document.getElementById('theme').click()")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    assert browser.problems == []


def test_search_and_click(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('graphs').scrollIntoView({behavior: 'instant'})")
    browser.run("(() => { const e = document.getElementById('search'); e.value = 'BODY'; e.oninput({target: e}) })()")
    assert browser.run("views.int8.nodes('.hit').map((n) => BOXES.int8.get(n.id()).path)") == ["body.0"]
    assert browser.run("document.getElementById('hits').textContent") == "1 found"
    assert browser.run("views.float.nodes('.faded').length") > 0
    browser.run("search(''); for (const view of Object.values(views)) { view.stop(); view.fit(undefined, 24) }; 0")
    place = browser.run(
        "(() => { const p = views.int8.getElementById('/stem_0').renderedPosition(), "
        "r = document.getElementById('graph-int8').getBoundingClientRect(); return [p.x + r.x, p.y + r.y] })()"
    )
    seen = browser.run("[views.int8.pan(), views.float.pan()]")
    browser.click(*place)
    browser.wait("document.getElementById('detail').textContent.includes('stem.0')")
    browser.run("new Promise((done) => setTimeout(done, 300))")
    assert browser.run("[views.int8.pan(), views.float.pan()]") == seen  # both are in sight already
    text = browser.run("document.getElementById('detail').textContent")
    assert "weight s8" in text and "x = self.stem(x)" in text and "grid covers" in text
    assert browser.run("document.querySelectorAll('#detail .chart svg').length") > 0
    assert browser.run("views.float.nodes('.partner').length") == 3
    browser.run("document.getElementById('by-error').click()")
    assert "dB" in browser.run("document.getElementById('legend').textContent")
    assert browser.problems == []


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=844, phone=True, dark=True)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run("getComputedStyle(document.querySelector('.pane-float')).display") == "none"
    browser.run("document.getElementById('see-float').click()")
    assert browser.run("getComputedStyle(document.querySelector('.pane-int8')).display") == "none"
    assert browser.problems == []


def read(page: Path) -> dict[str, Any]:
    """The data of a page."""
    return json.loads(page.read_text().split('<script id="data" type="application/json">')[1].split("</script>")[0])


def test_ops_that_are_float_for_one_reason_are_one_row(browser: Browser, page: Path, tmp_path: Path) -> None:
    data = read(page)
    row = {"path": "block.0", "kind": "add", "where": "net.py:3"}
    data["account"]["float"] = [
        {**row, "why": f"its operand add_{i} is float", "path": f"block.{i}"} for i in range(12)
    ]
    data["account"]["float"] += [{**row, "why": "nothing after it takes int8", "hint": "wrap it"}]
    grouped = tmp_path / "grouped.html"
    grouped.write_text(render(data))
    browser.open(grouped)
    cells = browser.run(
        "[...document.querySelectorAll('#float-table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert [(each[1], each[2], each[5]) for each in cells] == [("add", "12", ""), ("add", "1", "wrap it")]
    assert "and 11 more" in cells[0][0] and "block.11" in cells[0][0]
    assert browser.problems == []


def test_the_keyboard_searches(browser: Browser, page: Path) -> None:
    browser.open(page)
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key="/", text="/" if kind == "keyDown" else "")
    assert browser.run("document.activeElement.id") == "search"
    browser.send("Input.insertText", text="conv2d")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13)
    assert browser.run("document.getElementById('hits').textContent") == "1 of 2"
    assert "stem.0" in browser.run("document.getElementById('detail').textContent")
    browser.run("select(null)")
    assert "Where most error enters" in browser.run("document.getElementById('detail').textContent")
    assert browser.problems == []


def test_regions_are_boxes_one_below_the_other(browser: Browser, page: Path, tmp_path: Path) -> None:
    data = read(page)
    for side in ("float", "int8"):
        graph = data["graphs"][side]
        for number, box in enumerate(graph["nodes"]):
            box["region"] = "first" if number < len(graph["nodes"]) // 2 else "second"
        at = {box["id"]: box["region"] for box in graph["nodes"]}
        graph["edges"] = [edge for edge in graph["edges"] if at[edge[0]] == at[edge[1]]]
    parts = tmp_path / "parts.html"
    parts.write_text(render(data))
    browser.open(parts)
    boxes = browser.run(
        "views.int8.nodes(':parent').map((n) => [n.data('label'), n.boundingBox().y1, n.boundingBox().y2])"
    )
    (first, top, bottom), (second, begins, _) = sorted(boxes, key=lambda box: box[1])
    assert (first, second) == ("first", "second") and top < bottom < begins
    assert browser.run("search('stem'), views.int8.nodes('.hit').length") > 0
    assert browser.problems == []


def test_a_thousand_nodes_are_laid_out_without_overlap(browser: Browser, page: Path, tmp_path: Path) -> None:
    data = read(page)
    box = data["graphs"]["int8"]["nodes"][1]
    names = [f"/n{i}" for i in range(1000)]
    nodes = [{**box, "id": name, "path": name, "partners": [], "nodes": [name]} for name in names]
    edges = [[names[i], names[i + 1], 1] for i in range(999)]
    edges += [[names[i], names[i + 7], 1] for i in range(0, 990, 9)]  # residuals
    edges += [[names[i], names[999 - i], 0] for i in range(5, 200, 20)]  # as in a U-Net
    data["graphs"] = {"float": {"nodes": nodes, "edges": edges}, "int8": {"nodes": nodes, "edges": edges}}
    large = tmp_path / "large.html"
    large.write_text(render(data))
    browser.open(large)
    assert browser.problems == []
    places = browser.run("views.int8.nodes().map((n) => [n.position().x, n.position().y])")
    assert len(places) == 1000
    by_row = sorted((round(y), x) for x, y in places)
    assert all(b[0] != a[0] or b[1] - a[1] >= 168 for a, b in itertools.pairwise(by_row))
    assert browser.run("views.int8.edges().every((e) => e.source().position().y < e.target().position().y)")
