"""What both sides share: `wire` (standard library only) and `config` (pydantic)."""
