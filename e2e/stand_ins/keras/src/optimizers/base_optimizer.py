class Number:
    def __init__(self, value: int) -> None:
        self.value = value

    def numpy(self) -> int:
        return self.value


class BaseOptimizer:
    """Counts its steps, as Keras's optimizers do. taken: those of the checkpoint that it goes on from."""

    def __init__(self, taken: int = 0) -> None:
        self.iterations = Number(taken)

    def apply(self) -> None:
        self.iterations.value += 1
