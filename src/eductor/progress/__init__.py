"""What compiles of this process are doing, on the screen and in the log.

line      a line below the cursor of a terminal
screen    the terminal, where and while such a line is not in the way
stages    the stages that run now, and the thread that shows them
"""

from eductor.progress.line import Line as Line
from eductor.progress.stages import building as building
from eductor.progress.stages import erase as erase
from eductor.progress.stages import shown as shown
