"""The zygotes: processes that have imported what ranks need, and from which ranks are forked."""
