"""Finds secrets by their form, and by what names them."""
