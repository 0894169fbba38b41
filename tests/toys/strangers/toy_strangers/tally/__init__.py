"""A running sum that is kept between launches."""
