"""What a job would need, and how fast it would be, in each way that its ranks could share the work.

command         reads a training config and prints the table
layouts         which are legal: what the loop itself would not refuse; without torch
inventory       the parameters of a model, and how they split; without torch
survey          the inventory and operations of a model, found out on tensors without memory
trace           what one block keeps and sends, in the same way
rank_work       what the stages of a rank have, whatever the size of the micro-batch
memory_estimate the memory of a rank, by kind
communication   the bytes that a rank sends, by axis
schedules       what a pipeline loses, and how many micro-batches it holds
estimate        all of these for one layout, and the order of layouts
machine         the speed of a rank, as measured by calibration or as described
layout_table    estimates as text and as JSON
measure         some steps of a layout by real processes

    python -m trainmaster.tools.planner --ranks N < training.json
"""
