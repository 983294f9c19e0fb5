"""`pagedrun complete` against llama.cpp's own completion program: 20 prompts, the same greedy tokens.

    .venv/bin/python scripts/compare_completion.py             compares live, both programs of the same build
    .venv/bin/python scripts/compare_completion.py --record    also writes tests/data/completions.json

Both compute the same batches: for a model with recurrent layers pagedrun computes the last token of a prompt by
itself, after a snapshot, and llama-completion does so when it has a file to save its state in. Where answers differ
all the same, the result has the margin of the two best tokens there: other batches and kernels round differently in the
last bits, which can only matter where it is small.

A recorded vector stops before the first token whose two best candidates are closer than 0.1 in logits: from there
on another processor may rightly choose the other one.
"""

from __future__ import annotations

import argparse
import codecs
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench

from pagedrun import hub
from pagedrun.config import EngineConfig
from pagedrun.gguf_file import read_facts
from pagedrun.load import load_service
from pagedrun.native.placement import physical_cores
from pagedrun.request import GenerationRequest, TextDelta
from pagedrun.runtime.store import find_runtime
from pagedrun.sampling import SamplingParams

N_TOKENS = 8
MIN_MARGIN = 0.1
VECTORS = Path(__file__).parents[1] / "tests" / "data" / "completions.json"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "The quick brown fox",
    "Water boils at",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,\n\n",
    "The three primary colours are",
    "import numpy as np\n\nx = np.",
    "To be, or not to be,",
    "  leading spaces and a trailing one ",
    "Größe, naïve, 日本語, 😀:",
    "<html>\n<head>\n<title>",
    "Q: What is the largest planet?\nA:",
    "The recipe needs flour, eggs, milk and",
    "In 1969, humans first",
    "A B C D E F",
    "{\"name\": \"Alice\", \"age\":",
    "x",
)  # fmt: skip


@dataclass(frozen=True)
class Sides:
    """Both programs over one model. recurrent: whether it has layers with a state."""

    model: Path
    threads: int
    gpu_layers: int
    recurrent: bool

    def of_llama_cpp(self, prompt: str) -> str:
        """The answer of llama-completion."""
        with tempfile.TemporaryDirectory() as folder:
            command = [
                str(find_runtime().bin / "llama-completion"), "-m", str(self.model), "-no-cnv", "--no-display-prompt",
                "--no-warmup", "--temp", "0", "-n", str(N_TOKENS), "-t", str(self.threads),
                "-ngl", str(self.gpu_layers), "-fa", "on", "-p", prompt,
                *(["--prompt-cache", f"{folder}/state"] if self.recurrent else []),
            ]  # fmt: skip
            out = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
        # The program ends its output with two newlines of its own, and with a note if the text ended.
        out = out.removesuffix(b"\n\n").removesuffix(b" [end of text]")
        # It prints the bytes of each token, also of half a character at the end; pagedrun never does.
        return codecs.getincrementaldecoder("utf-8")("replace").decode(out)

    def of_pagedrun(self, prompt: str) -> str:
        """The answer of pagedrun."""
        command = [
            sys.executable, "-m", "pagedrun", "complete", "--raw", "-m", str(self.model), "-n", str(N_TOKENS),
            "--temp", "0", "--threads", str(self.threads), "--gpu-layers", str(self.gpu_layers), "--cache-disk", "0",
        ]  # fmt: skip
        return subprocess.run(command, input=prompt.encode(), capture_output=True, check=True).stdout.decode()

    def margin(self, prompt: str, theirs: str) -> str:
        """How far apart pagedrun's two best tokens were where its answer leaves the other one."""
        with load_service(self.model, EngineConfig(threads=self.threads, gpu_layers=self.gpu_layers)) as service:
            ids = tuple(service.vocab.tokenize(prompt, add_special=True, parse_special=True))
            request = GenerationRequest(
                prompt=ids, max_tokens=N_TOKENS, sampling=SamplingParams(temperature=0.0), logprobs=2
            )
            text = ""
            for event in service.submit(request):
                if isinstance(event, TextDelta):
                    text += event.text
                    if not theirs.startswith(text) and event.logprobs:
                        (_, best), (_, second) = event.logprobs[-1].top
                        return f"{best - second:.4f}"
        return "-"


def vectors(model: Path, threads: int) -> list[dict[str, object]]:
    """Each prompt with the tokens that are certain: up to the first narrow margin."""
    recorded: list[dict[str, object]] = []
    with load_service(model, EngineConfig(threads=threads)) as service:
        for prompt in PROMPTS:
            ids = tuple(service.vocab.tokenize(prompt, add_special=True, parse_special=True))
            request = GenerationRequest(
                prompt=ids, max_tokens=N_TOKENS, sampling=SamplingParams(temperature=0.0), logprobs=2
            )
            logprobs = [p for e in service.submit(request) if isinstance(e, TextDelta) for p in e.logprobs]
            narrow = (i for i, p in enumerate(logprobs) if p.top[0][1] - p.top[1][1] < MIN_MARGIN)
            tokens = [p.token for p in logprobs][: next(narrow, len(logprobs))]
            recorded.append({"prompt": prompt, "prompt_tokens": ids, "tokens": tokens})
    return recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--name", default="cpu", help="of the result files")
    parser.add_argument("--threads", type=int, default=physical_cores())
    args = parser.parse_args()
    model = args.model or hub.fetch_default_model()
    facts = read_facts(model)
    recurrent = bool(facts.kv and facts.kv.recurrent_layers)
    sides = Sides(model, args.threads, args.gpu_layers, recurrent)
    rows: list[dict[str, Any]] = []
    for prompt in PROMPTS:
        theirs, ours = sides.of_llama_cpp(prompt), sides.of_pagedrun(prompt)
        row = {"prompt": repr(prompt), "answer": repr(ours), "same": "yes", "margin": ""}
        if ours != theirs:
            row |= {"same": f"NO: {theirs!r}", "margin": sides.margin(prompt, theirs)}
        rows.append(row)
    same = sum(row["same"] == "yes" for row in rows)
    note = f"{same} of {len(rows)} the same, {N_TOKENS} greedy tokens each, {model.name}"
    bench.write(
        f"completions-{args.name}", "pagedrun complete against llama-completion of the same build", rows, notes=[note]
    )
    if same < len(rows):
        sys.exit(1)
    if args.record:
        VECTORS.write_text(json.dumps(vectors(model, args.threads), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
