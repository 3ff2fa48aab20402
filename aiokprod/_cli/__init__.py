"""The subcommands of the command `aiokprod`."""
