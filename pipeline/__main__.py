"""Command line for `python -m a2cap.pipeline`, the same as `a2`; torchrun needs a module."""

from a2cap.pipeline.cli.main import main

main()
