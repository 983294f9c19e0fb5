"""`python -m pagedrun` is the `pagedrun` command."""

from pagedrun.cli.main import main

if __name__ == "__main__":
    main()
