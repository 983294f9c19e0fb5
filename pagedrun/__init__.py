"""pagedrun: run large language models on small GPUs, with a paged KV cache over llama.cpp.

The package imports nothing heavy: the command line starts fast and the native runtime is loaded only
by the code that needs it (`pagedrun.native`).
"""

__version__ = "0.1.0"
