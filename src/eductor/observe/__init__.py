"""What people look at: tables of what passes did, and the manual made from the registry."""
