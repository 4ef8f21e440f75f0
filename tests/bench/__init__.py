"""The benchmarks' own tests: arithmetic, options, reports; never a time."""
