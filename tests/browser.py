"""A real Chromium, driven over its debugging socket: what the tests of pages share."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest

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

    async def open(self, path, query=""):
        await self.command("Page.enable")
        await self.command("Runtime.enable")
        await self.command("Network.enable")
        await self.command("Emulation.setFocusEmulationEnabled", enabled=True)  # another browser may be in front
        await self.command("Page.navigate", url=path.as_uri() + query)
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


def browse(folder, visit):
    async def whole():
        async with asyncio.timeout(120), chromium(folder) as tab:
            return await visit(tab)

    return asyncio.run(whole())


in_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed: apt-get install -y chromium"),
]
