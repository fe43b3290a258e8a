"""The report: what happened to a model, as data and as one HTML file to look around in."""

from eductor.observe.report.html import as_html as as_html
from eductor.observe.report.html import explorer as explorer
from eductor.observe.report.report import as_report as as_report
