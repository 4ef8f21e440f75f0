"""The durable tier: checkpoints in object storage, in an open format (docs/drain_format.md).

    Source --writer--> Sink (file, s3, gcs, ...) --reader--> arrays

Third-party modules (fsspec, s3fs, obstore, zarr, numcodecs) are imported where they are needed,
never by importing this room.
"""
