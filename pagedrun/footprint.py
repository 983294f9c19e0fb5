"""How much memory a process holds."""

from __future__ import annotations

import os


def process_memory(pid: int | None = None) -> int:
    """Bytes of RAM (resident set, with the mapped model); None is this process. Raises psutil.Error."""
    import psutil

    return int(psutil.Process(pid).memory_info().rss)


def gpu_memory(pid: int | None = None) -> int | None:
    """Bytes of GPU memory on all GPUs; None when the driver does not tell."""
    import pynvml

    wanted = os.getpid() if pid is None else pid
    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            processes = [p for h in handles for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    its = [p.usedGpuMemory for p in processes if p.pid == wanted and p.usedGpuMemory is not None]
    return sum(its) if its else None  # inside a container the driver reports other pids
