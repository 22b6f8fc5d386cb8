"""What all machines share: starting, resuming, restoring and controlling runs."""
