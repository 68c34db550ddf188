"""What is asked of a trained network: stages after pretraining, each reading its parent's last checkpoint."""
