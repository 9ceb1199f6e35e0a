"""What every other room uses: parameters, records, errors, progress, masking, small statistics. Imports no other room."""
