"""Who takes part: targets and their leases, processes of a launch, and whether the catalog is theirs."""
