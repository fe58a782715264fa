"""Human judgement of two captioners, blind and side by side: `a2 human`."""
