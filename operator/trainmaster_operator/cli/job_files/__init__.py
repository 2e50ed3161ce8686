"""Files of jobs: written, read, checked and migrated."""
