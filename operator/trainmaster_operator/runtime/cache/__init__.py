"""Caches of the cluster's objects, kept by watches."""
