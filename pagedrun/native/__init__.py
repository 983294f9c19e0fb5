"""The only code that touches llama.cpp: loading the library, the model, the context, one batch at a time.

    library   finds and loads the built runtime, checks that it is ours, catches its log
    door      the extern-C functions that the patches add, as Python methods
    model     a loaded model and its vocabulary
    context   the KV cache and llama_decode, over one reusable batch
    sampler   llama.cpp's sampler chain for one request
    runner    context + samplers behind the engine's `Runner` protocol
    embedder  a model for embeddings

Import these modules directly; this package imports nothing, so that `pagedrun --help` stays quick.
"""
