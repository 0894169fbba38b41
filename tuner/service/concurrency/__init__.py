"""What the threads of a service share: claims, waiting, writes with retries."""
