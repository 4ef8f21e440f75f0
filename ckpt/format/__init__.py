"""What bytes look like: layout arithmetic, frames, column files, manifests, index, records."""
