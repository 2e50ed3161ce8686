"""What both sides share: `wire` and `launch` (standard library only), and `config` (pydantic)."""
