"""Schedules: loop nests of kernel groups, found in an e-graph by data movement."""

from eqsat.ir.nest import is_parallel
from eqsat.schedule.decode import below
from eqsat.schedule.legal import check
from eqsat.schedule.offered import check_offered
from eqsat.schedule.problem import ScheduleError
from eqsat.schedule.rule import LoopRule, installed_loop_rules
from eqsat.schedule.scheduler import (
    LEAST_CLEAR,
    Candidate,
    Least,
    Scheduled,
    anywhere,
    essence,
    least_of,
    prepare,
    schedule,
)
from eqsat.schedule.simple import simple_nest
from eqsat.schedule.vectors import lane_axis

__all__ = [
    "LEAST_CLEAR",
    "Candidate",
    "Least",
    "LoopRule",
    "ScheduleError",
    "Scheduled",
    "anywhere",
    "below",
    "check",
    "check_offered",
    "essence",
    "installed_loop_rules",
    "is_parallel",
    "lane_axis",
    "least_of",
    "prepare",
    "schedule",
    "simple_nest",
]
