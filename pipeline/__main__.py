"""Lets `python -m a2cap.pipeline` do what `a2` does."""

from a2cap.pipeline.cli.main import main

main()
