"""What readers get: their questions take turns, and are cut into disk reads that several share."""
