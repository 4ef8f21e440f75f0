"""All ranks end with one saved step when the process of one of them is asked to end."""
