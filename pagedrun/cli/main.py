"""The `pagedrun` command: finds the subcommand, and turns every way of ending into an exit code.

    0 done    1 error    2 wrong usage    3 cut off (complete)    130 interrupted

Subcommands are imported when they are called, so that `pagedrun --help` starts fast.
"""

from __future__ import annotations

import errno
import importlib
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from pagedrun import __version__
from pagedrun.cli import console
from pagedrun.errors import PagedrunError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130

# What a system answers when it does not let us write or read: the user's to mend, no defect of ours.
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO}

# name -> (module, function, line in `pagedrun --help`)
_COMMANDS = {
    "chat": ("pagedrun.cli.chat", "chat", "Talk with a model in the terminal."),
    "complete": ("pagedrun.cli.complete", "complete", "Answer one prompt, for pipes and scripts."),
    "embed": ("pagedrun.cli.embed", "embed", "Make vectors of texts, for pipes and scripts."),
    "serve": ("pagedrun.cli.serve", "serve", "Serve a model to programs that speak OpenAI's API."),
    "ps": ("pagedrun.cli.servers", "ps", "List the servers that run."),
    "stop": ("pagedrun.cli.servers", "stop", "Stop a server."),
    "show": ("pagedrun.cli.models.show", "show", "Show what a model is, and what a conversation with it costs."),
    "plan": ("pagedrun.cli.plan", "plan", "Show what of a model goes where, and how fast it will be."),
    "pull": ("pagedrun.cli.models.pull", "pull", "Fetch a model: by name, from the hub, or from an address."),
    "search": ("pagedrun.cli.models.search", "search", "Find models to pull, in the registry and on the hub."),
    "list": ("pagedrun.cli.models.listing", "list_models", "List the models on this machine."),
    "verify": ("pagedrun.cli.models.verify", "verify", "Check models against their checksums."),
    "path": ("pagedrun.cli.models.path", "path", "Print where a model's file is."),
    "rm": ("pagedrun.cli.models.rm", "rm", "Delete models."),
    "sessions": ("", "", "List, show, move and delete conversations that were kept."),
    "quantize": ("pagedrun.cli.quantize.command", "quantize", "Make a smaller model out of a larger one."),
    "setup": ("pagedrun.cli.setup", "setup", "Build or install the native runtime."),
    "doctor": ("pagedrun.cli.doctor", "doctor", "Show what was found on this machine, and what is missing."),
}

_SESSIONS = {
    "list": ("pagedrun.cli.sessions.command", "list_sessions", "List the sessions."),
    "show": ("pagedrun.cli.sessions.command", "show", "Show what is in a session."),
    "rm": ("pagedrun.cli.sessions.command", "rm", "Delete sessions."),
    "rename": ("pagedrun.cli.sessions.command", "rename", "Give a session another name."),
    "export": ("pagedrun.cli.sessions.command", "export", "Write a session to a file, for another machine."),
    "import": ("pagedrun.cli.sessions.command", "import_", "Take a session in from a file."),
    "gc": ("pagedrun.cli.sessions.command", "gc", "Delete what nobody can use."),
}


class Command(TyperCommand):
    """A command whose help shows its options under their panels' names, in plain text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; what is wrong with the arguments is of this command, which not every one of click's errors says."""
        try:
            return super().parse_args(ctx, args)
        except Exception as e:
            if hasattr(e, "format_message") and getattr(e, "ctx", None) is None:
                e.ctx = ctx  # type: ignore[attr-defined]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters, grouped (typer itself draws panels only with rich, which is slow to import)."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                plain = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panel = getattr(parameter, "rich_help_panel", None) or plain
                name, text = record
                groups.setdefault(panel, []).append((name.partition(" <")[0], text))  # "MODEL <str>" says no more
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class LazyGroup(TyperGroup):
    """The top-level command, which imports a subcommand's module only when it is called."""

    table = _COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the help."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and wrap one subcommand; None when there is none of that name."""
        if cmd_name not in self.table:
            return None
        module, function, line = self.table[cmd_name]
        if not module:
            return _group_of_sessions(line)
        alone = _typer()
        alone.command(name=cmd_name, cls=Command)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self.table.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name; suggests close ones for a typo."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], self.table)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run; Ctrl-C and a reader that left become exit codes here, before typer makes something else of them."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            return _reader_left()


class SessionsGroup(LazyGroup):
    """`pagedrun sessions`."""

    table = _SESSIONS


def _group_of_sessions(line: str) -> Any:
    group = _typer(cls=SessionsGroup)

    @group.callback(invoke_without_command=True, help=line)
    def _sessions(ctx: typer.Context) -> None:
        _need_subcommand(ctx)

    return typer.main.get_command(group)


def _need_subcommand(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        with suppress(OSError):  # whoever reads stderr may have left
            typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)


def _typer(**more: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
        **{"add_completion": False, **more},
    )


app = _typer(cls=LazyGroup, add_completion=True)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"pagedrun {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Run large language models on this machine."""
    _need_subcommand(ctx)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    code = run(args)
    console.settle_stderr()
    sys.exit(code)


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. `args` without the program's name; None: the process's own."""
    try:
        code = typer.main.get_command(app).main(args=args, prog_name="pagedrun", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PagedrunError as e:
        console.show_error(e)
        return e.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as e:
        if hasattr(e, "format_message"):
            return _wrong_usage(e)
        return _unexpected(e)


def _reader_left() -> int:
    """Whoever read stdout has enough (`| head -1`): a quiet and good end."""
    console.abandon_stdout()
    return 0


def _refused(error: OSError) -> int:
    """A file that may not be used, or, without a name, standard output (a full disk behind it)."""
    if error.filename is None:
        console.abandon_stdout()
    console.show_problem(f"{error.filename or 'cannot write the output'}: {error.strerror}")
    return 1


def _wrong_usage(error: Any) -> int:
    """What typer found wrong with the command line. Its exception classes have moved between versions."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "pagedrun"
    message = error.format_message().rstrip(".")
    console.show_problem(message[:1].lower() + message[1:], f"see: {command} --help")
    return int(error.exit_code)


def _unexpected(error: Exception) -> int:
    """A defect of ours: one line, and the traceback in a file (on the terminal with -v)."""
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return _refused(error)
    import traceback

    text = "".join(traceback.format_exception(error))
    if console.verbose:
        console.note(text)
    line = str(error).strip().split("\n")[0]
    where = _log_traceback(text)
    console.show_problem(
        f"this should not have happened: {type(error).__name__}" + (f": {line}" if line else ""),
        f"the details are in {where}; please report them" if where else "run again with -v for the details",
    )
    return 1


def _log_traceback(text: str) -> str | None:
    """Append to the log in the state folder; returns its path, None when it cannot be written."""
    import datetime

    from pagedrun.paths import state_dir

    path = state_dir() / "errors.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        path.touch(mode=0o600)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as log:
            # The names of the options only: what was asked may be private.
            options = " ".join(a.split("=")[0] for a in sys.argv[1:] if a.startswith("-"))
            log.write(f"{now} pagedrun {__version__} {options}\n{text}\n")
    except OSError:
        return None
    return str(path)
