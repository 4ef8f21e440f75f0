"""`ckptd target`: one storage device or directory, served: a shell around the machine."""
