"""Another adapter on the other side of a game."""
