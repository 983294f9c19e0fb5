"""The `pagedrun` command: typer commands over everything else."""
