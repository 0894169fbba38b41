"""What the threads of a service share: claims, waiting, writes that are tried again."""
