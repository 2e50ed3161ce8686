"""How a rank is started: its command, its environment, its software."""
