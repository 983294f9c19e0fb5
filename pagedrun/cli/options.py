"""Options that commands share, declared once, in groups.

A group is a dataclass whose fields are typer options. A command takes whole groups:

    @with_options
    def chat(model: ModelName = None, *, sampling: SamplingOptions, engine: EngineOptions) -> None: ...

and `with_options` shows typer one option per field.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer

from pagedrun.cli import console
from pagedrun.config import KV_TYPES, PREFETCH, ROPE_SCALING, SPILL, EngineConfig, load_config
from pagedrun.errors import ParameterError, UsageError
from pagedrun.paths import expanded
from pagedrun.sampling import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

MODEL_HELP = (
    "A name (list and search show them), hf:owner/repo[:quant], ollama:name[:tag], or the path of a GGUF file. "
    "Without it: the one used last."
)

ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
SESSION_HELP = "Go on with the session of that name, or begin it: what is said is kept, and need not be read again."
SessionOption = Annotated[str | None, typer.Option("--session", metavar="NAME", help=SESSION_HELP, show_default=False)]
PullOption = Annotated[bool, typer.Option("--pull", help="Fetch the model without asking, if it is not here.")]


def _option(flags: str, help_text: str, *, panel: str | None = None, metavar: str | None = None, **more: Any) -> Any:
    """A typer option without a shown default: None means "not given", and the help says what follows from it."""
    return typer.Option(
        *flags.split(), help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False, **more
    )


def _sampling(flags: str, help_text: str, metavar: str = "NUMBER") -> Any:
    return _option(flags, help_text, panel="Sampling", metavar=metavar)


def _engine(flags: str, help_text: str, metavar: str | None = "NUMBER", **more: Any) -> Any:
    return _option(flags, help_text, panel="Engine", metavar=metavar, **more)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and whether it may be fetched."""

    model_option: Annotated[str | None, _option("-m --model", MODEL_HELP, metavar="MODEL")] = None
    pull: PullOption = False


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen; what is not given comes from the registry, the model file, or llama.cpp's defaults."""

    temp: Annotated[float | None, _sampling("--temp --temperature", "Randomness; 0 always takes the likeliest.")] = None
    top_k: Annotated[int | None, _sampling("--top-k", "Only the K likeliest tokens; 0: all.")] = None
    top_p: Annotated[float | None, _sampling("--top-p", "The likeliest tokens that together have this share.")] = None
    min_p: Annotated[float | None, _sampling("--min-p", "Drop tokens below this share of the likeliest one's.")] = None
    typical: Annotated[float | None, _sampling("--typical", "Locally typical sampling; 1: off.")] = None
    repeat_penalty: Annotated[float | None, _sampling("--repeat-penalty", "Divide what was said before; 1: off.")] = (
        None
    )
    repeat_last_n: Annotated[
        int | None, _sampling("--repeat-last-n", "How far the penalties look back, in tokens (0 to 1048576).")
    ] = None
    presence_penalty: Annotated[
        float | None, _sampling("--presence-penalty", "Lower what was said at all; 0: off.")
    ] = None
    frequency_penalty: Annotated[
        float | None, _sampling("--frequency-penalty", "Lower what was said, each time more; 0: off.")
    ] = None
    dry_multiplier: Annotated[
        float | None, _sampling("--dry-multiplier", "DRY: penalty for repeating a sequence; 0: off.")
    ] = None
    dry_base: Annotated[float | None, _sampling("--dry-base", "DRY: growth per repeated token.")] = None
    dry_allowed_length: Annotated[
        int | None, _sampling("--dry-allowed-length", "DRY: repeats up to this many tokens are free.")
    ] = None
    dry_penalty_last_n: Annotated[
        int | None, _sampling("--dry-penalty-last-n", "DRY: how far it looks back, in tokens (0 to 1048576).")
    ] = None
    dry_sequence_breaker: Annotated[
        list[str] | None,
        _sampling("--dry-sequence-breaker", "DRY: text that ends a sequence; may be repeated.", "TEXT"),
    ] = None
    xtc_probability: Annotated[
        float | None, _sampling("--xtc-probability", "XTC: how often the likeliest tokens are removed; 0: off.")
    ] = None
    xtc_threshold: Annotated[float | None, _sampling("--xtc-threshold", "XTC: share above which it removes.")] = None
    mirostat: Annotated[int | None, _sampling("--mirostat", "Mirostat version, 1 or 2; 0: off.")] = None
    mirostat_tau: Annotated[float | None, _sampling("--mirostat-tau", "Mirostat: target entropy.")] = None
    mirostat_eta: Annotated[float | None, _sampling("--mirostat-eta", "Mirostat: learning rate.")] = None
    seed: Annotated[int | None, _sampling("--seed", "Same seed, same prompt, same answer.")] = None
    logit_bias: Annotated[
        list[str] | None,
        _sampling("--logit-bias", "Add BIAS to a token's logit (-inf bans it); may be repeated.", "TOKEN_ID=BIAS"),
    ] = None
    ignore_eos: Annotated[
        bool, _option("--ignore-eos", "Never let the model end the answer itself.", panel="Sampling")
    ] = False

    def params(self) -> SamplingParams:
        """The settings as the engine takes them. Raises UsageError when one is out of range."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["temperature"] = values.pop("temp")
        values["typical_p"] = values.pop("typical")
        breakers = values.pop("dry_sequence_breaker")
        try:
            return SamplingParams(
                **values
                | {
                    "dry_sequence_breakers": tuple(breakers) if breakers else None,
                    "logit_bias": tuple(_bias(text) for text in self.logit_bias or ()),
                }
            )
        except ParameterError as e:
            raise UsageError(e.message, hint=e.hint) from e


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the model is loaded; flags go before PAGEDRUN_* variables, and these before the config file."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    leaves_out: ClassVar[frozenset[str]] = frozenset()  # fields that are no options of the command
    log_from: ClassVar[int] = 1  # how often -v has to be given for llama.cpp's log

    max_seq_len: Annotated[
        int | None, _engine("-c --max-seq-len", "Context size in tokens; 0: what the model and memory allow.")
    ] = None
    rope_scaling: Annotated[
        str | None,
        _engine("--rope-scaling", f"For more tokens than the model was trained for: {', '.join(ROPE_SCALING)}.", "HOW"),
    ] = None
    threads: Annotated[int | None, _engine("-t --threads", "CPU threads; 0: one per physical core.")] = None
    gpu_layers: Annotated[int | None, _engine("--gpu-layers", "Layers on the GPU; 0: none, -1: as many as fit.")] = None
    kv_type: Annotated[
        str | None, _engine("--kv-type", f"Number format of the KV cache: {', '.join(KV_TYPES)}.", "TYPE")
    ] = None
    max_num_seqs: Annotated[int | None, _engine("--max-num-seqs", "Conversations computed together.")] = None
    gpu_memory: Annotated[
        str | None,
        _engine(
            "--gpu-memory",
            "VRAM that may be used, weights included, e.g. 6GiB; without a GPU: RAM for context.",
            "SIZE",
        ),
    ] = None
    swap_space: Annotated[
        str | None, _engine("--swap-space", "RAM for what leaves VRAM of conversations, e.g. 8GiB.", "SIZE")
    ] = None
    disk_space: Annotated[
        str | None, _engine("--disk-space", "Size of a file for idle conversations that RAM has no room for.", "SIZE")
    ] = None
    cache_disk: Annotated[
        str | None, _engine("--cache-disk", "Disk for conversations to go on with after a restart; 0: none.", "SIZE")
    ] = None
    spill: Annotated[
        str | None, _engine("--spill", f"How what is in RAM is read while it is in use: {', '.join(SPILL)}.", "HOW")
    ] = None
    prefetch_mode: Annotated[
        str | None, _engine("--prefetch-mode", f"What is brought back ahead of need: {', '.join(PREFETCH)}.", "HOW")
    ] = None
    debug_kv: Annotated[
        bool | None, _engine("--debug-kv", "Check the page tables of the KV cache at every step; slow.", None)
    ] = None
    config: Annotated[Path | None, _engine("--config", "Settings file to use in place of the usual one.", "FILE")] = (
        None
    )
    verbose: Annotated[
        int,
        _engine(
            "-v --verbose", "Show llama.cpp's log, and tracebacks.", None, count=True, callback=console.set_verbose
        ),
    ] = 0

    def settings(self) -> EngineConfig:
        """The engine settings in force. Raises UsageError."""
        return load_config(self.flags(), file=self.config, defaults=self.defaults)

    def flags(self) -> dict[str, Any]:
        """Settings by their names; None: not given here."""
        names = (
            "max_seq_len", "rope_scaling", "max_num_seqs", "threads", "gpu_layers", "kv_type", "gpu_memory",
            "swap_space", "disk_space", "cache_disk", "spill", "prefetch_mode", "debug_kv",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class ServerChoice:
    """Who answers: a server that runs, or this process."""

    server: Annotated[
        str | None,
        _option(
            "--server",
            "Have the server of this address answer; none: no server. Otherwise one of yours on this machine that has "
            "the model, if there is one. Or: PAGEDRUN_SERVER.",
            panel="Engine",
            metavar="URL",
        ),
    ] = None
    no_server: Annotated[bool, _option("--no-server", "Load the model here, whatever runs.", panel="Engine")] = False


@dataclass(frozen=True, kw_only=True)
class PlanOptions(EngineOptions):
    """The same for a plan, which may be of a GPU that nobody has yet."""

    gpu_memory: Annotated[
        str | None,
        _engine(
            "--gpu-memory",
            "A plan for a GPU of that size, whether it is here or not. Without it for this machine, where "
            "PAGEDRUN_GPU_MEMORY and the settings mean what they mean to every command.",
            "SIZE",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """How messages become a prompt."""

    system: Annotated[str | None, _option("-s --system", "System prompt.", metavar="TEXT")] = None
    think: Annotated[
        bool | None, _option("--think/--no-think", "Let the model think first, or not; else as the model is used to.")
    ] = None
    chat_template: Annotated[
        Path | None, _option("--chat-template", "Jinja file to use in place of the model's own.", metavar="FILE")
    ] = None

    def template_text(self) -> str | None:
        """The --chat-template file's text. Raises UsageError when it cannot be read."""
        return None if self.chat_template is None else read_option_file(self.chat_template, "--chat-template")


def read_option_file(path: Path, option: str) -> str:
    """The text of a file named by an option. Raises UsageError that names both, also for one without text."""
    try:
        text = expanded(path).read_text(encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{option}: cannot read {path}: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{option}: {path} is not UTF-8 text (byte {e.start + 1:,})") from e
    if not text.strip():
        raise UsageError(f"{option}: {path} is empty")
    return text


def with_options(command: F) -> F:
    """Turn each parameter of `command` that is an option group into one option per field of the group."""
    # Not get_type_hints: in Python 3.10 it hides an Annotated with the default None inside an Optional.
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in own.items() if is_dataclass(p.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def flat(**values: Any) -> Any:
        built = {
            name: group(**{f.name: values.pop(f.name) for f in fields(group) if f.name in values})
            for name, group in groups.items()
        }
        return command(**values, **built)

    # Arguments keep their order: typer takes it from the signature. Both attributes, as typer versions differ.
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat  # type: ignore[return-value]


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=hints[f.name])
        for f in fields(group)
        if f.name not in getattr(group, "leaves_out", ())
    ]


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _bias(text: str) -> tuple[int, float]:
    token, equals, bias = text.partition("=")
    try:
        if not equals or math.isnan(float(bias)):
            raise ValueError(text)
        return int(token), float(bias)
    except ValueError as e:
        raise UsageError(f"--logit-bias {text!r} is not TOKEN_ID=BIAS", hint="for example --logit-bias 11=-inf") from e
