"""What is remembered about a file: where its record lies, what old ones say, and what counts as the same source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagedrun.hub import record
from tests.hub_fakes import put

KNOWN = record.Record("hf:me/M@" + "c" * 40, "M.gguf", 4, "ab" * 32, True, "2026-01-02T03:04:05+00:00", 0, "v1")


def test_a_record_speaks_of_the_file_as_it_was(tmp_path: Path) -> None:
    path = put(tmp_path / "M.gguf", b"GGUF")
    record.write(path, KNOWN)
    assert record.last(path) == KNOWN and record.read(path) is None  # another time of change


@pytest.mark.parametrize("length", [200, 248, 249, 255])
def test_the_longest_name_has_a_record_too(tmp_path: Path, length: int) -> None:
    path = put(tmp_path / ("é" * ((length - 5) // 2) + "x" * ((length - 5) % 2) + ".gguf"), b"GGUF")
    other = path.with_name("y" + path.name[1:])
    record.write(path, KNOWN)
    assert record.last(path) == KNOWN and record.last(other) is None
    assert record.record_path(path).name.startswith(".")


def test_the_records_of_the_first_versions_are_read(tmp_path: Path) -> None:
    path = put(tmp_path / "M.gguf", b"GGUF")
    record.write(path, KNOWN)
    written = json.loads(record.record_path(path).read_text())
    del written["revision"]
    record.record_path(path).write_text(json.dumps(written | {"later": 1}))
    found = record.last(path)
    assert found is not None and found.revision == "" and found.source == KNOWN.source
    del written["sha256"]
    record.record_path(path).write_text(json.dumps(written))
    assert record.last(path) is None


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("hf:me/M-GGUF@" + "c" * 40, "hf:me/M-GGUF"),
        ("pypi:tinymodel==1.0", "pypi:tinymodel"),
        ("https://example.org/a@b==c.gguf", "https://example.org/a@b==c.gguf"),
    ],
)
def test_an_origin_is_the_source_without_its_version(source: str, origin: str) -> None:
    assert record.origin(source) == origin
