"""Tools that show and check what a compile does, and the manual of the passes."""

from eductor.observe.table import pass_table as pass_table
