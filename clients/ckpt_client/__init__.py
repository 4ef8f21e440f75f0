"""Acts for trainers: store, staging, stager process, restore, commands."""
