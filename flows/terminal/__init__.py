"""What flows share as commands: how they start and end, and what a person sees of them."""
