"""Commands that look after a cluster, a module each; `verbs` has those for its checkpoints."""
