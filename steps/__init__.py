"""The stages and what they share. Knows nothing of Prefect; imports run flows -> steps -> environments."""
