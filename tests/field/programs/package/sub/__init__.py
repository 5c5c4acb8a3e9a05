"""Its part."""
