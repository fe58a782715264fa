"""Device, precision, memory, threads and ranks."""
