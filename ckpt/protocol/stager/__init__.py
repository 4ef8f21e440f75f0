"""The stager: all saves of one rank, from the arena's half to the coordinator's last word. Begin with machine.py."""
