"""Is the tier as fast as it is meant to be? Every rule, judged by the jobs of one run.

sections (which jobs are run) -> judge (what each rule finds in their results). Pure.
"""
