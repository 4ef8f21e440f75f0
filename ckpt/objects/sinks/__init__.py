"""Object stores, each as a Sink: directories, S3 and its like, whatever fsspec knows."""
