"""From a schedule to a table of words: tile graph, order, queues, waits and posts."""
