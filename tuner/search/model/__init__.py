"""A model of one plan kind's schedules: their features, a pool of them, and a surrogate that ranks it."""
