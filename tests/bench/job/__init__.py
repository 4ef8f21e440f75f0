"""Grammar, options and jobs: pure, so that properties can hold them."""
