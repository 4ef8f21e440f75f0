"""The benchmarks on real clusters and files: tiny runs; never a time."""
