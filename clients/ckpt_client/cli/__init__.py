"""`ckpt`: what people who run storage and training type. `main.py` starts it; one module for each verb."""
