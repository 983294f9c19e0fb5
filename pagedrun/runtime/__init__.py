"""The native runtime: llama.cpp, patched and built on this machine, and kept in the cache folder.

    sources     the pinned sdist, our patches, the build id      fetch      download, verify, unpack
    patching    apply a unified diff, strictly                   bindings   llama-cpp-python's Python files
    toolchain   compiler, cmake, ninja, ccache                   cuda       nvcc, cuBLAS, GPU architectures
    build       one cmake + ninja build                          archive    move a runtime to another machine
    store       where runtimes lie, which one is current         install    all of it in order: `pagedrun setup`

Nothing here imports the native library: that is `pagedrun.native`.
"""
