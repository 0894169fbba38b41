"""Parts of an epilogue that scale, each with its device code next to it."""
