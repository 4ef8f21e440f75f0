"""The catalog in etcd: its URL, a client, the keys, the fence, and the writer."""
