"""What runs the stages of a cell: for each kind a function of a StageContext that returns the outcome."""
