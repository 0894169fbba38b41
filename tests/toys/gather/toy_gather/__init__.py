"""A gather of table rows, whose number is given at launch."""
