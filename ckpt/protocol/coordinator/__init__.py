"""The coordinator: `machine.py` joins four rooms, saving, keeping, reading and the cluster."""
