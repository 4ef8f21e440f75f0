"""Small files that a target keeps beside its columns, and what each is for."""
