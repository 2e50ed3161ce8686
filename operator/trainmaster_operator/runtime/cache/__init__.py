"""Caches of the cluster's objects, kept up to date by watches."""
