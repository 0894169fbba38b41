"""From a candidate to a cubin and a zip: compilation, and the files that a user fetches."""
