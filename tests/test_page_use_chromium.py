"""The page at / in the hands of somebody who has a lot of it, or bad luck, in a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bert_models import write_bert
from tests.live_server import live_server
from tests.page_visits import Visit

LONG = "word " * 800
FORBIDDEN = """for (const name of ["localStorage", "sessionStorage"])
  Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });"""
NO_ROOM = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };"
FILL = """() => {
  for (let n = 1 << 22, i = 0; n > 0; ) {
    try { localStorage.setItem(`x${i++}`, "y".repeat(n)); } catch { n >>= 1; }
  }
}"""
MANY = """(n) => {
  for (let i = 0; i < n; i++) {
    const messages = [{ role: "user", content: `question ${i}` }, { role: "assistant", content: "Yes." }];
    const one = { id: `c${i}`, title: `Number ${i}`, named: false, updated: Date.now() - 1000 * (i + 1), messages };
    localStorage.setItem(`pagedrun.chat.c${i}`, JSON.stringify(one));
  }
}"""
SEEN = """() => {
  const one = document.querySelector("#list .current").getBoundingClientRect();
  const all = document.querySelector("#list").getBoundingClientRect();
  return one.top >= all.top - 1 && one.bottom <= all.bottom + 1;
}"""


def test_a_browser_that_keeps_nothing(visit: Any) -> None:
    with visit() as v:
        for script in (FORBIDDEN, NO_ROOM):
            context = v.page.context.browser.new_context()
            context.add_init_script(script)
            other = Visit(context, v.live)
            assert "keeps nothing" in other.page.locator("#list-empty").inner_text()
            assert other.ask("first") == "Hello!"
            other.page.click("#new")
            other.ask("second")
            assert other.titles == ["second", "first"]
            other.page.click("#list .open >> text=first")
            assert other.page.locator("#messages .body").all_inner_texts() == ["first"]
            other.page.click("#settings-open")
            other.page.fill("[name=max_tokens]", "3")
            other.page.click("#settings .primary")
            assert other.ask("third") == "Hel"
            assert other.wrong == []
            context.close()


def test_a_browser_that_is_full(visit: Any) -> None:
    with visit() as v:
        v.page.evaluate(FILL)
        assert v.ask() == "Hello!" and v.ask() == "Hello!"
        assert "no room" in v.page.locator("#toast").inner_text()
        assert v.page.locator("#messages > li").count() == 4


def test_many_conversations(visit: Any) -> None:
    with visit() as v:
        v.page.evaluate(MANY, 200)
        v.page.reload()
        v.page.wait_for_selector("#list li:nth-child(200)")
        v.page.click("#list .open >> text=Number 150")
        assert v.page.evaluate(SEEN) and v.page.locator("#messages .body").all_inner_texts() == ["question 150"]
        assert v.page.locator("#new").bounding_box()["y"] > 0
        v.page.reload()
        assert v.page.evaluate(SEEN)  # though it is far down
        v.send("more")
        v.page.wait_for_selector("#messages > li:nth-child(4) .tools")
        assert v.titles[0] == "Number 150" and v.page.evaluate(SEEN)
        v.page.focus("#list li:nth-child(5) .open")
        v.page.keyboard.press("Delete")
        v.page.keyboard.press("Delete")
        assert v.page.evaluate("document.activeElement.textContent") == "Number 5" and len(v.titles) == 198
        v.page.keyboard.press("Control+z")
        assert "Number 4" in v.titles and "Number 3" not in v.titles


def test_what_is_deleted_is_not_kept(visit: Any) -> None:
    with visit() as v:
        v.ask()
        v.page.click("#new")
        v.page.evaluate("import('/page/store.js').then((store) => { window.kept = new WeakRef(store.all()[0]); })")
        assert v.page.evaluate("kept.deref().title") == "hi"
        v.page.focus("#list .open")
        v.page.keyboard.press("Delete")
        v.page.request_gc()
        assert v.page.evaluate("kept.deref() === undefined")


def test_what_goes_away_with_a_new_answer_comes_back(visit: Any) -> None:
    with visit() as v:
        for text in ("one", "two", "three"):
            v.ask(text)
        v.page.locator('[aria-label="Answer again"]').last.click()
        v.page.wait_for_selector("#messages > li:nth-child(6) .tools")
        v.done()
        assert v.page.locator("#toast").is_hidden()  # nothing but that answer has gone
        v.page.locator('[aria-label="Answer again"]').first.click()
        v.page.wait_for_selector("#messages > li:nth-child(2):last-child .tools")
        v.page.click("#toast-undo")
        assert v.page.locator("#messages .body").all_inner_texts() == ["one", "two", "three"]
        v.page.locator('[aria-label="Edit message"]').first.focus()
        v.page.keyboard.press("Enter")
        v.page.keyboard.type(" more")
        v.page.keyboard.press("Enter")
        v.page.wait_for_selector("#messages > li:nth-child(2):last-child")
        assert v.titles == ["one more"]
        v.page.click("#toast-undo")
        v.done()
        v.page.reload()
        assert v.page.locator("#messages .body").all_inner_texts() == ["one", "two", "three"] and v.titles == ["one"]


def test_a_draft_outlives_the_page(visit: Any) -> None:
    with visit() as v:
        v.page.fill("#message", "half a")
        v.page.reload()
        assert v.page.locator("#message").input_value() == "half a"
        v.page.keyboard.press("Enter")
        v.page.wait_for_selector("#messages > .assistant .tools")
        v.page.reload()
        assert v.page.locator("#message").input_value() == ""


def test_a_key_that_no_header_may_have(visit: Any) -> None:
    with visit() as v:
        v.page.evaluate("sessionStorage.setItem('pagedrun.key', 'ключ')")
        v.send()
        v.page.wait_for_selector("#key[open]")
        assert "does not know this key" in v.page.locator(".error").inner_text()


def test_undo_on_a_narrow_screen(visit: Any) -> None:
    with visit(viewport={"width": 340, "height": 640}) as v:
        v.ask("first")
        v.page.click("#side-toggle")
        v.page.focus("#list .open")
        v.page.keyboard.press("Delete")
        v.page.keyboard.press("Control+z")
        assert v.page.evaluate("document.activeElement.textContent") == "first"  # not behind the list
        v.page.keyboard.press("Enter")
        assert v.page.evaluate("document.activeElement.id") == "message" and v.page.locator("#shade").is_hidden()


def test_a_model_that_is_being_loaded(visit: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    with visit(LONG, str(other), load_s=3, step_s=0.01) as v:
        tab = v.another()
        v.page.select_option("#model", "other")
        v.page.wait_for_selector("#memory-none >> text=is loaded when you send")
        v.send()
        v.page.wait_for_selector(".waiting >> text=Loading the model")
        tab.fill("#message", "meanwhile")  # the model that is loaded answers
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".assistant .text >> text=word")
        tab.click("#stop")
        v.page.wait_for_selector(".assistant .text >> text=word")
        v.page.wait_for_selector("#memory-none >> text=no pages")  # it knows of the model before the answer is over
        assert v.page.locator("#stop").is_visible()
        v.page.click("#stop")
        tab.select_option("#model", "other")
        tab.wait_for_selector("#memory-none >> text=no pages")  # that another tab has had it loaded


def test_a_server_that_comes_back(visit: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    (tmp_path / "again").mkdir()
    with visit(LONG, step_s=0.01) as v:
        v.send()
        v.until("document.querySelector('.assistant .text').textContent.length > 20")
        v.live.process.kill()
        v.page.wait_for_selector(".error >> text=broke off")
        v.page.wait_for_selector("#lost", state="visible")
        assert v.page.locator("#running").inner_text() == "–"
        port = v.live.url.rpartition(":")[2]
        with live_server(tmp_path / "again", str(other), "--port", port, module="tests.cli_program"):
            v.page.wait_for_selector("#lost", state="hidden")
            v.page.wait_for_selector("#model option >> text=other", state="attached")
            v.page.click(".error button")
            v.page.wait_for_selector(".assistant .stats")
            assert v.answer == "Hello!" and v.page.locator(".error").count() == 0
        v.wrong.clear()  # the browser's own words about it


def test_models_for_embeddings_are_not_offered(visit: Any, tmp_path: Path) -> None:
    bert = write_bert(tmp_path / "bert.gguf")
    with visit("Hello!", "-m", str(bert)) as v:
        assert v.page.locator("#model option").all_inner_texts() == ["model"]
        listed = v.page.evaluate("fetch('v1/models').then(a => a.json()).then(a => a.data.map(m => m.id))")
        assert listed == ["model", "bert"]
        assert v.ask() == "Hello!"
