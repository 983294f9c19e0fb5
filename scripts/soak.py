"""Random traffic for a long time: memory is flat, what is known of pages is true, and nothing is left at the end.

    python scripts/soak.py --minutes 120                         SmolLM2, on the CPU
    python scripts/soak.py tiny.gguf --minutes 20 --name tiny

Six ask at once, in memory for three: they begin, go on, branch off, ask again and break off, with priorities where
there are any. Everything that is known of pages is checked before and after every step (debug_kv).

    MiB       of the process, as Linux says, without files: before the first request, after a third of the time, at the
              end, and when everybody was forgotten
    grown     from the one after a third of the time to the end; slope: MiB an hour in that time

Exit code 1: an error, something left, or memory grew by more than 8 MiB.
"""

from __future__ import annotations

import sys
from pathlib import Path

import arguments
import bench

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.soak_runs import KINDS, MIB, Weather, soak

ALLOWED = 8 * MIB
SAY_EVERY = 60.0


def main() -> int:
    parser = arguments.parser(__doc__, Weather, "at_once", "slots", "seed", "threads", nargs="?")
    parser.add_argument("--minutes", type=float, default=120)
    args = parser.parse_args()
    seconds = args.minutes * 60
    weather = arguments.made(Weather, args, seconds=seconds, every=max(seconds / 1000, 0.25))
    (path,) = arguments.models(args)
    found = soak(path, weather, arguments.NowAndThen(SAY_EVERY))
    kv, warm = found.kv, found.memory[len(found.memory) // 3][1]
    assert kv is not None
    bad = [str(e) for e in found.errors[:3]] + [f"{n} {name} left" for name, n in found.remains.items()]
    bad += ["memory grew"] if found.grown() > ALLOWED else []
    row = {
        "model": path.name,
        "minutes": args.minutes,
        "answers": sum(found.ends.values()),
        "tokens computed": found.tokens,
        "cached": found.cached,
        "evicted": kv.evictions,
        "to disk": kv.disk.written,
        "MiB before": found.before / MIB,
        "after a third": warm / MIB,
        "at the end": found.memory[-1][1] / MIB,
        "forgotten": found.left / MIB,
        "grown MiB": found.grown() / MIB,
        "slope MiB/h": found.slope() / MIB,
        "wrong": "; ".join(bad) or "nothing",
    }
    notes = [
        ", ".join(f"{found.asked[kind]:,} {kind}" for kind in KINDS),
        "ends: " + ", ".join(f"{n:,} {reason}" for reason, n in sorted(found.ends.items())),
        f"{weather.at_once} ask at once, {weather.slots} slots, conversations of up to {weather.longest} tokens, pages "
        f"for {weather.fit} of them on the device, as many in RAM and on disk; seed {weather.seed}",
    ]
    raw = {"memory": [[round(t, 1), n] for t, n in found.memory]}
    bench.write(f"soak-{args.name}", "Random traffic", [row], notes=notes, raw=raw)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
