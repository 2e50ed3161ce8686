"""The colors of panels: which one a phase, a cause or a part of the lost time has on all dashboards."""

from __future__ import annotations

GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = ("green", "yellow", "orange", "red", "blue", "purple", "#8e8e8e")
TEAL, PINK, WHITE = ("#00a3a3", "#ff7eb6", "#d8d9da")
PLAIN = "text"
"""For a number that may be as it is, and says nothing of what else may be wrong: green would."""

PHASE_COLORS = {
    "Pending": YELLOW,
    "Starting": TEAL,
    "Running": GREEN,
    "Recovering": ORANGE,
    "Resizing": PINK,
    "Suspending": "light-purple",
    "Suspended": GREY,
    "Held": PURPLE,
    "Succeeded": BLUE,
    "Failed": RED,
    "Unreadable": "dark-red",
}

CATEGORY_COLORS = {
    "useful": GREEN,
    "hardware": RED,
    "preemption": PURPLE,
    "checkpoint": BLUE,
    "straggler": YELLOW,
    "detection": TEAL,
    "queue": GREY,
    "restart": ORANGE,
    "other": WHITE,
}

CAUSE_COLORS = {
    "Crash": RED,
    "OutOfMemory": PURPLE,
    "Hang": ORANGE,
    "Straggler": YELLOW,
    "HardwareFault": "dark-red",
    "NodeLost": BLUE,
    "Preempted": GREY,
    "DataError": TEAL,
    "Diverged": PINK,
    "ConfigError": GREEN,
    "Other": WHITE,
}
