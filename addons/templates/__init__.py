"""Chat templates with tools, by name."""
