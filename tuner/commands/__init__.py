"""The commands of `tuner` beside `serve`."""
