#!/usr/bin/env python3
"""Record what llama.cpp expects of templates, replies and schemas: tests/data/chat_vectors.json.

    scripts/record_chat_vectors.py --source UNPACKED/vendor/llama.cpp [--build FOLDER]

--source is llama.cpp out of the pinned sdist, without pagedrun's patches; --build an existing or new cmake folder for
its llama-common (ten minutes on two cores when new). The cases are in tests/chat_cases.py, the C++ program that
asks in record_chat_vectors.cpp beside this file. Read the difference of the recorded file before committing it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import chat_cases  # noqa: E402

OUT = ROOT / "tests" / "data" / "chat_vectors.json"
OPTIONS = ("LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_SERVER")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--build", type=Path)
    args = parser.parse_args()
    source = args.source.resolve()
    if (source / "common" / "pagedrun-door.cpp").exists():
        sys.exit("error: this source tree has pagedrun's patches; expectations must come from the original")
    with tempfile.TemporaryDirectory() as scratch:
        program = build(source, (args.build or Path(scratch) / "build").resolve(), Path(scratch))
        record(source, program)


def build(source: Path, folder: Path, scratch: Path) -> Path:
    off = [f"-D{name}=OFF" for name in OPTIONS]
    if not (folder / "build.ninja").exists():
        run("cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *off)
    run("cmake", "--build", folder, "--target", "llama-common")
    program = scratch / "record"
    includes = [f"-I{source / part}" for part in ("common", "include", "ggml/include", "vendor")]
    libraries = [f"-L{folder / 'bin'}", f"-Wl,-rpath,{folder / 'bin'}", "-lllama-common", "-lllama", "-lggml-base"]
    code = Path(__file__).with_suffix(".cpp")
    run("c++", "-std=c++17", "-O1", *includes, code, "-o", program, *libraries)
    return program


def record(source: Path, program: Path) -> None:
    cases = chat_cases.cases()
    texts = {c["template"]: (source / "models" / "templates" / f"{c['template']}.jinja").read_text() for c in cases}
    question = {
        "cases": [c | {"template_text": texts[c["template"]]} for c in cases],
        "schemas": [schema for _, schema in chat_cases.SCHEMAS],
    }
    done = subprocess.run([program], input=json.dumps(question), capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    found = {
        "cases": {c["name"]: compact(a) for c, a in zip(cases, answer["cases"], strict=True)},
        "schemas": {n: a for (n, _), a in zip(chat_cases.SCHEMAS, answer["schemas"], strict=True)},
    }
    OUT.write_text(lines(found))
    print(f"{len(found['cases'])} cases and {len(found['schemas'])} schemas in {OUT}")


def lines(found: dict[str, dict[str, Any]]) -> str:
    """JSON with one case per line, for readable differences."""
    parts = []
    for part, entries in found.items():
        rows = (f"{json.dumps(n)}: {json.dumps(a, ensure_ascii=False, sort_keys=True)}" for n, a in entries.items())
        parts.append(f"{json.dumps(part)}: {{\n" + ",\n".join(rows) + "\n}")
    return "{" + ",\n".join(parts) + "}\n"


def compact(answer: dict[str, Any]) -> dict[str, Any]:
    """Grammars are long: their hash is kept. Today's date is not part of an expectation."""
    if "grammar" in answer:
        answer["grammar_sha256"] = sha256(answer.pop("grammar"))
        answer["prompt"] = undated(answer["prompt"])
        for reply in answer["replies"]:
            reply["steps"] = [[s["bytes"], s["content"], s["reasoning"]] for s in reply["steps"]]
    return answer


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def undated(text: str) -> str:
    """`text` with dates like 2026-01-31 and January 31, 2026 put out of it, some templates ask the clock."""
    return re.sub(r"\d{4}-\d\d-\d\d|[A-Z][a-z]+ \d\d?, \d{4}", "DATE", text)


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
