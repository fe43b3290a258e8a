"""The report of a compile, as data and as one interactive HTML file."""

from eductor.observe.report.report import as_html as as_html
from eductor.observe.report.report import as_report as as_report
from eductor.observe.report.report import explorer as explorer
