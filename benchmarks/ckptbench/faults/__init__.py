"""What is done to the targets while a benchmark runs: the words, and the deeds."""
