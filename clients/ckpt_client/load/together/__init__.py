"""What several ranks want at the same time is read by one of them and passed on."""
