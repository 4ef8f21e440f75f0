"""How is a job run? schedule (when a loop counts), counters and sampler (what the kernel says),
section (one job's loops), session (groups of jobs, their storages).
"""
