"""From the first question of a save to its one atomic fact: space, attempts, commit, end."""
