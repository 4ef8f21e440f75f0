"""What bytes look like: round trips, hostile input, damage, frozen bytes."""
