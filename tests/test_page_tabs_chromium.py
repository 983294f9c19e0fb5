"""Several tabs of the page at /, which share the browser's storage, in a real Chromium."""

from __future__ import annotations

from typing import Any

LONG = "word " * 800
TEXTS = "[...document.querySelectorAll('#messages > li')].map(t => t.querySelector('.body, .text')?.textContent.trim())"


def texts(page: Any) -> list[str]:
    """Of the messages that are shown."""
    found: list[str] = page.evaluate(TEXTS)
    return found


def titles(page: Any) -> list[str]:
    found: list[str] = page.locator("#list .open").all_inner_texts()
    return found


def test_what_another_tab_adds_continues_renames_and_deletes(visit: Any) -> None:
    with visit() as v:
        other = v.another()
        v.ask("first")
        other.wait_for_selector("#list .open >> text=first")
        assert other.locator("#welcome").is_visible()
        other.click("#list .open")
        assert texts(other) == ["first", "Hello!"]
        v.ask("second")
        other.wait_for_selector("#messages > li:nth-child(4) .tools")
        assert texts(other) == ["first", "Hello!", "second", "Hello!"]
        other.fill("#message", "third")
        other.keyboard.press("Enter")
        v.page.wait_for_selector("#messages > li:nth-child(6) .tools")
        assert texts(v.page) == ["first", "Hello!", "second", "Hello!", "third", "Hello!"]
        v.page.focus("#list .open")
        v.page.keyboard.press("F2")
        v.page.keyboard.type("Named")
        v.page.keyboard.press("Enter")
        other.wait_for_selector("#list .open >> text=Named")
        assert other.locator("#title").inner_text() == "Named"
        v.page.keyboard.press("Delete")
        other.wait_for_selector("#welcome", state="visible")
        assert titles(other) == [] and "deleted in another tab" in other.locator("#toast").inner_text()
        v.page.click("#toast-undo")
        other.wait_for_selector("#list .open >> text=Named")
        other.click("#list .open")
        assert texts(other) == texts(v.page) and len(texts(other)) == 6


def test_what_is_typed_stays(visit: Any) -> None:
    with visit() as v:
        other = v.another()
        v.ask("first")
        v.ask("second")
        other.click("#list .open")
        other.fill("#message", "half a")
        other.locator('[aria-label="Edit message"]').last.click()
        other.keyboard.type(" and more")
        v.ask("third")
        other.wait_for_selector("#messages > li:nth-child(6) .tools")
        assert other.locator(".edit textarea").input_value() == "second and more"
        other.keyboard.type("!")  # the focus is where it was
        assert other.locator(".edit textarea").input_value() == "second and more!"
        v.page.focus("#list .current .open")
        v.page.keyboard.press("Delete")
        other.wait_for_selector("#welcome", state="visible")
        assert other.locator("#message").input_value() == "half a\n\nsecond and more!"


def type_title(page: Any, text: str) -> None:
    """Begin to rename the only conversation."""
    page.wait_for_selector("#list .open")
    page.focus("#list .open")
    page.keyboard.press("F2")
    page.keyboard.type(text)


def test_a_title_that_is_being_written_stays(visit: Any) -> None:
    with visit() as v:
        other = v.another()
        v.ask("first")
        type_title(other, "My na")
        v.page.click("#new")
        v.ask("second")
        other.keyboard.type("me")
        other.keyboard.press("Enter")
        assert sorted(titles(other)) == ["My name", "second"]
        v.page.wait_for_selector("#list .open >> text=My name")


def test_an_answer_is_seen_from_another_tab(visit: Any) -> None:
    with visit(LONG, step_s=0.01) as v:
        other = v.another()
        v.send("first")
        other.wait_for_selector("#list .open")
        other.click("#list .open")
        other.wait_for_selector(".assistant[aria-busy=true]")
        other.wait_for_selector(".assistant .text >> text=word")
        other.fill("#message", "second")
        other.keyboard.press("Enter")
        assert "Another tab is writing" in other.locator("#toast").inner_text()
        assert other.locator("#message").input_value() == "second" and len(texts(other)) == 2
        v.page.click("#stop")
        other.wait_for_selector(".note >> text=Stopped.")
        assert texts(other) == texts(v.page)
        other.focus("#message")
        other.keyboard.press("Enter")
        v.page.wait_for_selector("#messages > li:nth-child(4)[aria-busy=true]")
        other.click("#stop")


def test_renamed_and_deleted_while_it_is_written(visit: Any) -> None:
    with visit(LONG, step_s=0.01) as v:
        other = v.another()
        v.send("first")
        type_title(other, "Named")
        other.keyboard.press("Enter")
        v.until("document.querySelector('#title').textContent === 'Named'")
        v.until("document.querySelector('.assistant .text').textContent.length > 300")  # it was saved meanwhile
        assert titles(other) == ["Named"]
        other.keyboard.press("Delete")
        v.page.wait_for_selector("#welcome", state="visible")
        v.done()
        assert v.titles == [] == titles(other)
        v.until("fetch('v1/pagedrun/stats').then(a => a.json()).then(a => a.running === 0)")


def test_two_tabs_never_write_over_each_other(visit: Any) -> None:
    """A tab that has not heard of the other's message goes on with a copy."""
    with visit() as v:
        v.ask("first")
        deaf = "addEventListener('storage', e => e.stopImmediatePropagation(), true)"
        v.context.add_init_script(
            deaf + "; document.addEventListener('visibilitychange', e => e.stopImmediatePropagation(), true)"
        )
        other = v.another()
        other.click("#list .open")
        v.ask("mine")
        assert texts(other) == ["first", "Hello!"]
        other.fill("#message", "theirs")
        other.keyboard.press("Enter")
        other.wait_for_selector("#messages > li:nth-child(4) .tools")
        assert "copy" in other.locator("#toast").inner_text()
        v.page.wait_for_selector("#list .open >> text=first (copy)")
        assert sorted(v.titles) == ["first", "first (copy)"] == sorted(titles(other))
        assert texts(v.page) == ["first", "Hello!", "mine", "Hello!"]
        v.page.click("#list .open >> text=(copy)")
        assert texts(v.page) == ["first", "Hello!", "theirs", "Hello!"]
        other.reload()
        assert texts(other) == ["first", "Hello!", "theirs", "Hello!"]


def test_a_page_that_is_left_while_it_writes(visit: Any) -> None:
    with visit(LONG, step_s=0.01) as v:
        other = v.another()
        v.send("first")
        v.until("document.querySelector('.assistant .text').textContent.length > 20")
        v.page.reload()
        v.page.wait_for_selector(".note >> text=The answer ends here")
        assert "word" in v.answer and v.page.locator(".assistant").get_attribute("aria-busy") == "false"
        v.until("fetch('v1/pagedrun/stats').then(a => a.json()).then(a => a.running === 0)")
        other.click("#list .open")
        assert other.locator(".note").count() == 1


def test_a_page_that_died_while_it_wrote(visit: Any) -> None:
    """Nobody says any more that the answer is written: half a minute later it is over."""
    with visit() as v:
        v.ask("first")
        dies = "() => { const k = Object.keys(localStorage).find(k => k.startsWith('pagedrun.chat.'));"
        dies += "const c = JSON.parse(localStorage[k]); c.messages[1].writing = Date.now(); c.rev = 'dead.1';"
        dies += "localStorage[k] = JSON.stringify(c) }"
        v.context.add_init_script("const now = Date.now; window.later = 0; Date.now = () => now() + window.later")
        other = v.another()
        other.click("#list .open")
        v.page.evaluate(dies)
        other.wait_for_selector(".assistant[aria-busy=true]")
        other.evaluate("window.later = 30_000")
        other.wait_for_selector(".note >> text=The answer ends here")
        other.fill("#message", "second")
        other.keyboard.press("Enter")
        other.wait_for_selector("#messages > li:nth-child(4) .tools")
        assert other.locator(".note").count() == 1
