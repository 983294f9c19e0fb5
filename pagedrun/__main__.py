"""`python -m pagedrun` is the `pagedrun` command."""

import signal
import sys

if __name__ == "__main__":
    # Until there is something to clean up, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from pagedrun.cli.main import main
    except ModuleNotFoundError as e:
        sys.exit(
            f"error: a package that pagedrun needs is missing: {e.name}\n"
            "hint:  install pagedrun again; scripts/pagedrun does so once the checkout's .venv is deleted"
        )

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
