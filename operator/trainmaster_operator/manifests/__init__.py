"""Pure builders of pods and services."""
