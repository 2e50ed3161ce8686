"""Executed by every Python that starts with this folder in PYTHONPATH: gives it the faked devices."""

import faked_devices

faked_devices.install()
