"""Device, precision, processes and threads."""
