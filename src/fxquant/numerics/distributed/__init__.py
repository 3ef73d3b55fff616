"""What the processes of one training run do together."""
