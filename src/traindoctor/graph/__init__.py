"""What depends on what in a taped step: its losses, its inputs and what lies between them."""
