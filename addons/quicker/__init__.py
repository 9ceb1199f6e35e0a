"""DVC's work for each stage, done once."""
