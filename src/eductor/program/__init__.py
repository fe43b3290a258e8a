"""The values that stages hand to each other: joint graph, parts, job, compiled graph, program."""
