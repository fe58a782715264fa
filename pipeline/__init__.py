"""The stages and the command line; the only folder that imports all the others."""
