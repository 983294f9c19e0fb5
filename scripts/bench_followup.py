"""Follow-up turns of a long chat: tokens that are computed again, and time to the first one, against llama-server.

    python scripts/bench_followup.py tiny.gguf --name cpu                                  4,096 tokens of history
    python scripts/vram_ballast.py 6 -- python scripts/bench_followup.py 35b.gguf --gpu --answer 32 --name 35b \\
        --server-args "-ngl 99 -ncmoe 40 -fit off -b 2048 -ub 2048"                        32,768
    ... --side pagedrun        only one side, so that a run is short; a further run goes on with the other
    ... --skip "edit again"    without some turns

    first        the history as one prompt: nothing is known of it
    append       the last answer as it was, and a question
    again        the same prompt: the answer is generated anew
    stripped     the last answer without its first half, as templates drop thinking from history, and a question
    edit         one word in the middle of the history is another one
    edit again   yet another one
    branch       another question after three quarters of the history
    undo         another last question
    back         the chat as it was before the edit goes on

Both get the same token ids one prompt after the other, in a process that has loaded the model with its defaults: of
llama-server its prompt cache in RAM (--cache-ram), its checkpoints, and where messages begin, as its chat would tell
it. (In 6 GiB its own fitting reads prompts at a tenth of the speed that it has with the placement above, which is that
of pagedrun's plan; all else is its default.) The answer is one token again and again by a bias, so that it is the same
on both sides.

new        tokens after what the prompt has in common with all that was computed before: fewer cannot be
computed   tokens of the prompt that were computed
TTFT       from the request to the first token's text, in seconds; llama-server's comes over HTTP

Passes (exit 0) if pagedrun computed no more than `new` and 32, of the first edit and the branch `new` and an interval
(2,048). For a model that can go back to any token both compute `new`, and little else is to be seen.
What was measured is kept in results/followup-NAME.rows.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import bench

USERS_ENVIRONMENT = dict(os.environ)  # loading our library changes it, and llama-server must not inherit that
SIDES = ("pagedrun", "llama-server")
SLACK, INTERVAL = 32, 2048  # what may be computed beside what is new
BEFORE = ("edit", "branch")  # where nobody was before: up to an interval
WORDS = range(1000, 30_000)  # ordinary tokens
START, END = "<|im_start|>{}\n", "<|im_end|>\n"
PIECES = (*(START.format(role) for role in ("system", "user", "assistant")), END, "<think>\n", " the")
ROOM = 1024  # tokens of the context beside the history
LOADING = 300.0  # seconds that llama-server may take to load
Tokens = list[int]


@dataclass(frozen=True)
class Turn:
    """A prompt. new: its tokens that cannot be known."""

    name: str
    prompt: Tokens
    new: int

    @property
    def allowed(self) -> int:
        """How many may be computed."""
        return self.new + (INTERVAL if self.name in BEFORE else SLACK)


class Script:
    """The turns of a chat of random words, but for `skip`. pieces: tokens of PIECES; answer: tokens of each answer."""

    def __init__(self, seed: int, size: int, answer: int, pieces: dict[str, Tokens], skip: Sequence[str] = ()) -> None:
        self._rng = random.Random(seed)
        self._skip = skip
        self._pieces, self._answer = pieces, answer
        self._known: list[Tokens] = []
        self._size = size

    def turns(self) -> Iterator[Turn]:
        """One after the other."""
        for name, prompt in self._prompts():
            if name not in self._skip:
                yield self._turn(name, prompt)

    def _prompts(self) -> Iterator[tuple[str, Tokens]]:
        opening = [*self._pieces[PIECES[2]], *self._pieces["<think>\n"]]
        bare, answer = self._pieces[PIECES[2]], [self._pieces[" the"][0]] * self._answer
        history, starts = self._history()
        question, end = self._said("user", 48), self._pieces[END]
        yield "first", history + opening
        second = history + opening + answer + end + question
        yield "append", second + opening
        yield "again", second + opening
        third = second + bare + answer[self._answer // 2 :] + end + self._said("user", 48)
        yield "stripped", third + opening
        middle = next((at for at in starts if at >= len(history) // 2), starts[-1]) + 20
        for name in ("edit", "edit again"):
            yield name, [*third[:middle], self._word(), *third[middle + 1 :], *opening]
        cut = [at for at in starts if at <= len(history) * 3 // 4][-1]
        yield "branch", third[:cut] + self._said("user", 48) + opening
        yield "undo", second[: -len(question)] + self._said("user", 40) + opening
        yield "back", third + opening + answer + end + self._said("user", 48) + opening

    def _turn(self, name: str, prompt: Tokens) -> Turn:
        common = max((alike(prompt, other) for other in self._known), default=0)
        self._known.append(prompt + [self._pieces[" the"][0]] * (self._answer - 1))  # nobody computes the last one
        return Turn(name, prompt, len(prompt) - min(common, len(prompt) - 1))

    def _history(self) -> tuple[Tokens, list[int]]:
        """Messages, and where those of the user start."""
        tokens, starts = self._said("system", 200), []
        while len(tokens) < self._size:
            starts.append(len(tokens))
            for role, n in (("user", 120), ("assistant", 250)):
                tokens += self._said(role, min(n, max(self._size - len(tokens), 24)))
        return tokens + self._said("user", 48), starts

    def _said(self, role: str, n: int) -> Tokens:
        return [*self._pieces[START.format(role)], *(self._word() for _ in range(n)), *self._pieces[END]]

    def _word(self) -> int:
        return self._rng.choice(WORDS)


def alike(a: Tokens, b: Tokens) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@dataclass(frozen=True)
class Side:
    """A model that is loaded. tokenize: text to tokens; ask: (tokens of a prompt computed, seconds to the first)."""

    tokenize: Callable[[str], Tokens]
    ask: Callable[[Tokens], tuple[int, float]]
    facts: dict[str, Any]


def measure(side: Side, args: argparse.Namespace) -> dict[str, Any]:
    """All turns of all rounds on one side."""
    pieces = {text: side.tokenize(text) for text in PIECES}
    turns: dict[str, list[dict[str, Any]]] = {}
    for seed in range(args.rounds):
        for turn in Script(seed, args.tokens, args.answer, pieces, args.skip.split(",")).turns():
            computed, seconds = side.ask(turn.prompt)
            row = {"prompt": len(turn.prompt), "new": turn.new, "allowed": turn.allowed}
            turns.setdefault(turn.name, []).append(row | {"computed": computed, "seconds": seconds})
            print(f"  {turn.name}: {computed:,} of {len(turn.prompt):,}, {seconds:.2f} s", file=sys.stderr, flush=True)
    return {"turns": turns, "load": os.getloadavg()[1]} | side.facts


@contextlib.contextmanager
def pagedrun(args: argparse.Namespace) -> Iterator[Side]:
    """The engine, in this process."""
    from pagedrun.config import EngineConfig
    from pagedrun.load import load_service
    from pagedrun.request import Finished, GenerationRequest
    from pagedrun.sampling import SamplingParams

    config = EngineConfig(
        max_seq_len=args.tokens + ROOM + 4 * args.answer, gpu_layers=-1 if args.gpu else 0, threads=args.threads
    )
    with load_service(args.model, config) as service:

        def tokenize(text: str) -> Tokens:
            return service.vocab.tokenize(text, add_special=False, parse_special=True)

        bias = ((tokenize(" the")[0], 100.0),)
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, logit_bias=bias)

        def ask(prompt: Tokens) -> tuple[int, float]:
            request = GenerationRequest(prompt=tuple(prompt), sampling=sampling, max_tokens=args.answer)
            began = time.perf_counter()
            first = 0.0
            for event in service.submit(request):
                first = first or time.perf_counter() - began
                if isinstance(event, Finished):
                    if event.error is not None:
                        raise event.error
                    return event.usage.prompt_tokens - event.usage.cached_tokens, first
            raise RuntimeError("the answer has no end")

        facts = {"can rewind": service.model.can_rewind, "batch": service.limits.max_batch_tokens}
        yield Side(tokenize, ask, facts)


@contextlib.contextmanager
def llama_server(args: argparse.Namespace) -> Iterator[Side]:
    """The program of the same build, with its defaults."""
    from pagedrun.runtime.store import find_runtime

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = args.tokens + ROOM + 4 * args.answer
    command = [str(find_runtime().program("llama-server")), "-m", str(args.model), "--port", str(port), "-c", str(size)]
    command += ["-t", str(args.threads), "--no-webui", *([] if args.gpu else ["-ngl", "0"])]
    command += args.server_args.split()
    log = bench.RESULTS / f".llama-server-{args.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=USERS_ENVIRONMENT)
        try:
            wait_for(port, process, log)
            yield http_side(port, args)
        finally:
            process.terminate()
            process.wait()
    log.unlink(missing_ok=True)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it serves. Raises RuntimeError with the end of its log."""
    until = time.monotonic() + LOADING
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError("llama-server does not serve:\n" + "\n".join(log.read_text().splitlines()[-8:]))


def http_side(port: int, args: argparse.Namespace) -> Side:
    """What it answers."""

    def post(path: str, body: dict[str, Any]) -> Any:
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        return urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, kind), timeout=600)

    def tokenize(text: str) -> Tokens:
        with post("/tokenize", {"content": text, "add_special": False, "parse_special": True}) as answer:
            tokens: Tokens = json.load(answer)["tokens"]
            return tokens

    likely = tokenize(" the")[0]
    starts = [{"role": role, "delimiter": START.format(role)} for role in ("user", "assistant")]
    sampling = {"temperature": 0.0, "ignore_eos": True, "logit_bias": [[likely, 100.0]], "n_predict": args.answer}
    wanted = sampling | {"stream": True, "cache_prompt": True, "message_delimiters": starts}

    def ask(prompt: Tokens) -> tuple[int, float]:
        began = time.perf_counter()
        first = 0.0
        with post("/completion", wanted | {"prompt": prompt}) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                first = first or time.perf_counter() - began
                event = json.loads(line[len(b"data: ") :])
                if event.get("stop"):
                    return int(event["timings"]["prompt_n"]), first
        raise RuntimeError("the answer has no end")

    return Side(tokenize, ask, {})


def child(args: argparse.Namespace) -> dict[str, Any]:
    """pagedrun in a process of its own, so that the GPU is free for the other side."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child"]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def on_server(args: argparse.Namespace) -> dict[str, Any]:
    """llama-server's row."""
    with llama_server(args) as side:
        return measure(side, args)


def row(name: str, sides: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """One turn: counts of the first round, medians of the times."""
    first = next(iter(sides.values()))[0]
    found: dict[str, Any] = {"turn": name, "prompt": first["prompt"], "new": first["new"]}
    found |= {f"{side} computed": max(r["computed"] for r in rows) for side, rows in sides.items()}
    times = {side: statistics.median(r["seconds"] for r in rows) for side, rows in sides.items()}
    found |= {f"{side} TTFT s": seconds for side, seconds in times.items()}
    if len(times) == len(SIDES):
        found["times faster"] = times[SIDES[1]] / times[SIDES[0]]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="cpu", help="of the result files")
    parser.add_argument("--tokens", type=int, default=0, help="of the history")
    parser.add_argument("--answer", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=1, help="chats, one after the other")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--skip", default="", help="turns, with commas")
    parser.add_argument("--server-args", default="", help="more arguments for llama-server")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model is None:
        from pagedrun import hub

        args.model = hub.fetch_default_model()
    args.tokens = args.tokens or (32_768 if args.gpu else 4_096)
    if not args.threads:
        from pagedrun.native.placement import physical_cores

        args.threads = physical_cores()
    if args.child:
        with pagedrun(args) as side:
            print(json.dumps(measure(side, args)))
        return 0
    kept = bench.Kept(f"followup-{args.name}")
    measures = {SIDES[0]: lambda: child(args), SIDES[1]: lambda: on_server(args)}
    found = {side: kept.row(side, measures[side]) for side in SIDES if args.side in {None, side} or side in kept.rows}
    return report(args, found, kept.note)


def report(args: argparse.Namespace, found: dict[str, dict[str, Any]], when: str) -> int:
    """Write the table; 0 if pagedrun computed no more than it may."""
    names = [name for name in next(iter(found.values()))["turns"] if all(name in of["turns"] for of in found.values())]
    rows = [row(name, {side: of["turns"][name] for side, of in found.items()}) for name in names]
    ours = found.get(SIDES[0], {}).get("turns", {})
    over = [name for name, of in ours.items() if any(r["computed"] > r["allowed"] for r in of)]
    load = max(of["load"] for of in found.values())
    limits = f"{SLACK} tokens more than are new, where nobody was before {INTERVAL:,}"
    notes = [
        f"{args.model.name}, {args.tokens:,} tokens of history, {args.answer} of each answer, {args.threads} threads, "
        f"{args.rounds} rounds; `computed` is the most of any round, times are medians",
        f"llama-server with its defaults{f' and {args.server_args}' if args.server_args else ''}",
        "pagedrun computed more than it may: " + ", ".join(over)
        if over
        else f"pagedrun keeps to what it may: {limits}",
        f"others had the machine too: its load was {load:.0f} of {args.threads}" if load > 2 * args.threads else "",
        when,
    ]
    bench.write(f"followup-{args.name}", f"Follow-up turns of a long chat ({args.name})", rows, notes=notes)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
