"""Models behind OpenAI-compatible servers: as players to compare with, and for add-ons that ask them."""
