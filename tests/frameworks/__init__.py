"""Adapters against the real packages: `make test-frameworks`."""
