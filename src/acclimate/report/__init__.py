"""From records to what a person reads: tables, files of numbers, and the HTML report."""

from acclimate.report.files import write_reports
from acclimate.report.terminal import error_table
from acclimate.report.words import spoken

__all__ = ["error_table", "spoken", "write_reports"]
