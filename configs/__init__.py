"""Configurations of experiments, as files: `a2 run -c a2-gate`."""
