"""Two hundred conversations against a pool for twenty: all end, nobody is starved, and every answer is as if alone.

    python scripts/overload.py                                  SmolLM2, on the CPU
    python scripts/overload.py SmolLM2.gguf tiny.gguf --name cpu

All are asked for at once; the device has pages for 20 of average length, and RAM for 20 more. Answers are greedy.

    overtaken     the most later ones that got a slot before an earlier one; may be no more than there are slots
    ended after   the most later ones that had ended when an earlier one did; may be no more than twice as many as there
                  are slots: those that got a slot before it, and those beside it, whose prompts may be shorter
    paused        how often one that ran had to wait for memory; evicted: pages that left the device
    stock differs the largest difference of a logit between two ways in which llama.cpp's own context, with nobody else
                  in it, computes the same prompts and answers: in one batch, and in batches of 32 and of 1
    largest gap   teacher forcing: each answer is given to that context; by how much the logit of a token that was
                  chosen is below the likeliest's at most. It may be twice the difference above: batches round otherwise
    not likeliest tokens for which it is more than 0
    swapped       share of the answers that this finds to be wrong when each is taken for its neighbour's

Exit code 1: somebody failed, was overtaken by more, or was answered otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import arguments
import bench

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.overload_runs import Crowd, judge, overload


def row(path: Path, crowd: Crowd) -> dict[str, Any]:
    """One model."""
    run = overload(path, crowd)
    assert run.kv is not None
    verdict = judge(path, run.prompts, run.answers, crowd.threads)
    bad = [f"{e}" for e in run.failed[:3]]
    bad += [f"overtaken by {run.overtaken}"] if run.overtaken > crowd.slots else []
    bad += [] if verdict.good else ["answers differ"]
    bad += ["more memory than allowed"] if run.kv.device.n_bytes + run.kv.buffer_bytes > run.budget else []
    return {
        "model": path.name,
        "ended": f"{len(run.ends) - len(run.failed)} of {crowd.n}",
        "overtaken": run.overtaken,
        "ended after": run.ended_after,
        "paused": run.pauses,
        "evicted": run.kv.evictions,
        "s": run.seconds,
        "tokens": verdict.tokens,
        "stock differs": verdict.differ,
        "largest gap": verdict.gap,
        "not likeliest": verdict.others,
        "swapped": f"{verdict.swapped:.0%}",
        "wrong": "; ".join(bad) or "nothing",
    }


def main() -> int:
    parser = arguments.parser(
        __doc__,
        Crowd,
        *("slots", "seed", "threads"),
        fit="conversations that the device has pages for",
        prompt="tokens, up to a half more or less",
        answer="tokens",
    )
    parser.add_argument("--requests", dest="n", type=int, default=Crowd.n)
    args = parser.parse_args()
    crowd, kept = arguments.made(Crowd, args), bench.Kept(f"overload-{args.name}")
    rows = [kept.shown(path.name, lambda p=path: row(p, crowd)) for path in arguments.models(args)]
    for found in rows:
        if found["ended after"] > 2 * crowd.slots:
            found["wrong"] = f"{found['wrong']}; starved".removeprefix("nothing; ")
    notes = [
        f"{crowd.n} requests at once, {crowd.slots} slots, pages for {crowd.fit} of {crowd.prompt + crowd.answer} "
        f"tokens each on the device and {crowd.fit} in RAM; prompts of {crowd.prompt // 2} to {crowd.prompt * 3 // 2} "
        f"tokens of English, every fourth begins alike; {crowd.answer} tokens answered; seed {crowd.seed}",
    ]
    bench.write(f"overload-{args.name}", f"{crowd.n} conversations, and memory for {crowd.fit}", rows, notes=notes)
    return int(any(found["wrong"] != "nothing" for found in rows))


if __name__ == "__main__":
    sys.exit(main())
