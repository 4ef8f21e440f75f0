"""The benchmarks' own tests: arithmetic, options, one tiny run; never a time."""
