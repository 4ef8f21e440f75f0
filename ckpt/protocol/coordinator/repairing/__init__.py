"""How redundancy returns: what lacks columns, in which order, and who makes them again."""
