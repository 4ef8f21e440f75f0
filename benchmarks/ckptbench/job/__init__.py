"""What is asked for: fio's ini grammar and words, as checked jobs. Pure, but for reading files.

values -> options (the one table) -> grammar, flags -> jobs -> guide (help).
"""
