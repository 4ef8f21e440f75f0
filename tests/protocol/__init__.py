"""The machines, one event at a time: tables of cells, and random histories."""
