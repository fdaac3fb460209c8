"""Schedules: loop nests of kernel groups, found in an e-graph by data movement."""

from eqsat.schedule.problem import ScheduleError, lane_axis
from eqsat.schedule.rule import LoopRule, installed_loop_rules
from eqsat.schedule.scheduler import Candidate, Scheduled, keeps_tiles, schedule

__all__ = [
    "Candidate",
    "LoopRule",
    "ScheduleError",
    "Scheduled",
    "installed_loop_rules",
    "keeps_tiles",
    "lane_axis",
    "schedule",
]
