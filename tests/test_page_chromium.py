"""The page at /, in a real Chromium: over the fake model, and once over the real one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.live_server import live_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from pagedrun.native.library import Library

ATTACK = (
    "<img src=x onerror=\"window.pwned=1\"> <script>window.pwned=1</script> [a](javascript:window.pwned=1) "
    "![b](http://127.0.0.1:9/b.png) <svg/onload=window.pwned=1> `<i>c</i>` **<b onclick=window.pwned=1>d</b>**"
)  # fmt: skip
MARKDOWN = """# Title

A *soft* and **strong** word, `code`, ~~gone~~, snake_case_name, 2 * 3 * 4 and [a link](https://example.org/x).

1. one
2. two
   - inner
3. three

> said

| a | b |
|---|---|
| 1 | 2 |

```python
if a < b:
    print("x")
```
"""


def test_a_question_and_its_answer(visit: Any) -> None:
    with visit("Hello you.") as v:
        assert v.page.locator("#welcome").is_visible()
        assert v.ask("What is up?\nReally") == "Hello you."
        assert v.page.locator("#messages > .user .body").inner_text() == "What is up?\nReally"
        assert v.page.locator("#message").input_value() == ""
        assert "tokens" in v.page.locator(".stats").inner_text()
        assert v.titles == ["What is up?"] and v.page.title().startswith("What is up?")
        assert "4,096 tokens" in v.page.locator("#context").inner_text()
        v.until("document.querySelector('#status').textContent === 'The answer: Hello you.'")
        v.page.keyboard.type("a")
        v.page.keyboard.press("Shift+Enter")
        v.page.keyboard.type("b")
        assert v.page.locator("#message").input_value() == "a\nb"  # and it was not sent


def test_text_comes_and_can_be_stopped(visit: Any) -> None:
    with visit("word " * 800, step_s=0.01) as v:
        v.send()
        v.page.wait_for_selector("#stop", state="visible")
        v.until("document.querySelector('.assistant .text').textContent.length > 20")
        assert v.page.locator(".assistant").get_attribute("aria-busy") == "true"
        assert v.page.locator("#status").inner_text() == "The answer is being written."
        v.page.keyboard.press("Escape")
        v.done()
        assert v.page.locator(".note").inner_text() == "Stopped." and "word" in v.answer
        assert v.page.locator(".assistant").get_attribute("aria-busy") == "false"
        v.until("fetch('v1/pagedrun/stats').then(a => a.json()).then(a => a.running === 0)")
        assert v.page.evaluate("document.activeElement.id") == "message"


def test_conversations_stay(visit: Any) -> None:
    with visit() as v:
        v.ask("first")
        v.page.click("#new")
        assert v.page.locator("#welcome").is_visible() and v.page.locator("#messages > li").count() == 0
        v.ask("second")
        assert v.titles == ["second", "first"]
        v.page.reload()
        assert v.titles == ["second", "first"]
        assert v.page.locator("#messages .body").all_inner_texts() == ["second"]
        v.page.click("#list .open >> text=first")
        assert v.page.locator("#messages .body").all_inner_texts() == ["first"]
        v.page.focus("#list .current .open")
        v.page.keyboard.press("F2")
        v.page.keyboard.type("Another name")
        v.page.keyboard.press("Enter")
        assert sorted(v.titles) == ["Another name", "second"]
        v.page.keyboard.press("Delete")
        assert v.titles == ["second"] and v.page.locator("#welcome").is_visible()
        v.page.click("#toast-undo")
        assert sorted(v.titles) == ["Another name", "second"]
        assert v.page.locator("#messages .body").all_inner_texts() == ["first"]
        other = v.another()
        assert sorted(other.locator("#list .open").all_inner_texts()) == ["Another name", "second"]


def test_what_is_said_stays_text(visit: Any) -> None:
    with visit(ATTACK) as v:
        assert "<script>" in v.ask(ATTACK)
        assert v.page.locator("#messages img, #messages script, #messages b, #messages i").count() == 0
        v.page.reload()
        v.page.wait_for_selector("#messages .text")
        v.page.locator("#messages .text span >> text=a").first.click()
        assert v.page.evaluate("window.pwned") is None
        links = v.page.locator("#messages .text a").evaluate_all("every => every.map(a => [a.href, a.rel])")
        assert links == [["http://127.0.0.1:9/b.png", "noopener noreferrer"]]  # to be clicked; nothing was loaded
        refused = v.page.evaluate("() => { try { document.body.innerHTML = '<p>'; } catch (e) { return e.name } }")
        assert refused == "TypeError" and v.wrong  # Trusted Types
        v.wrong.clear()


def test_the_policy_holds(visit: Any) -> None:
    with visit() as v:
        answer = httpx.get(v.live.url)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert not re.search(r"<script(?![^>]*\bsrc=)|\bon\w+=|style=|https?://", answer.text)
        for file in re.findall(r'(?:src|href)="(page/[^"]+)"', answer.text):
            assert httpx.get(f"{v.live.url}/{file}").headers["x-content-type-options"] == "nosniff"
        etag = {"If-None-Match": answer.headers["etag"]}
        assert httpx.get(v.live.url, headers=etag).status_code == 304
        assert httpx.get(f"{v.live.url}/page/../app.py").status_code == 404
        v.page.evaluate("() => { const s = document.createElement('script'); s.text; document.body.append(s) }")
        with v.page.expect_console_message(lambda said: "Content Security Policy" in said.text):
            v.page.evaluate("() => { const i = new Image(); i.src = 'http://127.0.0.1:9/x.png' }")
        assert v.wrong
        v.wrong.clear()
        v.asked.clear()


def test_thinking_is_folded(visit: Any) -> None:
    with visit("<think>Let me see.</think>Blue.") as v:
        assert v.ask() == "Blue."
        assert not v.page.locator(".thinking > div").is_visible()
        v.page.focus(".thinking summary")
        v.page.keyboard.press("Enter")
        assert v.page.locator(".thinking > div").inner_text() == "Let me see."


def test_markdown(visit: Any) -> None:
    with visit(MARKDOWN) as v:
        v.ask()
        text = v.page.locator(".text")
        shape = text.evaluate("node => [...node.children].map(n => n.tagName + (n.className && '.' + n.className))")
        assert shape == ["H3", "P", "OL", "BLOCKQUOTE", "DIV.table", "DIV.code"]
        inline = text.locator("p").first.evaluate("node => [...node.children].map(n => [n.tagName, n.textContent])")
        assert inline == [["EM", "soft"], ["STRONG", "strong"], ["CODE", "code"], ["DEL", "gone"], ["A", "a link"]]
        assert text.locator("ol > li").count() == 3 and text.locator("ol ul > li").inner_text() == "inner"
        assert text.locator("th").all_inner_texts() == ["a", "b"]
        assert text.locator("pre").inner_text() == 'if a < b:\n    print("x")'
        v.context.grant_permissions(["clipboard-read", "clipboard-write"])
        v.page.click('[aria-label="Copy code"]')
        v.until("navigator.clipboard.readText().then(t => t.startsWith('if a < b'))")


SHOWN = r"""async (texts) => {
  const { show } = await import("/page/markdown.js");
  const tag = (node) => node.tagName.toLowerCase() + (node.className && " " + node.className);
  const inner = (node) => [...node.childNodes].map(told).join("");
  const told = (node) => (node.nodeType === 3 ? node.data : `<${tag(node)}>${inner(node)}</>`);
  return texts.map((text) => {
    const box = document.createElement("div");
    show(box, text);
    return inner(box);
  });
}"""
SMALL = {
    "***both*** and **a *b***": "<p><em><strong>both</></> and <strong>a <em>b</></></>",
    "one\ntwo  \nthree\\\nfour<br>five": "<p>one<br></>two<br></>three<br></>four<br></>five</>",
    r"\*not\* \_this\_, \\ and \d": r"<p>*not* _this_, \ and \d</>",
    r"\(a_1 * b_1 * c\), $x_i*y_i*z$, $$\{a\}$$": (
        r"<p><span math>\(a_1 * b_1 * c\)</>, <span math>$x_i*y_i*z$</>, <span math>$$\{a\}$$</></>"
    ),
    "$5 and $6, $HOME/$USER": "<p>$5 and $6, $HOME/$USER</>",
    "https://example.org/a_(b)?x=1. (https://example.org/c)": (
        "<p><a>https://example.org/a_(b)?x=1</>. (<a>https://example.org/c</>)</>"
    ),
    "## C# ##\n### F#": "<h4>C#</><h5>F#</>",
    "``a`b`` and ``c`": "<p><code>a`b</> and ``c`</>",
    "[a](https://example.org/a_(b))": "<p><a>a</></>",
    "|`a|b`|c \\| d|\n|:-:|-:|\n|1<br>2|3|": (
        "<div table><table><tr><th center><code>a|b</></><th right>c | d</></>"
        "<tr><td center>1<br></>2</><td right>3</></></></>"
    ),
}


def test_small_things_of_markdown(visit: Any) -> None:
    with visit() as v:
        assert dict(zip(SMALL, v.page.evaluate(SHOWN, list(SMALL)), strict=True)) == SMALL


def test_another_answer_and_another_question(visit: Any) -> None:
    with visit() as v:
        v.ask("one")
        v.ask("two")
        assert v.page.locator("#messages > li").count() == 4
        v.page.locator('[aria-label="Answer again"]').last.click()
        v.page.wait_for_selector("#messages > li:nth-child(4) .tools")
        assert v.page.locator("#messages .body").all_inner_texts() == ["one", "two"]
        v.page.locator("#messages > .user").first.hover()
        v.page.locator('[aria-label="Edit message"]').first.click()
        v.page.keyboard.press("Control+a")
        v.page.keyboard.type("uno")
        v.page.keyboard.press("Enter")
        v.page.wait_for_selector("#messages > li:nth-child(2) .tools")
        assert v.page.locator("#messages .body").all_inner_texts() == ["uno"]
        assert v.page.locator("#message").input_value() == ""


def test_one_answer_at_a_time(visit: Any) -> None:
    with visit("word " * 800, step_s=0.01) as v:
        v.send("one")
        v.until("document.querySelector('.assistant .text').textContent.length > 20")
        v.page.click("#new")
        v.send("two")
        assert "Another answer" in v.page.locator("#toast").inner_text()
        assert v.page.locator("#message").input_value() == "two"  # it is not lost
        v.page.click("#list .open >> text=one")
        assert "word" in v.answer and v.page.locator("#messages > .assistant").get_attribute("aria-busy") == "true"
        v.page.click("#stop")
        v.done()
        assert v.titles == ["one"] and v.page.locator(".note").inner_text() == "Stopped."


def test_a_key(visit: Any) -> None:
    with visit(key="k3y") as v:
        v.ask()
        v.context.clear_cookies()
        page = v.context.new_page()
        page.add_init_script("if (!window.name) { sessionStorage.clear(); window.name = 'x' }")
        page.goto(v.live.url)
        page.wait_for_selector("#key[open]")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key[open]")
        page.fill("#key-value", "k3y")
        page.keyboard.press("Enter")
        page.wait_for_selector("#model option", state="attached")
        assert page.evaluate("localStorage.getItem('pagedrun.key')") is None


def without_a_key(v: Any) -> Any:
    """Another tab, which was told no key."""
    v.context.add_init_script("if (!window.name) { sessionStorage.clear(); window.name = 'x' }")
    page = v.context.new_page()
    page.goto(v.live.url)
    page.wait_for_selector("#key[open]")
    return page


def test_a_message_is_sent_once_there_is_a_key(visit: Any) -> None:
    with visit(key="k3y") as v:
        page = without_a_key(v)
        page.keyboard.press("Escape")
        posts: list[Any] = []
        page.on("request", lambda r: posts.append(r.headers.get("authorization")) if r.method == "POST" else None)
        page.keyboard.type("hi")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key[open]")
        assert page.locator("#key-wrong").is_hidden()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-wrong", state="visible")
        page.keyboard.type("k3y")
        page.keyboard.press("Enter")
        page.wait_for_selector("#messages > .assistant .stats")
        assert page.locator("#messages .body").all_inner_texts() == ["hi"]
        assert page.locator(".text").all_inner_texts() == ["Hello!"] and page.locator(".error").count() == 0
        assert posts == [None, "Bearer k3y"]
        assert page.evaluate("document.activeElement.id") == "message"


def test_a_key_that_is_not_given_sends_nothing_later(visit: Any) -> None:
    with visit(key="k3y") as v:
        page = without_a_key(v)
        page.keyboard.press("Escape")
        page.keyboard.type("hi")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key[open]")
        page.keyboard.press("Escape")
        assert "wants an API key" in page.locator(".error").inner_text()
        page.click(".error button")
        page.wait_for_selector("#key[open]")
        page.click("#key-cancel")
        page.evaluate("sessionStorage.setItem('pagedrun.key', 'k3y')")
        page.click("#new")
        page.keyboard.type("another")
        page.keyboard.press("Enter")
        page.wait_for_selector("#messages > .assistant .stats")
        assert page.locator("#messages .body").all_inner_texts() == ["another"]
        page.click("#list .open >> text=hi")
        assert page.locator(".error").count() == 1


def test_settings_are_asked_for(visit: Any) -> None:
    with visit("x" * 50) as v:
        v.page.click("#settings-open")
        v.page.fill("[name=max_tokens]", "5")
        v.page.fill("[name=system]", "Be kind.")
        v.page.click("#settings .primary")
        bodies: list[Any] = []
        v.page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
        assert v.ask() == "xxxxx"
        assert "may not be longer" in v.page.locator(".note").inner_text()
        assert bodies[0]["max_tokens"] == 5 and bodies[0]["messages"][0] == {"role": "system", "content": "Be kind."}
        assert "temperature" not in bodies[0]


def test_by_keyboard_alone(visit: Any) -> None:
    with visit() as v:
        v.page.click(".brand")  # the first thing before it is the link
        v.page.keyboard.press("Shift+Tab")
        assert v.page.evaluate("document.activeElement.className") == "skip"
        assert v.page.locator(".skip").bounding_box()["y"] >= 0
        v.page.keyboard.press("Enter")
        v.page.keyboard.type("hi")
        v.page.keyboard.press("Enter")
        v.page.wait_for_selector(".assistant .tools")
        v.done()
        reached, path = set(), []
        for _ in range(40):
            v.page.keyboard.press("Tab")
            name = v.page.evaluate("e => (e = document.activeElement) && (e.getAttribute('aria-label') || e.id)")
            seen = "e => getComputedStyle(document.activeElement).outlineStyle"
            path.append((name, v.page.evaluate(seen)))
            reached.add(name)
        assert {"new", "Rename hi", "Delete hi", "side-toggle", "model"} <= reached | {"side-toggle"}
        assert {"Conversations", "Settings", "Memory and speed", "Edit message", "Answer again"} <= reached
        assert all(style != "none" for name, style in path if name not in ("message", "", "scroll"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 900, 320])
def test_any_screen(visit: Any, scheme: str, width: int) -> None:
    with visit(MARKDOWN * 3, color_scheme=scheme, reduced_motion="reduce") as v:
        v.page.set_viewport_size({"width": width, "height": 640})
        v.ask("hello " * 40)
        assert v.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        box = v.page.locator("#composer").bounding_box()
        assert box["y"] + box["height"] <= 640
        back = v.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", back)[:3])) < 200) == (scheme == "dark")
        assert v.page.locator("#side").evaluate("n => n.inert") == (width < 760)
        assert v.page.locator("#panel").evaluate("n => n.inert") == (width < 1080)
        if width < 760:
            v.page.click("#side-toggle")
            assert v.page.evaluate("document.activeElement.id") == "side-close"
            v.page.keyboard.press("Escape")
            assert v.page.evaluate("document.activeElement.id") == "side-toggle"
            assert v.page.locator("#shade").is_hidden()


def test_a_server_that_is_gone(visit: Any) -> None:
    with visit("word " * 800, step_s=0.01) as v:
        v.send()
        v.until("document.querySelector('.assistant .text').textContent.length > 20")
        v.live.process.kill()
        v.page.wait_for_selector(".error")
        assert "word" in v.answer and "connection" in v.page.locator(".error").inner_text()
        v.page.click(".error button")
        v.page.wait_for_selector(".error >> text=cannot be reached")
        v.wrong.clear()  # the browser's own words about it


@pytest.mark.real
def test_pages_of_a_real_model(library: Library, smollm2: Path, browser: Browser, tmp_path: Path) -> None:
    with live_server(tmp_path, str(smollm2), "--max-seq-len", "2048", "-t", "1", CUDA_VISIBLE_DEVICES="") as live:
        from tests.page_visits import Visit

        context = browser.new_context()
        v = Visit(context, live)
        v.page.wait_for_selector('canvas[role=img][aria-label^="RAM: 0 of"]')
        v.ask("What is the capital of France?")
        assert v.answer.strip()  # sampled, so nobody knows what
        v.page.wait_for_selector('canvas[role=img][aria-label^="RAM: 1 of"]')
        painted = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x)"
        assert v.page.locator(".tier.device canvas").evaluate(painted)
        assert v.page.locator("#memory-figures dd").first.inner_text() != "0"
        assert v.wrong == []
        context.close()
