"""`pagedrun chat` on the real default model, in a real terminal."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagedrun.paths import cache_dir
from tests.repl_terminal import CTRL_C, CTRL_D, ENTER, Terminal

if TYPE_CHECKING:
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real


def test_a_real_model_talks_is_stopped_and_goes_on(library: Library, smollm2: Path, tmp_path: Path) -> None:
    env = {"PAGEDRUN_STATE": str(tmp_path), "PAGEDRUN_CACHE": str(cache_dir())}
    env |= {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "CUDA_VISIBLE_DEVICES": ""}
    options = ("--temp", "0", "--system", "You are a helpful assistant.", "--max-seq-len", "2048")
    t = Terminal("-m", "pagedrun", "chat", str(smollm2), *options, env=env)
    try:
        t.wait_for(r"^>\s*$", timeout=60)
        assert re.search(r"Q4_1 · 9\d\.\d MiB · context 2,048 tokens · CPU", t.text)
        t.send("What is the capital of France?" + ENTER)
        t.wait_for("Paris", timeout=60)
        t.wait_for(r"^>\s*$", timeout=60)
        t.send("Write a long story about a dragon." + ENTER)
        t.wait_for("[dD]ragon(.|\n)*[dD]ragon", timeout=60)
        t.send(CTRL_C)
        t.wait_for("stopped; what was said is kept", timeout=30)
        t.send("/save story" + ENTER)
        t.wait_for("saved to")
        t.send("/stats" + ENTER)
        t.wait_for(r"^session +2 answers$")
        t.wait_for(r"^last answer +.* tok/s$")
        t.send("/regenerate" + ENTER)
        t.wait_for("^> /regenerate\n(.|\n)*[dD]ragon", timeout=60)
        t.send(CTRL_C)
        t.wait_for("stopped; what was said is kept", times=2, timeout=30)
        t.send(CTRL_D)
        assert t.wait_for_exit() == 0
    finally:
        t.close()
    first, second = json.loads((tmp_path / "chats" / "story.json").read_text())["turns"]
    assert "Paris" in first["answer"] and first["end"] == "stop"
    assert second["answer"] and second["end"] == "cancelled"
