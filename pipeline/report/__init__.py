"""HTML pages: the evaluation report and the comparison of two runs."""
