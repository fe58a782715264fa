"""Feature files of other projects: TSV, npz and HDF5."""
