"""`ckpt`: what people who run storage and training type. `main.py` starts it; a module per verb."""
