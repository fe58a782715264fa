"""Lets `python -m a2.pipeline` do what `a2` does."""

from a2.pipeline.cli.main import main

main()
