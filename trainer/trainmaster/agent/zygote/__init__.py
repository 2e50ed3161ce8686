"""The zygotes: processes that have imported what ranks need, and fork them."""
