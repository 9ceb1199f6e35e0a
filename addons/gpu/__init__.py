"""What only a GPU needs: checks, the memory of an update, FlexAttention, fixed orders of sums, several cards, fewer bits."""
