"""`ckptd repair`: makes lost columns again."""
