"""Systematic bugs, planted one at a time: what no test notices is a hole (`make mutants`)."""
