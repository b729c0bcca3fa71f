"""The `hocket` command: `main` finds the subcommand, one module per subcommand does the work."""
