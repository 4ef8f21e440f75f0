"""Real object stores: `make test-stores`. Not part of `make test`."""
