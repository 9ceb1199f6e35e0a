"""Which scenarios a batch has: a curriculum, and other scenarios for groups without variance."""
