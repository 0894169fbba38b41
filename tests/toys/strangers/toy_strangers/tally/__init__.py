"""A tally that is kept between launches."""
