"""In which order tasks run, and which CTA runs them."""
