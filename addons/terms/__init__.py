"""Terms of an update's loss beside GRPO's own: for entropy, a moving reference, experts, and the sampler's ratios."""
