"""`pagedrun complete` against llama.cpp's own completion program: 20 prompts, the same greedy tokens.

    .venv/bin/python scripts/compare_completion.py             compares live, both programs of the same build
    .venv/bin/python scripts/compare_completion.py --record    also writes tests/data/completions.json

A recorded vector stops before the first token whose two best candidates are closer than 0.1 in logits: from there
on another processor may rightly choose the other one.
"""

from __future__ import annotations

import argparse
import codecs
import json
import subprocess
import sys
from pathlib import Path

import bench

from pagedrun import hub
from pagedrun.config import EngineConfig
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


def of_llama_cpp(model: Path, prompt: str, threads: int, gpu_layers: int) -> str:
    command = [
        str(find_runtime().bin / "llama-completion"), "-m", str(model), "-no-cnv", "--no-display-prompt", "--no-warmup",
        "--temp", "0", "-n", str(N_TOKENS), "-t", str(threads), "-ngl", str(gpu_layers), "-p", prompt,
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
    # The program ends its output with two newlines of its own, and with a note if the text ended.
    out = out.removesuffix(b"\n\n").removesuffix(b" [end of text]")
    # It prints the bytes of each token, also of half a character at the end; pagedrun never does.
    return codecs.getincrementaldecoder("utf-8")("replace").decode(out)


def of_pagedrun(model: Path, prompt: str, threads: int, gpu_layers: int) -> str:
    command = [
        sys.executable, "-m", "pagedrun", "complete", "--raw", "-m", str(model), "-n", str(N_TOKENS), "--temp", "0",
        "--threads", str(threads), "--gpu-layers", str(gpu_layers),
    ]  # fmt: skip
    return subprocess.run(command, input=prompt.encode(), capture_output=True, check=True).stdout.decode()


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
    rows = []
    for prompt in PROMPTS:
        theirs, ours = (run(model, prompt, args.threads, args.gpu_layers) for run in (of_llama_cpp, of_pagedrun))
        rows.append(
            {"prompt": repr(prompt), "answer": repr(ours), "same": "yes" if ours == theirs else f"NO: {theirs!r}"}
        )
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
