"""Sixty-four streams at once against a live server, of which a third is left at any moment: the others get what they
would get alone, and nothing is left at the end.

    python scripts/soak_server.py --minutes 10                    SmolLM2, on the CPU
    python scripts/soak_server.py SmolLM2.gguf tiny.gguf --minutes 10 --name cpu

Everybody asks through /v1/completions, /v1/chat/completions, /v1/messages or /v1/responses, mostly streamed, goes on
with what he was told or begins anew, and leaves before, while or after the first words come; with pages for six long
conversations, and RAM for six more.

    heard         answers that a client heard to their ends; left: requests whose client left
    stock differs, largest gap, not likeliest: as in scripts/overload.py, of all greedy answers that were heard (what
                  stock differs by is measured for about a hundred of them)
    MiB           of the server: before the first request, after a third of the time, at the end; then, without what is
                  free in its heap, when all rests, and when everybody was forgotten; grown: from the second to the
                  third, by medians of tenths

Exit code 1: an answer differs from what was computed, or from a lone one; a status other than 200 (499 for who left); a
request, task, thread or page is left; memory grew by more than 16 MiB.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import arguments
import bench

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.server_soak_runs import Crowd, soak
from tests.soak_runs import MIB

ALLOWED = 16 * MIB
SAY_EVERY = 30.0


def row(path: Path, crowd: Crowd) -> dict[str, Any]:
    """One model."""
    with tempfile.TemporaryDirectory() as folder:
        found = soak(path, Path(folder), crowd, arguments.NowAndThen(SAY_EVERY))
    memory, verdict = found.memory, found.verdict
    assert verdict is not None
    grown = memory.grown()
    bad = found.wrong[:3] + ([f"{len(found.wrong)} in all"] if len(found.wrong) > 3 else [])
    bad += [f"memory grew by {grown / MIB:.0f} MiB"] if grown > ALLOWED else []
    return {
        "model": path.name,
        "minutes": found.seconds / 60,
        "heard": len(found.heard),
        "left": found.left.total(),
        "evicted": found.evicted,
        "judged tokens": verdict.tokens,
        "stock differs": verdict.differ,
        "largest gap": verdict.gap,
        "not likeliest": verdict.others,
        "resting": found.resting["kv"]["resting"],
        "MiB before": memory.before / MIB,
        "after a third": memory.memory[len(memory.memory) // 3][1] / MIB,
        "at the end": memory.memory[-1][1] / MIB,
        "at rest": found.resting["bytes"] / MIB,
        "forgotten": memory.left / MIB,
        "grown MiB": grown / MIB,
        "wrong": "; ".join(bad) or "nothing",
    }


def main() -> int:
    parser = arguments.parser(__doc__, Crowd, "streams", "slots", "seed", "threads", longest="tokens of a conversation")
    parser.add_argument("--minutes", type=float, default=10)
    args = parser.parse_args()
    crowd = arguments.made(Crowd, args, seconds=args.minutes * 60)
    kept = bench.Kept(f"soak-server-{args.name}")
    rows = [kept.shown(path.name, lambda p=path: row(p, crowd)) for path in arguments.models(args)]
    notes = [
        f"{crowd.streams} streams, {crowd.slots} slots, conversations of up to {crowd.longest} tokens, pages for "
        f"{crowd.fit} of them and RAM for {crowd.fit} more; {crowd.leave:.0%} leave; answers of 4 to 48 tokens; "
        f"seed {crowd.seed}",
        kept.note,
    ]
    bench.write(f"soak-server-{args.name}", "Streams that are left at any moment", rows, notes=notes)
    return int(any(found["wrong"] != "nothing" for found in rows))


if __name__ == "__main__":
    sys.exit(main())
