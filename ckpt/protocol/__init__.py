"""Who says what, when: state machines without effects, handle(event) -> list of actions."""
