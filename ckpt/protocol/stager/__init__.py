"""The stager: all saves of one rank, from the half to the last word. Begin with machine.py."""
