"""Sources of images: folders, lists, WebDataset tars and tables, local or behind a URL."""
