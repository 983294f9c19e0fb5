"""`python -m pagedrun` is the `pagedrun` command."""

import signal

if __name__ == "__main__":
    # Until there is something to clean up, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pagedrun.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
