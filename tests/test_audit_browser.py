"""The gallery in a real Chromium: load, filter, decide, export; and names from the data that would like to run."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
import subprocess
import time
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest

from curriculoss.audit import gallery
from curriculoss.audit.clean import clean
from curriculoss.audit.estimate import NoiseEstimate
from curriculoss.audit.finding import Audit
from curriculoss.audit.reading import of_arrays
from curriculoss.audit.trajectories import Trajectories

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60  # seconds that anything may take
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
         "--disable-dev-shm-usage", "--remote-debugging-port=0", "--window-size=1200,900")  # fmt: skip


class Page:
    """One tab: commands in, answers out, and every event that came meanwhile."""

    def __init__(self, socket):
        self.socket, self.number, self.events = socket, 0, []

    async def command(self, method, **parameters):
        self.number += 1
        await self.socket.send_json({"id": self.number, "method": method, "params": parameters})
        while True:
            message = json.loads((await self.socket.receive(timeout=PATIENCE)).data)
            if message.get("id") == self.number:
                assert "error" not in message, (method, message)
                return message["result"]
            self.events.append(message)

    async def value(self, expression):
        answer = await self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression):
        end = time.monotonic() + PATIENCE
        while not await self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            await asyncio.sleep(0.05)

    async def open(self, path):
        await self.command("Page.enable")
        await self.command("Runtime.enable")
        await self.command("Network.enable")
        await self.command("Page.navigate", url=path.as_uri())
        await self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    async def press(self, *keys):
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            await self.command("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            await self.command("Input.dispatchKeyEvent", type="keyUp", key=key)

    def requests(self):
        """Addresses that the page asked for, but for what it holds itself."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "blob:"))]

    def troubles(self):
        """What scripts threw and what the browser refused."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]


@asynccontextmanager
async def chromium(folder):
    """A page of a browser whose profile and downloads are in the folder; it ends with the block."""
    profile, downloads = folder / "profile", folder / "downloads"
    downloads.mkdir(parents=True)
    browser = subprocess.Popen(
        [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _port(profile / "DevToolsActivePort", browser)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                address = next(each for each in await answer.json() if each["type"] == "page")["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                await page.command("Log.enable")
                await page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
                yield page
    finally:
        browser.kill()
        browser.wait(PATIENCE)


async def _port(file, browser):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert browser.poll() is None, f"{PROGRAM} ended with {browser.returncode}"
        if file.exists() and (text := file.read_text()):
            return int(text.splitlines()[0])
        await asyncio.sleep(0.05)
    raise AssertionError("chromium did not say where it listens")


pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed: apt-get install -y chromium")
SCRIPT = '<img src=x onerror="window.ran = 1">'
CLASSES = [SCRIPT, "</script>\n<script>window.ran = 2</script>", "=1+1", "cat"]


@pytest.fixture
def page(tmp_path):
    """Twelve samples, the first the most suspicious; given and suggested labels go round."""
    count, given = 12, np.arange(12) % 4
    suggested = (given + 1) % 4
    source = of_arrays(np.arange(24.0).reshape(12, 2), np.array(CLASSES)[given])
    order = np.array([list(source.classes).index(name) for name in CLASSES])
    given, suggested = order[given], order[suggested]
    soft = np.linspace(-2, 2, 5)[:, None] - np.arange(count)[::-1] / 4
    noise = NoiseEstimate(0.5, (0.4, 0.6), np.linspace(1, 0, count), given, suggested, 4)
    found = Audit(
        scores=np.arange(count)[::-1] / 1.0, given=source.classes[given], suggested=source.classes[suggested],
        index=np.arange(count), classes=source.classes, noise=noise, trajectories=Trajectories(soft, soft, soft[-1]),
    )  # fmt: skip
    np.savez(tmp_path / "data.npz", x=np.arange(24.0).reshape(12, 2), y=source.classes[given])
    return gallery.build(found, source, tmp_path / "audit.html")


def browse(folder, visit):
    async def whole():
        async with asyncio.timeout(120), chromium(folder) as tab:
            return await visit(tab)

    return asyncio.run(whole())


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
    after = np.load(report["data"])["y"].tolist()
    before = np.load(tmp_path / "data.npz")["y"].tolist()
    assert after == [CLASSES[1], *before[1:3], *before[4:11], "=1+1"] and report["samples"] == 11


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
