"""A real Chromium that visits the page at / of a server over the fake model; fixtures of conftest.py use it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.live_server import Live, live_server

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (Debian: apt install chromium)")
    with playwright.sync_playwright() as tools:
        rights = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=rights)
        yield browser
        browser.close()


class Visit:
    """A browser with one page of a server; what went wrong in it."""

    def __init__(self, context: BrowserContext, live: Live) -> None:
        self.live = live
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.context = context
        self.page = self.another()

    def another(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: self.wrong.append(str(e)))
        page.on("request", lambda r: self.asked.append(r.url))
        page.goto(self.live.url)
        page.wait_for_selector("#model option", state="attached")
        return page

    def send(self, text: str = "hi") -> None:
        self.page.fill("#message", text)
        self.page.keyboard.press("Enter")

    def done(self) -> None:
        self.page.wait_for_selector("#stop", state="hidden")

    def ask(self, text: str = "hi") -> str:
        """The answer, as it is shown."""
        self.send(text)
        self.page.wait_for_selector("#messages > .assistant .tools")
        self.done()
        return self.answer

    def until(self, true: str) -> None:
        """Wait for something to be true; the page's policy keeps Chromium's own way to do that out."""
        for _ in range(500):
            if self.page.evaluate(true):
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"it never became true: {true}")

    @property
    def answer(self) -> str:
        return self.page.locator("#messages > .assistant .text").last.inner_text()

    @property
    def titles(self) -> list[str]:
        return self.page.locator("#list .open").all_inner_texts()


@contextmanager
def visiting(
    browser: Browser,
    folder: Path,
    model: Path,
    says: str,
    *args: str,
    step_s: float,
    load_s: float,
    key: str,
    **how: Any,
) -> Iterator[Visit]:
    """Serves, and opens the page. Nothing may go wrong in it unless the test takes it. how: of the context."""
    options = [*args, *(["--api-key", key] if key else [])]
    fake = {"FAKE_SAYS": says, "FAKE_STEP_S": str(step_s), "FAKE_LOAD_S": str(load_s)}
    with live_server(folder, str(model), *options, module="tests.cli_program", **fake) as live:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **how})
        try:
            if key:
                context.add_init_script(f"sessionStorage.setItem('pagedrun.key', {key!r})")
            visit = Visit(context, live)
            yield visit
            assert visit.wrong == []
            assert all(url.startswith(live.url) for url in visit.asked)
        finally:
            context.close()
