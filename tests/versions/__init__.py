"""What earlier versions wrote and said is read and understood by this one, for ever."""
