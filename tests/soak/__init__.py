"""Campaigns against the whole path, with real processes, files and signals;
each prints its seed.
"""
