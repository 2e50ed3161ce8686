"""Pure decisions: (spec, status, observation, now) -> decision. Each policy is one module.

Nothing is imported here, because commands that start fast use single modules of this package.
"""
