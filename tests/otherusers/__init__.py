"""A host project with users of its own: no groups, keys that are no numbers, mail addresses for names, and no admin."""
