"""GiGPO: advantages of single turns, beside those of whole episodes."""
