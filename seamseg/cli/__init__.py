"""The command line: one module per sub-command, with arguments and printing only."""
