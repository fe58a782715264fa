"""The page of the report, its style and its script."""
