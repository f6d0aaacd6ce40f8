"""The gallery in a real Chromium: load, filter, decide, export; and names from the data that would like to run."""

from __future__ import annotations

import asyncio
import csv
import io

import numpy as np
import pytest

from curriculoss.auditing import Audit, clean
from curriculoss.auditing.audited_data import from_arrays
from curriculoss.auditing.trajectories import Trajectories
from tests.browser import browse, in_browser

pytestmark = in_browser
SCRIPT = '<img src=x onerror="window.ran = 1">'
CLASSES = [SCRIPT, "</script>\n<script>window.ran = 2</script>", "=1+1", "cat"]


@pytest.fixture
def page(tmp_path):
    """Twelve samples, the first the most suspicious; given and suggested labels go round."""
    count, given = 12, np.arange(12) % 4
    suggested = (given + 1) % 4
    source = from_arrays(np.arange(24.0).reshape(12, 2), np.array(CLASSES)[given])
    order = np.array([list(source.classes).index(name) for name in CLASSES])
    given, suggested = order[given], order[suggested]
    soft = np.linspace(-2, 2, 5)[:, None] - np.arange(count)[::-1] / 4
    noise = (0.5, (0.4, 0.6), np.linspace(1, 0, count), given, suggested, 4)
    seen = Trajectories(soft, soft, soft, soft, soft[-1], suggested)
    np.savez(tmp_path / "data.npz", x=np.arange(24.0).reshape(12, 2), y=source.classes[given])
    Audit(*noise, source, np.arange(count), np.arange(count)[::-1] / 1.0, seen).save(tmp_path)
    return tmp_path / "audit.html"


CARDS = "[...document.querySelectorAll('.card')].map((card) => Number(card.dataset.index))"
CHOOSE = "((id, text) => {{ const box = document.getElementById(id); const option = [...box.options].find((o) => o.text === text); box.value = option.value; box.dispatchEvent(new Event('change')); }})({!r}, {!r})"  # noqa: E501


def test_what_a_person_decides_by_keyboard_is_what_is_exported_and_what_clean_applies(page, tmp_path):
    async def visit(tab):
        await tab.open(page)
        assert await tab.value(CARDS) == list(range(12))
        await tab.press("f", "ArrowRight", "k", "d", "d", "u")  # 0 fixed, 2 kept, 3 dropped; 4 was, and is open again
        assert await tab.value("document.querySelector('.card.current').dataset.index") == "4"
        await tab.press("ArrowLeft", "u")  # 3 is open again
        assert "1 kept, 1 fixed, 0 dropped" in await tab.value("document.getElementById('count').textContent")
        await tab.press("d")
        await tab.value(CHOOSE.format("given", "cat"))
        assert await tab.value(CARDS) == [3, 7, 11]
        await tab.value(CHOOSE.format("state", "none yet"))
        assert await tab.value(CARDS) == [7, 11]
        await tab.value(CHOOSE.format("given", "all"))
        await tab.value(CHOOSE.format("state", "all"))
        await tab.value(CHOOSE.format("order", "least suspicious first"))
        assert await tab.value(CARDS) == list(range(12))[::-1]
        await tab.value("document.querySelector('.card').click()")  # sample 11
        await tab.press("l")
        await tab.value("document.getElementById('label').value = '=1+1'")
        await tab.press("Enter")
        assert "1 kept, 2 fixed, 1 dropped" in await tab.value("document.getElementById('count').textContent")
        await tab.value("document.getElementById('export').click()")
        file = tmp_path / "browser/downloads/decisions.csv"
        for _ in range(200):
            if file.exists():
                break
            await asyncio.sleep(0.05)
        await tab.open(page)  # again: decisions were remembered
        assert "1 kept, 2 fixed, 1 dropped" in await tab.value("document.getElementById('count').textContent")
        assert tab.requests() == [page.as_uri()] * 2 and tab.troubles() == []
        return file.read_text()

    text = browse(tmp_path / "browser", visit)
    assert list(csv.reader(io.StringIO(text))) == [
        ["index", "path", "decision", "label"],
        ["0", "", "fix", CLASSES[1]],
        ["2", "", "keep", "'=1+1"],
        ["3", "", "drop", ""],
        ["11", "", "fix", "'=1+1"],
    ]
    (tmp_path / "decisions.csv").write_text(text)
    report = clean(tmp_path / "data.npz", tmp_path / "decisions.csv", tmp_path / "cleaned")
    after = np.load(report.data)["y"].tolist()
    before = np.load(tmp_path / "data.npz")["y"].tolist()
    assert after == [CLASSES[1], *before[1:3], *before[4:11], "=1+1"] and report.samples == 11


def test_names_from_the_data_are_text_and_never_run(page, tmp_path):
    async def visit(tab):
        await tab.open(page)
        await tab.value(CHOOSE.format("given", SCRIPT))
        await tab.press("f")
        await asyncio.sleep(0.3)  # an image that fails to load says so a moment later
        assert await tab.value("typeof window.ran") == "undefined"
        assert await tab.value("document.querySelectorAll('img[src=x]').length") == 0
        shown = await tab.value("[...document.querySelectorAll('.given')].map((element) => element.textContent)")
        assert shown == [SCRIPT] * 3
        await tab.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 3\">')")
        await asyncio.sleep(0.3)
        assert await tab.value("typeof window.ran") == "undefined"  # even then: the page's policy has no such scripts

    browse(tmp_path / "browser", visit)


def test_the_page_is_readable_in_light_and_dark(page, tmp_path):
    async def visit(tab):
        await tab.open(page)
        seen = []
        for scheme in ("light", "dark"):
            await tab.command(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            seen.append(await tab.value("getComputedStyle(document.body).backgroundColor"))
        assert await tab.value("document.documentElement.scrollWidth <= innerWidth")
        assert await tab.value("document.querySelectorAll('.card svg .margin').length") == 12
        return seen

    assert browse(tmp_path / "browser", visit) == ["rgb(253, 253, 251)", "rgb(22, 24, 27)"]
