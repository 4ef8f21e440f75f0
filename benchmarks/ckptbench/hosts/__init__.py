"""Ranks on many hosts: an agent on each, and a group of ranks that speaks with all of them.

Every agent and the run that speaks with it know one secret; the handshake and the frames are the
product's own. What comes back are the ranks' own answers: all figures are made from them where the
run is, histograms too, so nothing is ever averaged twice.
"""
