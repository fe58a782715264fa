"""The stages and the command line; the only folder that knows all the others."""
