"""Quantising models: from a GGUF file, or from a Hugging Face folder by way of one.

    source       what the user named: the files of a GGUF, or a folder with safetensors
    folder       such a folder: is it whole?
    types        quantisations by name
    child        llama.cpp's quantiser, in a process of its own
    beforehand   what speaks against it by names and headers alone
    checks       what speaks against it by llama.cpp's plan, and remarks
    job          plan, checks, quantise aside, check, rename
    calibrate    an importance matrix, by llama-imatrix
    environment  torch and transformers, in an environment of their own
    program      another program as a child
    convert      safetensors -> GGUF, by llama.cpp's converter in that environment
    compare      perplexity and KL divergence of two models

Import these modules directly; this package imports nothing, so that `pagedrun --help` stays quick.
"""
