"""The values that stages pass to each other: joint graph, parts, job, compiled graph, program."""
