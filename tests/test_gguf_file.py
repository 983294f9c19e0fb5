"""Files that are and are not models: what is said about each, from the header and the name alone."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file import check_file, split_parts


def header(version: int = 3, tensors: int = 1, metadata: int = 1, order: str = "<") -> bytes:
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, metadata) + bytes(8)


@pytest.fixture
def write(tmp_path: Path):
    def put(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return put


@pytest.mark.parametrize("version", [2, 3])
def test_a_gguf_passes(write, version: int) -> None:
    path = write(header(version))
    assert check_file(path) == [path]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"GGUF\x03\0\0\0", "is truncated: it ends after 8 B"),
        (header(1), "GGUF version 1, which is too old"),
        (header(4), "GGUF version 4, which is unknown"),
        (header(3, order=">"), "big-endian"),
        (header(3, tensors=2**60), "is damaged: 1,152,921,504,606,846,976 tensors"),
        (b"<!DOCTYPE html><html>not found</html>", "is a web page"),
        (b"\n<html>", "is a web page"),
        (b"version https://git-lfs.example/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04abcdefgh", "PyTorch or zip"),
        (struct.pack("<Q", 1000) + b'{"__metadata__":{}}', "safetensors"),
        (b"tjgg\x01\0\0\0", "older than GGUF"),
        (b"\x00\x01\x02\x03 noise", r"begins with b'\x00\x01\x02\x03'"),
    ],
)
def test_other_files_are_named_for_what_they_are(write, content: bytes, says: str) -> None:
    path = write(content)
    with pytest.raises(ModelFileError) as caught:
        check_file(path)
    assert says in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no file"):
        check_file(tmp_path / "no.gguf")


def test_a_folder_says_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelFileError, match="is a folder") as caught:
        check_file(tmp_path)
    assert "a.gguf" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(write) -> None:
    path = write(header())
    path.chmod(0)
    with pytest.raises(ModelFileError, match="Permission denied"):
        check_file(path)


def test_a_split_model_is_all_its_parts_in_order(write) -> None:
    parts = [write(header(), f"m-{i:05d}-of-00012.gguf") for i in range(1, 13)]
    assert check_file(parts[0]) == parts


def test_a_later_part_names_the_first(write) -> None:
    parts = [write(header(), f"m-{i:05d}-of-00003.gguf") for i in (1, 2, 3)]
    with pytest.raises(ModelFileError, match="is part 2 of 3 of a split model") as caught:
        check_file(parts[1])
    assert str(parts[0]) in caught.value.hint


def test_missing_parts_are_counted_and_the_first_is_named(write) -> None:
    first = write(header(), "m-00001-of-00004.gguf")
    write(header(), "m-00003-of-00004.gguf")
    with pytest.raises(ModelFileError, match=r"2 of 4 parts .* the first is m-00002-of-00004\.gguf"):
        check_file(first)


def test_a_broken_later_part_is_named(write) -> None:
    first = write(header(), "m-00001-of-00002.gguf")
    write(b"<html>", "m-00002-of-00002.gguf")
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf is a web page"):
        check_file(first)


@pytest.mark.parametrize("name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_impossible_part_numbers(write, name: str) -> None:
    with pytest.raises(ModelFileError, match="cannot be part"):
        split_parts(write(header(), name))


def test_an_absent_first_part_is_absent_not_incomplete(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no file"):
        check_file(tmp_path / "m-00001-of-00002.gguf")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ModelFileError, match="not a file"):
        check_file(pipe)
