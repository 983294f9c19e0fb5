"""The patch applier: exact or an error that names the patch and the hunk, and never half of it."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.errors import PatchError
from pagedrun.runtime.patching import apply_patch

TEN = "".join(f"line {n}\n" for n in range(1, 11))


def diff(old: str, new: str, path: str = "file.txt") -> bytes:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}")
    return "".join(lines).encode()


def tree(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return tmp_path


def test_changes_lines_in_several_places(tmp_path: Path) -> None:
    new = TEN.replace("line 2\n", "two\nand a half\n").replace("line 9\n", "")
    root = tree(tmp_path, file_txt=TEN)
    apply_patch("p", diff(TEN, new), root)
    assert (root / "file.txt").read_text() == new


def test_adds_and_deletes_files(tmp_path: Path) -> None:
    root = tree(tmp_path, old_txt="one\n")
    added = b"--- /dev/null\n+++ b/sub/new.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    deleted = b"--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
    apply_patch("p", added + deleted, root)
    assert (root / "sub/new.txt").read_text() == "a\nb\n"
    assert not (root / "old.txt").exists()


def test_knows_files_without_a_final_newline(tmp_path: Path) -> None:
    root = tree(tmp_path, file_txt="a\nb")
    mark = b"\\ No newline at end of file\n"
    apply_patch("p", b"--- a/file.txt\n+++ b/file.txt\n@@ -1,2 +1,2 @@\n a\n-b\n" + mark + b"+c\n", root)
    assert (root / "file.txt").read_bytes() == b"a\nc\n"
    apply_patch("p", b"--- a/file.txt\n+++ b/file.txt\n@@ -1,2 +1,2 @@\n a\n-c\n+d\n" + mark, root)
    assert (root / "file.txt").read_bytes() == b"a\nd"


def test_keeps_carriage_returns(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_bytes(b"a\r\nb\r\n")
    apply_patch("p", b"--- a/file.txt\n+++ b/file.txt\n@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n", tmp_path)
    assert (tmp_path / "file.txt").read_bytes() == b"a\r\nc\r\n"


def test_follows_lines_that_moved(tmp_path: Path) -> None:
    patch = diff(TEN, TEN.replace("line 8\n", "eight\n"))
    root = tree(tmp_path, file_txt="new first line\n" + TEN)
    apply_patch("p", patch, root)
    assert (root / "file.txt").read_text() == "new first line\n" + TEN.replace("line 8\n", "eight\n")


def test_refuses_lines_that_moved_to_two_places(tmp_path: Path) -> None:
    root = tree(tmp_path, file_txt="x\ny\n\n\nx\ny\n")
    with pytest.raises(PatchError, match="does not apply"):
        apply_patch("p", b"--- a/file.txt\n+++ b/file.txt\n@@ -3,2 +3,2 @@\n x\n-y\n+z\n", root)


def test_wrong_context_names_patch_file_and_hunk_and_writes_nothing(tmp_path: Path) -> None:
    new = TEN.replace("line 1\n", "one\n").replace("line 10\n", "ten\n")
    patch = diff(TEN, new)
    other = diff("a\n", "b\n", "other.txt")
    root = tree(tmp_path, file_txt=TEN.replace("line 8\n", "LINE 8\n"), other_txt="a\n")
    before = {path: path.read_bytes() for path in root.iterdir()}
    with pytest.raises(PatchError, match=r"0007-x\.patch does not apply: hunk 2 of 2 \(line 7\) of file\.txt"):
        apply_patch("0007-x.patch", other + patch, root)
    assert {path: path.read_bytes() for path in root.iterdir()} == before


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (b"hello\n", "not a complete unified diff"),
        (b"", "not a complete unified diff"),
        (b"--- a/file.txt\n+++ b/file.txt\n", "not a complete unified diff"),
        (b"@@ -1 +1 @@\n-a\n+b\n", "before any file name"),
        (b"--- a/file.txt\n+++ b/file.txt\n@@ -1,2 +1,2 @@\n a\n", "cut short"),
        (b"--- a/file.txt\n+++ b/file.txt\n@@ -1,1 +1,1 @@\n-a\n-b\n+c\n", "do not add up"),
        (b"--- a/none.txt\n+++ b/none.txt\n@@ -1 +1 @@\n-a\n+b\n", "not in the sources"),
        (b"--- /dev/null\n+++ b/file.txt\n@@ -0,0 +1 @@\n+a\n", "already there"),
        (b"--- a/file.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "not all of its lines"),
        (b"--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "outside the sources"),
        (b"--- a//etc/x\n+++ b//etc/x\n@@ -1 +1 @@\n-a\n+b\n", "outside the sources"),
        (b"diff --git a/x b/y\nrename from x\nrename to y\n", "not supported"),
        (b"Binary files a/x and b/x differ\n", "not supported"),
    ],
)
def test_refuses_what_it_cannot_apply(tmp_path: Path, patch: bytes, message: str) -> None:
    root = tree(tmp_path, file_txt="a\nb\n")
    with pytest.raises(PatchError, match=message) as caught:
        apply_patch("0003-bad.patch", patch, root)
    assert "0003-bad.patch" in caught.value.message
    assert (root / "file.txt").read_text() == "a\nb\n"


def test_second_application_is_refused(tmp_path: Path) -> None:
    patch = diff(TEN, TEN.replace("line 5\n", "five\n"))
    root = tree(tmp_path, file_txt=TEN)
    apply_patch("p", patch, root)
    with pytest.raises(PatchError):
        apply_patch("p", patch, root)


_LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "-- c\n", "++ d\n", "@@ -1 +1 @@\n"]), max_size=30)


@settings(max_examples=300, deadline=None)
@given(old=_LINES, new=_LINES)
def test_applies_whatever_difflib_writes(
    tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str]
) -> None:
    if old == new or not old or not new:
        return  # an empty side is a new or a deleted file, which difflib does not say
    root = tmp_path_factory.mktemp("tree")
    (root / "file.txt").write_text("".join(old))
    apply_patch("p", diff("".join(old), "".join(new)), root)
    assert (root / "file.txt").read_text() == "".join(new)
