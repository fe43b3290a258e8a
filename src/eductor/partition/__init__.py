"""The partitioner: splits a joint graph into a forward and a backward graph."""

from eductor.partition.curve import BudgetStep as BudgetStep
from eductor.partition.curve import curve_to_json as curve_to_json
from eductor.partition.partitioner import choose_saved_values_set as choose_saved_values_set
from eductor.partition.partitioner import choose_saves as choose_saves
from eductor.partition.partitioner import explain_saved as explain_saved
from eductor.partition.partitioner import memory_curve as memory_curve
from eductor.partition.partitioner import min_cut_rematerialization_partition as min_cut_rematerialization_partition
from eductor.partition.partitioner import partition_fn as partition_fn
from eductor.partition.partitioner import timeline as timeline
from eductor.partition.plan import Plan as Plan
from eductor.partition.plan import PlanEntry as PlanEntry
from eductor.partition.plans import NoPlanFits as NoPlanFits
from eductor.partition.plans import plan_for as plan_for
from eductor.partition.plans import plans_of as plans_of
from eductor.partition.plans import read_plans as read_plans
from eductor.partition.plans import write_plans as write_plans
from eductor.partition.saves import Saves as Saves
from eductor.partition.split import split as split
