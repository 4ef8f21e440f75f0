"""The listening side of a daemon: who is let in, who stays, and in how much memory."""
