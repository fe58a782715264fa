"""Tiny tars and Parquet files of images."""

import io
import tarfile

import numpy as np
from PIL import Image


def jpeg(shade):
    """Return a JPEG of one shade."""
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(file, "JPEG")
    return file.getvalue()


def tar_bytes(members):
    """Return a tar; members: bytes by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return file.getvalue()


def write_parquet(path, *, row_group_size=2, **columns):
    """Write a Parquet file with these columns."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path, row_group_size=row_group_size)


def write_arrow(path, *, batch_size=2, **columns):
    """Write an Arrow stream with these columns, as `datasets` caches one."""
    import pyarrow as pa

    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=batch_size)
