"""A small stand-in for llama-cpp-python's sdist: a cmake project of the same shape that builds in a second."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from pagedrun.runtime.build import PROGRAMS, TOOLS
from pagedrun.runtime.sources import Patch, Source

CMAKE = """\
cmake_minimum_required(VERSION 3.14)
project(fake C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(ggml-base SHARED ggml/base.c)
add_library(llama SHARED src/llama.c)
target_compile_definitions(llama PRIVATE PAGEDRUN_BUILD_ID="${PAGEDRUN_BUILD_ID}")
target_link_libraries(llama PUBLIC ggml-base)
set_target_properties(llama PROPERTIES VERSION 0.5.0 SOVERSION 0)
add_library(llama-common SHARED common/common.cpp)
target_link_libraries(llama-common PUBLIC llama)
set_target_properties(ggml-base llama llama-common PROPERTIES LINK_FLAGS "-Wl,--no-as-needed")
"""
CMAKE += "".join(
    f"add_executable({name} tools/tool.c)\ntarget_link_libraries({name} llama)\n"
    for name in (*PROGRAMS, *TOOLS)
    if name != "llama-server"
)
CMAKE += """\
if(LLAMA_BUILD_SERVER)
    include(scripts/assets.cmake)
    add_library(mtmd SHARED ggml/base.c)
    add_executable(llama-server tools/tool.c)
    target_link_libraries(llama-server llama -Wl,--no-as-needed mtmd)
endif()
"""

LLAMA_C = """\
int ggml_base(void);
int llama_answer(void) {
    return 41 + ggml_base();
}
"""

TREE = {
    "CMakeLists.txt": CMAKE,
    "LICENSE": "free\n",
    "ggml/base.c": "int ggml_base(void) { return 1; }\n",
    "src/llama.c": LLAMA_C,
    "common/common.cpp": 'extern "C" int common(void) { return 0; }\n',
    "tools/tool.c": "int llama_answer(void);\nint main(void) { return llama_answer() == 42 ? 0 : 1; }\n",
    "scripts/assets.cmake": "# what the server shows in a browser\n",
    "models/large.gguf": "not needed by the build\n",
}

BUILD_ID_PATCH = Patch(
    "0001-build-id.patch",
    b"""\
The library says what it was built from.

--- a/src/llama.c
+++ b/src/llama.c
@@ -2,3 +2,6 @@
 int llama_answer(void) {
     return 41 + ggml_base();
 }
+const char * pagedrun_build_id(void) {
+    return PAGEDRUN_BUILD_ID;
+}
""",
)

ADD_FILE_PATCH = Patch(
    "0002-new-file.patch",
    b"""\
--- /dev/null
+++ b/include/pagedrun.h
@@ -0,0 +1,1 @@
+const char * pagedrun_build_id(void);
""",
)


def make_sdist(folder: Path, tree: dict[str, str] | None = None) -> Source:
    """Write the archive into `folder` and describe it as the real one is described."""
    draft = Source("fake-llama", "1.0", "", 0)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / draft.file_name
    # No time in the header: the same tree must have the same hash.
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in {"PKG-INFO": "fake\n", **_vendored(TREE if tree is None else tree)}.items():
            data = text.encode()
            member = tarfile.TarInfo(f"{draft.folder}/{name}")
            member.size = len(data)
            member.mtime = 1_700_000_000
            tar.addfile(member, io.BytesIO(data))
    content = path.read_bytes()
    return Source(draft.name, draft.version, hashlib.sha256(content).hexdigest(), len(content))


def _vendored(tree: dict[str, str]) -> dict[str, str]:
    return {f"vendor/llama.cpp/{name}": text for name, text in tree.items()}


def make_bindings(folder: Path) -> Path:
    """What `get_bindings` returns."""
    (folder / "llama_cpp").mkdir(parents=True)
    (folder / "llama_cpp" / "llama_cpp.py").write_text("")
    return folder


@dataclass
class Report:
    """Remembers what setup said."""

    lines: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(f"warning: {text}")

    def progress(self, label: str, done: float, total: float | None) -> None:
        if label not in self.labels:
            self.labels.append(label)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)
