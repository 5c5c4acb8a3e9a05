"""Where do two implementations part ways? Two traces of the same steps, walked in the order in which they were made."""
