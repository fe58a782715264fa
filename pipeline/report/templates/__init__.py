"""Templates, styles and scripts of the pages."""
