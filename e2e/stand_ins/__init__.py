"""Stand-ins for frameworks whose images are too large for the machine of the end-to-end tests.

A stand-in has the names that Trainmaster looks at, reads the same variables and speaks the same protocol to find the
other ranks. It computes nothing but a sum over all ranks (`mesh.py`). A test copies this folder to a place that its
pods see, and puts that on their PYTHONPATH.
"""
