"""What a target reads at rest, and compares: when somebody asks, and by itself."""
