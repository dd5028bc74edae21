"""The command line: the table of commands, what they share, and the small ones."""
