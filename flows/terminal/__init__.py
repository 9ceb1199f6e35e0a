"""What flows share as commands: start, end, what a person sees."""
