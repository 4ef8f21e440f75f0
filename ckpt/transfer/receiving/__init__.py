"""What a `PayloadReceiver` consists of: connections, lent columns, the thread that decodes."""
