"""Logs of other tools: read as a record, and said in sentences."""

from traindoctor.logs.course import Sign, signs
from traindoctor.logs.names import OUR_TAG, SERIES_SAID
from traindoctor.logs.reading import read_log, write_log

__all__ = ["OUR_TAG", "SERIES_SAID", "Sign", "read_log", "signs", "write_log"]
