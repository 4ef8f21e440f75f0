"""The whole system in one process under one seed: the daemons' own machines over a
fake network and fake disks.
"""
