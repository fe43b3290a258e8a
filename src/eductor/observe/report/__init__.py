"""The report of a compile, as data and as one interactive HTML file."""

from eductor.observe.report.html import as_html as as_html
from eductor.observe.report.html import explorer as explorer
from eductor.observe.report.report import as_report as as_report
