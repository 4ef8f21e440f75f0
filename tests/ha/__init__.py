"""The catalog on a real etcd: `make test-ha`. Not part of `make test`."""
