"""Every error that pagedrun raises on purpose, in one tree.

Each one carries a `hint`: what the user can do next. The command line prints

    error: MESSAGE
    hint:  HINT

and leaves with `exit_code`; nothing here ever reaches a user as a traceback.

    PagedrunError
    ├── UsageError              what was asked makes no sense (exit code 2)
    ├── PlatformError           this operating system or processor is not supported
    ├── SetupError              the runtime could not be built or installed
    │   ├── PatchError          a patch does not apply; names it
    │   ├── BuildError          the compiler or cmake failed; carries the end of the log
    │   ├── DownloadError       a package could not be fetched, or its hash is wrong
    │   └── DiskFullError
    ├── RuntimeLibraryError     the built library is absent, stale, or not ours
    ├── ModelError              a model file is absent or unusable
    │   ├── ModelNotFoundError
    │   ├── ModelFileError      not a GGUF, truncated, unknown architecture, wrong shard
    │   └── NotEnoughMemoryError
    ├── RequestError            one request is wrong; others go on
    │   ├── ParameterError      a sampling setting or limit is out of range
    │   ├── ContextLengthError  the prompt does not fit the context
    │   ├── GrammarError        a grammar or JSON schema cannot be used
    │   └── TemplateError       the chat template is missing or broken; carries the line
    ├── EngineError             decoding failed, or the engine has stopped
    │   └── ReloadedError       a server has the model loaded otherwise than its client knows
    ├── SessionError            a durable conversation cannot be saved or used
    │   ├── SessionNotFoundError
    │   ├── SessionInUseError   another process has it
    │   ├── DamagedTextError    what was said cannot be read
    │   ├── DamagedSessionError, OtherVersionError, OtherIdentityError    (pagedrun.sessions says more)
    │   └── NotSavedError, NoRoomError
    └── OutputError             standard output cannot be written: there is no point in going on
"""

from __future__ import annotations


class PagedrunError(Exception):
    """Base of all errors shown to users.

    `message` says what is wrong in one sentence, `hint` what to do next (may be empty).
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PagedrunError):
    """The command line or a setting asks for something that makes no sense."""

    exit_code = 2


class PlatformError(PagedrunError):
    """This operating system, processor or Python is not supported."""


class SetupError(PagedrunError):
    """The native runtime could not be built or installed."""


class PatchError(SetupError):
    """A patch does not apply to the pinned sources."""


class BuildError(SetupError):
    """cmake or the compiler failed."""


class DownloadError(SetupError):
    """A package could not be fetched, or what came is not what was pinned."""


class DiskFullError(SetupError):
    """There is not enough free disk space."""


class RuntimeLibraryError(PagedrunError):
    """The native library is absent, stale, or not the one these sources belong to."""


class ModelError(PagedrunError):
    """A model file is absent or cannot be used."""


class ModelNotFoundError(ModelError):
    """No model of that name or path is on this machine."""


class ModelFileError(ModelError):
    """The file is not a usable GGUF: wrong format, truncated, unknown architecture, wrong shard."""


class NotEnoughMemoryError(ModelError):
    """The model and its context do not fit the memory that is free."""


class RequestError(PagedrunError):
    """One request cannot be served; the engine and other requests go on."""


class ParameterError(RequestError):
    """A sampling setting or a limit is out of range."""


class ContextLengthError(RequestError):
    """The prompt does not fit the context.

    `prompt_tokens` and `max_seq_len` are in tokens.
    """

    def __init__(self, prompt_tokens: int, max_seq_len: int, *, hint: str = "") -> None:
        super().__init__(
            f"the prompt has {prompt_tokens:,} tokens and the context holds {max_seq_len:,}",
            hint=hint or "shorten the prompt, or raise --max-seq-len",
        )
        self.prompt_tokens = prompt_tokens
        self.max_seq_len = max_seq_len


class GrammarError(RequestError):
    """A GBNF grammar or a JSON schema cannot be used."""


class TemplateError(RequestError):
    """The model's chat template is missing or broken."""


class EngineError(PagedrunError):
    """Decoding failed, or the engine has stopped."""


class ReloadedError(EngineError):
    """A server has the model loaded otherwise than its client knows."""


class SessionError(PagedrunError):
    """A durable conversation cannot be saved or used."""


class SessionNotFoundError(SessionError):
    """There is no such session."""


class SessionInUseError(SessionError):
    """Another process has the session."""


class DamagedTextError(SessionError):
    """What was said in a session cannot be read."""


class OutputError(PagedrunError):
    """Standard output cannot be written."""
