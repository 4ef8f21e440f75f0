"""The rules of deletion, moves and losses, explored over real machines in a world that is small."""
