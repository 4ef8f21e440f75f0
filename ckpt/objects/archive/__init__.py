"""Many small arrays in one object: a ZIP file that is a Zarr group."""
