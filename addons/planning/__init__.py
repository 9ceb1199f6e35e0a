"""What a configuration needs before it runs: memory, seconds and money, from a model's config.json alone."""
