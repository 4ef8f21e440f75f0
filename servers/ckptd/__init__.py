"""Acts for storage: target daemon, coordinator, local supervisor."""
