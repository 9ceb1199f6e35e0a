"""Conversations with served models, from capture and from other producers, and the data sets that are made of them."""
