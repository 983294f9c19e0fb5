"""Take GPU memory away, to test on a large card what a small one can do.

    python scripts/vram_ballast.py LEAVE_GIB -- COMMAND ...      run COMMAND with that much left free

Plain cuMemAlloc allocations, held until the command ends.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys

PIECE = 256 << 20


class Driver:
    """The few driver calls needed; raises RuntimeError when one fails."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.call("cuCtxSetCurrent", self._context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")

    def free(self) -> int:
        """Free bytes of the first GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Take `size` bytes until they are released or the process ends; answers where they are."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def release(self, pointer: int) -> None:
        """Give back what was allocated."""
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))


class Ballast:
    """Takes what is free, but for as much as is to be left."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._pieces: list[int] = []

    def leave(self, size: int) -> int:
        """See that `size` bytes are free, or a little more; answers how many."""
        while self._pieces and self._driver.free() < size:
            self._driver.release(self._pieces.pop())
        while (surplus := self._driver.free() - size) > 2 << 20:
            self._pieces.append(self._driver.allocate(min(surplus, PIECE)))
        return self._driver.free()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.usage = "%(prog)s LEAVE_GIB -- COMMAND ..."
    parser.add_argument("leave", type=float, metavar="LEAVE_GIB")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, command = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    if not command:
        parser.error("there is no command after --")
    left = Ballast().leave(int(args.leave * 2**30))
    print(f"ballast: {left / 2**30:.2f} GiB left free", file=sys.stderr, flush=True)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
