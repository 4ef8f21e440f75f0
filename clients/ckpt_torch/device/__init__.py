"""The accelerator, as staging and loading use it: copies on a stream of their own, locked pages."""
