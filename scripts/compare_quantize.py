"""`pagedrun quantize` against llama.cpp's llama-quantize of the same build: the same bytes? how long? how much memory?

    .venv/bin/python -m pagedrun setup --tools
    .venv/bin/python scripts/compare_quantize.py

The source is SmolLM2 with 16 bits a weight again (made with --type F16 --force), and a file with one tensor of 1 GiB,
to see that memory stays bounded. Both programs are started in turns, each with all cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import bench
import gguf
import numpy as np
import psutil

from pagedrun import hub
from pagedrun.errors import RuntimeLibraryError
from pagedrun.native.placement import physical_cores
from pagedrun.runtime.store import find_runtime

TEXT = (
    "The old lighthouse stood at the end of the pier. Each evening the keeper climbed 214 steps, trimmed the lamp and "
    "wrote the weather into a book: wind from the west, sea calm, one ship passing at nine.\n"
)
PAGEDRUN = [sys.executable, "-m", "pagedrun", "quantize"]


@dataclass
class Ran:
    seconds: float
    anonymous: int
    resident: int


def measured(command: list[str], folder: Path) -> Ran:
    """Run it; peak of the anonymous memory of all its processes together, and of the memory of the largest one.

    The source is mapped: its pages count as resident, but the system takes them back when it needs to.
    """
    began = time.monotonic()
    anonymous = resident = 0
    log = folder / "log.txt"
    with log.open("w") as out, subprocess.Popen(command, cwd=folder, stdout=out, stderr=out) as process:
        while process.poll() is None:
            now, largest = memory_of(process.pid)
            anonymous, resident = max(anonymous, now), max(resident, largest)
            time.sleep(0.02)
        if process.returncode:
            sys.exit(f"{command}: {log.read_text()[-800:]}")
    return Ran(time.monotonic() - began, anonymous, resident)


def memory_of(pid: int) -> tuple[int, int]:
    anonymous, resident = 0, 0
    try:
        parent = psutil.Process(pid)
        pids = [pid, *(child.pid for child in parent.children(recursive=True))]
    except psutil.Error:
        return 0, 0
    for each in pids:
        try:
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
        except OSError:
            continue
        facts = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("RssAnon", "VmHWM"))}
        anonymous += int(facts.get("RssAnon", 0)) << 10
        resident = max(resident, int(facts.get("VmHWM", 0)) << 10)
    return anonymous, resident


def compared(
    name: str, source: Path, ours: list[str], theirs: list[str], threads: int, rounds: int
) -> dict[str, object]:
    folder = source.parent
    one, other = folder / "ours.gguf", folder / "theirs.gguf"
    tool = str(find_runtime().program("llama-quantize"))
    pairs = []
    for _ in range(rounds):
        command = [*PAGEDRUN, source.name, *ours, "-o", one.name, "--force", "--threads", str(threads)]
        mine = measured(command, folder)
        *options, type_name = theirs
        yours = measured([tool, *options, source.name, other.name, type_name, str(threads)], folder)
        pairs.append((mine, yours))
    best = [min(ran.seconds for ran in side) for side in zip(*pairs, strict=True)]
    same = subprocess.run(["cmp", "-s", one, other], check=False).returncode == 0
    size = one.stat().st_size
    one.unlink()
    other.unlink()
    peaks = [
        [max(getattr(r, what) for r in side) >> 20 for side in zip(*pairs, strict=True)]
        for what in ("anonymous", "resident")
    ]
    return {
        "what": name,
        "size MiB": round(size / 2**20),
        "same bytes": "yes" if same else "NO",
        "pagedrun s": best[0],
        "llama-quantize s": best[1],
        "pagedrun anonymous MiB": peaks[0][0],
        "llama-quantize anonymous MiB": peaks[0][1],
        "pagedrun peak MiB": peaks[1][0],
        "llama-quantize peak MiB": peaks[1][1],
    }


def with_a_large_tensor(model: Path, target: Path) -> None:
    """The metadata of `model` and one more tensor of 1 GiB. The quantiser reads no shapes, so it takes it."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=kind)
    row = np.random.default_rng(1).standard_normal((1 << 10, 4096)).astype(np.float16)
    writer.add_tensor("blk.0.ffn_up.weight", np.tile(row, (128, 1)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=physical_cores())
    args = parser.parse_args()
    try:
        find_runtime().program("llama-quantize")
    except RuntimeLibraryError as e:
        sys.exit(f"{e.message}: pagedrun setup --tools")
    with tempfile.TemporaryDirectory() as scratch:
        source, text, large = (Path(scratch) / name for name in ("smollm2.gguf", "text.txt", "large.gguf"))
        text.write_text(TEXT * 60)
        model = str(hub.fetch_default_model())
        subprocess.run([*PAGEDRUN, model, "--type", "F16", "--force", "-o", str(source)], check=True)
        calibrate = [*PAGEDRUN, source.name, "-t", "q4_k_m", "--calibrate", text.name, "-o", "calibrated.gguf"]
        subprocess.run(calibrate, cwd=scratch, check=True)
        with_a_large_tensor(source, large)
        matrix, down = ["--imatrix", "smollm2.imatrix.gguf"], ["--tensor-type", "ffn_down=q8_0"]
        rows = [
            compared(name, of, ours, theirs, args.threads, args.rounds)
            for name, of, ours, theirs in (
                ("SmolLM2 F16 -> Q4_K_M", source, ["-t", "q4_k_m"], ["q4_k_m"]),
                ("with --imatrix from --calibrate", source, ["-t", "q4_k_m", *matrix], [*matrix, "q4_k_m"]),
                ("with --tensor-type ffn_down=q8_0", source, ["-t", "q4_k_m", *down], [*down, "q4_k_m"]),
                ("SmolLM2 F16 -> IQ3_XXS, --imatrix", source, ["-t", "iq3_xxs", *matrix], [*matrix, "iq3_xxs"]),
                ("one tensor of 1 GiB -> Q4_K_M", large, ["-t", "q4_k_m"], ["q4_k_m"]),
            )
        ]
    notes = [
        f"{args.rounds} rounds in turns, {args.threads} threads; seconds are the best round's, memory the highest",
        "anonymous: of all processes together, what cannot be given back; peak: the largest process with the pages of "
        "the mapped source, which the system takes back when it needs them",
        "pagedrun foretells the file first (0.3 s), and its own checks and start are in its seconds",
    ]
    bench.write("quantize", "pagedrun quantize against llama-quantize of the same build", rows, notes=notes)
    if any(row["same bytes"] != "yes" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
