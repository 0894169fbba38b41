"""Parts of an epilogue that scale, each with its device code beside it."""
