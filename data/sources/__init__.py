"""Sources of images: folders, lists, WebDataset tars and Parquet files, local or behind a URL."""
