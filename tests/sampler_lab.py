"""SmolLM2 by hand: one context, and samplers over its logits, for the tests of the sampler."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pagedrun.request import GenerationRequest
from pagedrun.sampling import LLAMA_DEFAULTS, SamplingParams

if TYPE_CHECKING:
    from pagedrun.native.library import Library
    from pagedrun.native.sampler import Sampler

PROMPT = "The capital of France is"
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # the model's own distribution
DRAWS = 120


class Lab:
    """A model and one context of 1,024 tokens, used by hand."""

    def __init__(self, library: Library, path: Path) -> None:
        from pagedrun.native.door import Door

        self.llama = library.llama
        self.door = Door(library.common)
        self.model = self.llama.llama_model_load_from_file(str(path).encode(), self.llama.llama_model_default_params())
        params = self.llama.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 1024, 1, 1
        self.context = self.llama.llama_init_from_model(self.model, params)
        self.vocab = self.llama.llama_model_get_vocab(self.model)
        self.n_vocab: int = self.llama.llama_vocab_n_tokens(self.vocab)

    def tokens(self, text: str) -> list[int]:
        data = text.encode()
        found = (self.llama.llama_token * 1024)()
        count = self.llama.llama_tokenize(self.vocab, data, len(data), found, 1024, True, True)
        return list(found[:count])

    def text(self, token: int) -> str:
        buffer = ctypes.create_string_buffer(128)
        size = self.llama.llama_token_to_piece(self.vocab, token, buffer, 128, 0, True)
        return buffer.raw[:size].decode("utf-8", "replace")

    def decode(self, tokens: list[int], *, fresh: bool = False) -> None:
        if fresh:
            self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        array = (self.llama.llama_token * len(tokens))(*tokens)  # the batch only points to it
        assert self.llama.llama_decode(self.context, self.llama.llama_batch_get_one(array, len(array))) == 0

    def logits(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.ctypeslib.as_array(self.llama.llama_get_logits_ith(self.context, -1), (self.n_vocab,)).copy()

    def sampler(self, prompt: list[int], settings: dict[str, Any], **request: Any) -> Sampler:
        from pagedrun.native.sampler import Sampler

        sampling = SamplingParams(**settings).with_defaults(LLAMA_DEFAULTS)
        asked = GenerationRequest(prompt=tuple(prompt), sampling=sampling, **request)
        made = Sampler(self.door, self.model, asked, sampling)
        made.accept_prompt(prompt)
        return made

    def draw(self, prompt: str = PROMPT, n: int = DRAWS, **settings: Any) -> Counter[int]:
        """How often each token was the first one, over the seeds 0..n-1."""
        tokens = self.tokens(prompt)
        self.decode(tokens, fresh=True)
        drawn: Counter[int] = Counter()
        for seed in range(n):
            sampler = self.sampler(tokens, OPEN | settings | {"seed": seed})
            drawn[sampler.sample(self.context, -1)] += 1
            sampler.close()
        return drawn

    def generate(
        self, prompt: str = PROMPT, n: int = 16, settings: dict[str, Any] | None = None, **request: Any
    ) -> str:
        tokens = self.tokens(prompt)
        sampler = self.sampler(tokens, settings or {"seed": 1}, **request)
        self.decode(tokens, fresh=True)
        said = ""
        for _ in range(n):
            token = sampler.sample(self.context, -1)
            if self.llama.llama_vocab_is_eog(self.vocab, token):
                return said + "<END>"
            said += self.text(token)
            self.decode([token])
        return said


@contextmanager
def opened_lab(library: Library, path: Path) -> Iterator[Lab]:
    """A lab, and its model freed afterwards."""
    made = Lab(library, path)
    yield made
    made.llama.llama_free(made.context)
    made.llama.llama_model_free(made.model)
