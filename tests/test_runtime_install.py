"""Setup from start to end on a small stand-in for llama.cpp, with the real cmake, ninja and compiler."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun import machine
from pagedrun.errors import BuildError, DiskFullError, PatchError, RuntimeLibraryError, SetupError
from pagedrun.runtime import build, install, manifest, space, store, toolchain
from pagedrun.runtime.build import PROGRAMS, TOOLS
from pagedrun.runtime.install import Options
from pagedrun.runtime.sources import Patch, Source
from tests.runtime_fakes import ADD_FILE_PATCH, BUILD_ID_PATCH, TREE, Report, make_bindings, make_sdist

pytestmark = pytest.mark.skipif(
    not (shutil.which("c++") and toolchain.find_cmake() and toolchain.find_ninja()),
    reason="needs a C++ compiler, cmake and ninja",
)

Setup = Callable[..., store.Runtime]


@pytest.fixture
def report() -> Report:
    return Report()


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report) -> Iterator[Setup]:
    """Runs setup on the stand-in: `setup(patches=..., tree=..., tools=True)`."""
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "cache"))
    bindings = make_bindings(tmp_path / "bindings")
    monkeypatch.setattr(install, "get_bindings", lambda *_: bindings)
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)

    def run(
        patches: tuple[Patch, ...] = (BUILD_ID_PATCH,), tree: dict[str, str] | None = None, **options: object
    ) -> store.Runtime:
        source = make_sdist(tmp_path / "cache" / "sdist", tree)
        use_sources(monkeypatch, source, patches)
        report.labels.clear()
        return install.install(Options(**{"cpu": True, **options}), report)  # type: ignore[arg-type]

    yield run


def use_sources(monkeypatch: pytest.MonkeyPatch, source: Source, patches: tuple[Patch, ...]) -> None:
    monkeypatch.setattr(install, "PINNED", source)
    monkeypatch.setattr(install, "shipped_patches", lambda: patches)
    monkeypatch.setattr(store, "build_id", lambda: build.build_id(source, patches))


def test_builds_a_runtime_that_loads_and_is_found(setup: Setup, report: Report) -> None:
    runtime = setup()
    assert store.find_runtime() == runtime
    assert store.reported_build_id(runtime) == runtime.manifest.build_id
    assert {path.name for path in runtime.lib.iterdir()} >= {"libllama.so", "libllama-common.so", "libggml-base.so"}
    assert (runtime.python / "llama_cpp/llama_cpp.py").exists()
    assert [path.name for path in runtime.bin.iterdir()] == list(runtime.manifest.tools) == list(PROGRAMS)
    assert subprocess.run([runtime.program("llama-imatrix")], check=False).returncode == 0
    with pytest.raises(RuntimeLibraryError, match="has no llama-bench"):
        runtime.program("llama-bench")
    assert runtime.manifest.patches == ("0001-build-id.patch",)
    assert runtime.manifest.glibc.startswith("2.")
    assert runtime.manifest.backend == "CPU"
    assert report.labels[-1] == "Building the runtime (CPU)"


def test_the_runtime_can_be_moved(setup: Setup, tmp_path: Path) -> None:
    runtime = setup()
    shutil.rmtree(store.build_root())
    moved = tmp_path / "elsewhere"
    runtime.root.rename(moved)
    assert store.reported_build_id(store.Runtime(moved, runtime.manifest)) == runtime.manifest.build_id


def test_the_second_time_does_nothing(setup: Setup, report: Report) -> None:
    first = setup()
    assert setup() == first
    assert report.labels == []


def test_another_patch_makes_another_runtime_and_both_stay(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = setup(), setup(patches=(BUILD_ID_PATCH, ADD_FILE_PATCH))
    assert first.root != second.root
    assert store.find_runtime() == second
    monkeypatch.setattr(store, "build_id", lambda: first.manifest.build_id)
    assert store.find_runtime() == first  # an older checkout on this machine still has its own


def test_works_without_any_patch(setup: Setup) -> None:
    assert store.reported_build_id(setup(patches=())) == ""


def test_tools_are_added_without_building_again(setup: Setup, report: Report) -> None:
    runtime = setup()
    library = runtime.lib / "libllama.so.0.5.0"
    before = library.stat()
    with_tools = setup(tools=True)
    assert with_tools.root == runtime.root
    assert (library.stat().st_mtime_ns, library.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    shutil.rmtree(store.build_root())  # so that they cannot use its libraries
    for tool in TOOLS:
        assert subprocess.run([with_tools.bin / tool], check=False).returncode == 0
    assert setup(tools=True).manifest.tools == (*PROGRAMS, *TOOLS)
    assert report.labels == []


def test_the_server_is_built_in_a_folder_of_an_older_version(setup: Setup) -> None:
    runtime = setup()
    (scripts,) = store.build_root().rglob("scripts")
    shutil.rmtree(scripts)
    assert subprocess.run([setup(tools=True).program("llama-server")], check=False).returncode == 0
    assert (scripts / "assets.cmake").is_file() and (runtime.lib / "libmtmd.so").is_file()


def test_a_runtime_of_an_older_version_gets_the_programs_it_lacks(setup: Setup, report: Report) -> None:
    runtime = setup(cpu=False)
    shutil.rmtree(runtime.bin)
    older = {name: checksum for name, checksum in runtime.manifest.files.items() if not name.startswith("bin/")}
    manifest.save(replace(runtime.manifest, tools=(), files=older), runtime.root)
    assert setup(cpu=False) == runtime
    assert "Building llama.cpp's tools" in report.labels
    assert runtime.program("llama-imatrix").is_file()


def test_a_runtime_that_nothing_can_be_added_to_stays(
    setup: Setup, report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime = setup()
    older = store.Runtime(runtime.root, replace(runtime.manifest, tools=()))
    manifest.save(older.manifest, older.root)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup(cpu=False) == older
    assert report.lines == ["The runtime on this machine has no llama-imatrix, and it was not built here."]


def test_a_damaged_runtime_is_built_again(setup: Setup, report: Report) -> None:
    runtime = setup()
    (runtime.lib / "libllama.so.0.5.0").write_bytes(b"not a library")
    assert store.reported_build_id(setup()) == runtime.manifest.build_id
    assert "damaged" in report.text


@pytest.mark.parametrize("part", ["lib/libllama.so.0", "bin/llama-imatrix", "python/llama_cpp/llama_cpp.py"])
def test_a_file_that_differs_or_is_missing_is_built_again(setup: Setup, report: Report, part: str) -> None:
    runtime = setup(cpu=False)
    assert {
        "lib/libllama.so",
        "lib/libllama.so.0.5.0",
        "python/llama_cpp/llama_cpp.py",
    } <= runtime.manifest.files.keys()
    for damage in (lambda path: path.unlink(), lambda path: (path.unlink(), path.write_text("other"))):
        damage(runtime.root / part)
        assert manifest.damaged(runtime.manifest, runtime.root) == [part]
        assert manifest.damaged(setup(cpu=False).manifest, runtime.root) == []
        assert "damaged" in report.text


def test_tools_come_with_their_checksums(setup: Setup) -> None:
    runtime = setup(tools=True)
    assert runtime.manifest.files == manifest.checksums(runtime.root)


def test_a_manifest_that_cannot_be_read_is_built_again(setup: Setup, report: Report) -> None:
    runtime = setup(cpu=False)
    (runtime.root / "manifest.json").write_text("{")
    assert setup(cpu=False).manifest.key == runtime.manifest.key
    assert store.find_runtime().manifest.files
    assert "manifest cannot be read" in report.text


def test_a_library_that_says_another_build_id_is_refused(setup: Setup) -> None:
    lying = Patch("0001-lie.patch", BUILD_ID_PATCH.data.replace(b"return PAGEDRUN_BUILD_ID", b'return "other"'))
    with pytest.raises(BuildError, match="build id is other"):
        setup(patches=(lying,))
    assert not list(store.root().glob("current-*"))


def test_a_compile_error_is_shown_with_the_log(setup: Setup) -> None:
    with pytest.raises(BuildError, match="the compiler failed") as caught:
        setup(tree={**TREE, "common/common.cpp": "int broken( {\n"})
    assert "common.cpp:1" in caught.value.message
    log = Path(caught.value.hint.removeprefix("the whole log is in "))
    assert "broken(" in log.read_text()


def test_after_a_compile_error_the_rest_is_kept(setup: Setup, tmp_path: Path) -> None:
    tree = {**TREE, "common/common.cpp": '#include "/dev/null"\n#include PAGEDRUN_TEST_HEADER\n'}
    with pytest.raises(BuildError):
        setup(tree=tree)
    objects = sorted(store.build_root().rglob("llama.c.o"))
    stamp = objects[0].stat().st_mtime_ns
    with pytest.raises(BuildError):
        setup(tree=tree)
    assert objects[0].stat().st_mtime_ns == stamp


def test_a_patch_that_does_not_apply_is_named(setup: Setup) -> None:
    with pytest.raises(PatchError, match=r"0001-build-id\.patch does not apply"):
        setup(tree={**TREE, "src/llama.c": "int llama_answer(void) { return 42; }\n"})


def test_no_compiler(setup: Setup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no C\+\+ compiler") as caught:
        setup()
    assert "apt install build-essential" in caught.value.hint
    monkeypatch.setenv("PATH", path)
    runtime = setup()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup(cpu=False) == runtime  # what is built needs no compiler
    with pytest.raises(SetupError):
        setup(cpu=False, tools=True)


def test_too_little_space_is_said_before_anything_is_done(
    setup: Setup, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1 << 20))
    with pytest.raises(DiskFullError, match=r"building the runtime needs about \d+ MiB in .* 1\.0 MiB are free"):
        setup()
    assert report.labels == []


def test_a_disk_that_fills_up_while_installing(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(build.shutil, "copy2", full)
        with pytest.raises(DiskFullError, match="filled up while building the runtime"):
            setup()
    assert setup() == store.find_runtime()  # it works once there is space


def test_a_compiler_that_meets_a_full_disk(setup: Setup) -> None:
    tree = {**TREE, "common/common.cpp": '#error "No space left on device"\n'}
    with pytest.raises(DiskFullError, match="filled up"):
        setup(tree=tree)


def test_clean_keeps_what_is_current(setup: Setup, report: Report) -> None:
    setup()
    runtime = setup(patches=(BUILD_ID_PATCH, ADD_FILE_PATCH))
    assert install.clean(report) > 1000
    assert not any(store.build_root().iterdir())
    assert sorted(path.name for path in store.root().iterdir()) == sorted(
        [runtime.manifest.key, f"current-{runtime.manifest.build_id}"]
    )
    assert store.find_runtime() == runtime


def test_clean_without_a_runtime(setup: Setup, report: Report) -> None:
    with pytest.raises(BuildError):
        setup(tree={**TREE, "common/common.cpp": "int broken( {\n"})
    assert install.clean(report) > 1000
    assert install.clean(report) == 0


def test_what_was_brought_here_is_kept(setup: Setup, report: Report) -> None:
    runtime = setup(patches=(BUILD_ID_PATCH,))
    imported = store.Runtime(store.root() / "imported", replace(runtime.manifest, key="imported", imported=True))
    runtime.root.rename(imported.root)
    manifest.save(imported.manifest, imported.root)
    store.set_current(imported)
    assert setup(cpu=False) == imported
    assert report.labels == []
    assert setup() != imported  # --cpu asks for a particular build
    store.set_current(imported)
    assert setup(cpu=False, tools=True) != imported  # it has none


def test_a_runtime_for_the_gpu_is_not_replaced_by_one_for_the_cpu(setup: Setup) -> None:
    runtime = setup()
    on_gpu = store.Runtime(store.root() / "gpu", replace(runtime.manifest, key="gpu", cuda_version="13.0"))
    runtime.root.rename(on_gpu.root)
    manifest.save(on_gpu.manifest, on_gpu.root)
    store.set_current(on_gpu)
    assert setup(cpu=False) == on_gpu
    assert setup(cpu=True).manifest.backend == "CPU"


def test_a_cache_that_cannot_be_written_to(setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    setup()
    monkeypatch.setenv("PAGEDRUN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SetupError, match="cannot be used: Not a directory"):
        install.install(Options(), Report())
