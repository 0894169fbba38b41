"""From a model's config to the shapes of its ops."""
