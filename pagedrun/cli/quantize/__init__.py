"""`pagedrun quantize`: the command, its source as a GGUF, its progress, and what it says."""
