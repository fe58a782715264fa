"""Image to regions: the native bottom-up detector (Anderson et al. 2018, arXiv:1707.07998)."""
