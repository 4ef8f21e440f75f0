"""The trainer's side: states, arena, stager, store, commands and demo."""
