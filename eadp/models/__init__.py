"""What is particular to a model: where its visual tokens are, and how to bring text to them."""
