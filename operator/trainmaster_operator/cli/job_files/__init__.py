"""Files of jobs: they are written, read, checked and migrated here."""
