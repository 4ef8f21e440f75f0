"""Who takes part: targets, processes of a launch, and whether the catalog is theirs."""
