"""What people look at: tables of what passes did, and the manual made from the registry."""

from eductor.observe.table import pass_table as pass_table
