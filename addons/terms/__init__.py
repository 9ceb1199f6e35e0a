"""Terms of an update's loss beside GRPO's own: for entropy, a reference that moves, and the balance of experts."""
