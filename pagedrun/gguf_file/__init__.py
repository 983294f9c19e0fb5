"""What a GGUF file says about itself, read without llama.cpp and without trusting the file."""

from __future__ import annotations

from pagedrun.gguf_file.check import check_file, split_parts

__all__ = ["check_file", "split_parts"]
