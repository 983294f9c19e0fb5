"""`pagedrun setup`: everything between a checkout and a runtime that loads, in order."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from pagedrun import __version__, machine
from pagedrun.errors import BuildError, RuntimeLibraryError, SetupError
from pagedrun.runtime import cuda, manifest, space, store, toolchain
from pagedrun.runtime.bindings import get_bindings
from pagedrun.runtime.build import LIBRARIES, PROGRAMS, TOOLS, Builder, Recipe, folder_size, needed_glibc
from pagedrun.runtime.fetch import fetch, unpack
from pagedrun.runtime.lock import exclusive
from pagedrun.runtime.manifest import Manifest
from pagedrun.runtime.report import Reporter
from pagedrun.runtime.sources import PINNED, shipped_patches
from pagedrun.runtime.store import Runtime


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `pagedrun setup` can be told.

    cpu: no CUDA, whatever is there.       cuda_archs: compute capabilities ("86"); empty: the GPUs of this machine.
    portable: for other machines too.      tools: also those of llama.cpp's programs that pagedrun does not need.
    jobs: compilers at once; None: as many as processors and memory allow.
    """

    cpu: bool = False
    cuda_archs: tuple[str, ...] = ()
    portable: bool = False
    tools: bool = False
    jobs: int | None = None

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs of llama.cpp that the runtime is to have."""
        return (*PROGRAMS, *TOOLS) if self.tools else PROGRAMS


def install(options: Options, report: Reporter) -> Runtime:
    """Build the runtime for these sources unless it is there, make it current, and return it.

    Raises PlatformError, SetupError and its subclasses.
    """
    machine.require_supported()
    ready = _ready(options)
    try:
        compiler = toolchain.find_compiler()
    except SetupError:
        if ready is None:
            raise
        return _as_it_is(ready, options, report)
    chosen = cuda.choose(report, cpu_only=options.cpu, archs=options.cuda_archs)
    # What was brought here, or can use the GPU when nothing built here could, is better than a build.
    if ready is not None and (ready.manifest.imported or (ready.manifest.on_gpu and chosen is None)):
        return _as_it_is(ready, options, report)
    recipe = Recipe(PINNED, shipped_patches(), compiler, chosen, options.portable)
    with locked(report) as fd, space.watched(store.root().parent, "building the runtime"):
        runtime = _existing(recipe.key, report)
        if runtime is None or _missing(options, runtime):
            runtime = _build(recipe, runtime, options, report, fd)
        store.set_current(runtime)
    return runtime


@contextmanager
def locked(report: Reporter) -> Iterator[int]:
    """Hold the cache's lock; says so when somebody else has it."""
    with exclusive(
        store.lock_file(), lambda: report.note("Another pagedrun setup is running; waiting for it to finish.")
    ) as fd:
        yield fd


def clean(report: Reporter) -> int:
    """Delete build trees, and runtimes other than the one that these sources use. Returns the bytes freed."""
    with locked(report):
        used: set[str] = set()
        with suppress(RuntimeLibraryError):
            runtime = store.find_runtime()
            used = {runtime.root.name, store.pointer(runtime.manifest.build_id).name}
        doomed = list(store.build_root().glob("*"))
        doomed += [path for path in store.root().glob("*") if path.name not in used]
        freed = sum(folder_size(path) for path in doomed)
        for path in doomed:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
    return freed


def _existing(key: str, report: Reporter) -> Runtime | None:
    """The runtime of that key, if it is there and sound; one that is not is deleted."""
    try:
        runtime = store.open_runtime(key)
        if runtime is None or _sound(runtime):
            return runtime
        report.warn("the runtime in the cache is damaged; building it again")
    except RuntimeLibraryError as e:
        report.warn(f"{e.message}; building it again")
    shutil.rmtree(store.root() / key)
    return None


def _build(recipe: Recipe, existing: Runtime | None, options: Options, report: Reporter, fd: int) -> Runtime:
    folder = store.build_root() / recipe.key
    folder.mkdir(parents=True, exist_ok=True)
    builder = Builder(
        recipe,
        folder,
        cmake=toolchain.get_cmake(report, fd),
        ninja=toolchain.get_ninja(report, fd),
        ccache=toolchain.find_ccache(),
        jobs=options.jobs,
        report=report,
        fd=fd,
    )
    builder.require_space()
    archive = fetch(recipe.source, report, fd)
    bindings = get_bindings(archive, recipe.source, report, fd)
    report.progress("Unpacking and patching llama.cpp", 0, None)
    builder.configure(unpack(archive, recipe.source, recipe.patches, folder), options.programs)
    builder.compile((*LIBRARIES, *PROGRAMS), f"Building the runtime ({'CUDA and CPU' if recipe.cuda else 'CPU'})")
    runtime = existing or _publish(builder, bindings, report)
    if missing := _missing(options, runtime):
        builder.compile(missing, "Building llama.cpp's tools")
        builder.install_programs(missing, runtime.root)
        tools = (*runtime.manifest.tools, *missing)
        made = replace(runtime.manifest, tools=tools, files=manifest.checksums(runtime.root))
        runtime = Runtime(runtime.root, made)
        manifest.save(runtime.manifest, runtime.root)
    return runtime


def _as_it_is(runtime: Runtime, options: Options, report: Reporter) -> Runtime:
    """A runtime that cannot be added to here; says what it lacks."""
    if missing := _missing(options, runtime):
        report.note(f"The runtime on this machine has no {', '.join(missing)}, and it was not built here.")
    return runtime


def _missing(options: Options, runtime: Runtime) -> list[str]:
    """The programs that are asked for and not in the runtime: an older pagedrun may have built it."""
    return [name for name in options.programs if name not in runtime.manifest.tools]


def _publish(builder: Builder, bindings: Path, report: Reporter) -> Runtime:
    """Put the runtime together aside, check that it loads, and rename it into place."""
    recipe = builder.recipe
    aside = store.root() / f"{recipe.key}.new"
    shutil.rmtree(aside, ignore_errors=True)
    builder.install_libraries(aside / "lib")
    builder.install_programs(PROGRAMS, aside)
    shutil.copytree(bindings, aside / "python", symlinks=True)
    made = Manifest(
        key=recipe.key,
        build_id=recipe.build_id,
        base=f"{recipe.source.name} {recipe.source.version}",
        patches=tuple(patch.name for patch in recipe.patches),
        cuda_version=recipe.cuda.version_text if recipe.cuda else "",
        cuda_archs=recipe.cuda.archs if recipe.cuda else (),
        cpu_flags=recipe.cpu_flags,
        compiler=recipe.compiler.version,
        options=recipe.options,
        glibc=needed_glibc(aside / "lib"),
        built=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, by pagedrun {__version__}",
        tools=PROGRAMS,
        files=manifest.checksums(aside),
    )
    manifest.save(made, aside)
    check_loads(Runtime(aside, made), report)
    target = store.root() / recipe.key
    shutil.rmtree(target, ignore_errors=True)  # without a manifest, or we would not be here
    aside.rename(target)
    return Runtime(target, made)


def check_loads(runtime: Runtime, report: Reporter) -> None:
    """Load the library in a child and compare its build id.

    Raises BuildError. A CUDA library on a machine without a driver (built for another) is only worth a line.
    """
    if not (runtime.python / "llama_cpp" / "llama_cpp.py").is_file():
        raise BuildError(f"there are no bindings in {runtime.python}", hint="run: pagedrun setup")
    try:
        reported = store.reported_build_id(runtime)
    except RuntimeLibraryError as e:
        if runtime.manifest.on_gpu and "libcuda.so" in e.message:
            report.note("This machine has no NVIDIA driver, so the CUDA runtime could not be tried here.")
            return
        raise BuildError(e.message, hint=e.hint) from e
    if runtime.manifest.patches and reported != runtime.manifest.build_id:
        raise BuildError(
            f"the library says its build id is {reported or 'absent'}, not {runtime.manifest.build_id}",
            hint="run pagedrun setup --clean, then pagedrun setup",
        )


def _sound(runtime: Runtime) -> bool:
    """Whether its files are those that were built, and it loads."""

    class Quiet:
        def note(self, text: str) -> None: ...
        def warn(self, text: str) -> None: ...
        def progress(self, label: str, done: float, total: float | None) -> None: ...

    if manifest.damaged(runtime.manifest, runtime.root):
        return False
    try:
        check_loads(runtime, Quiet())
    except BuildError:
        return False
    return True


def _ready(options: Options) -> Runtime | None:
    """The runtime that is current, if it has what is asked for and no particular build is."""
    if options.cpu or options.cuda_archs or options.portable:
        return None
    try:
        runtime = store.find_runtime()
    except RuntimeLibraryError:
        return None
    has_tools = set(TOOLS) <= set(runtime.manifest.tools)
    return runtime if (has_tools or not options.tools) and _sound(runtime) else None
