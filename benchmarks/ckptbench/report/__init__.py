"""How is a result shown? fio's text and JSON, bars, plots. Pure: records in, text out.

numbers (how fio writes them) -> entries (fio's per-job figures), summary (ours) -> text, document,
bars, plot.
"""
