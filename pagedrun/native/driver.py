"""What the NVIDIA driver can do, asked of the driver itself; no runtime is needed."""

from __future__ import annotations

import ctypes

_VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


def virtual_memory() -> bool | None:
    """Whether the driver manages virtual memory on the first GPU; None: it does not say."""
    found, device = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetAttribute(ctypes.byref(found), _VIRTUAL_MEMORY, device)
    )
    return None if failed else bool(found.value)
