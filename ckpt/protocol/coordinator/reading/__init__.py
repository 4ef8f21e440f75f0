"""What is asked: which generation a launch reads, who reads what, what people are shown."""
