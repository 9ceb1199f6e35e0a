"""The gateway: a server that agents call as they call OpenAI or Anthropic. It records every token that is sampled."""
