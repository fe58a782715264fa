"""The command line `a2`."""
