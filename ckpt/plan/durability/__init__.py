"""How likely is it that a year costs data? A model, its exact solution, and trials of the same."""
